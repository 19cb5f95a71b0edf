"""Which recipe a training starts from, where nobody names one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwrap import encoders
from memwrap.data import PUBLISHED
from memwrap.data.folders import median_side
from memwrap.data.sources import find_path
from memwrap.encoders import TIMM, timm_config
from memwrap.encoders.lite import published_weights
from memwrap.errors import DataError, SettingsError
from memwrap.training.recipes import DEFAULT, PHOTOGRAPHS, RECIPES
from memwrap.training.recipes import recipe as recipe_named
from memwrap.training.settings import Settings, with_changes

PHOTOGRAPH_SIDE = 64  # pixels: the median shorter side from which on images are taken for photographs


@dataclass(frozen=True)
class Choice:
    """A recipe's name, and why it was chosen; empty if there is nothing to say."""

    recipe: str
    reason: str = ""


@dataclass(frozen=True)
class ChosenSettings:
    """Settings, with the name of the recipe that they started from, and why it was chosen."""

    recipe: str
    settings: Settings
    reason: str


def choose_settings(
    source: str, given: Mapping[str, Any], recipe: str | None = None, where: str = "settings"
) -> ChosenSettings:
    """The settings for data: those given, and for the others those of the recipe, which the data chooses if it is None.

    where: the origin of the settings, for errors.
    """
    choice = choose_recipe(source, given) if recipe is None else Choice(recipe)
    # In one step: settings that belong together may come from both.
    return ChosenSettings(choice.recipe, with_changes(recipe_named(choice.recipe), given, where), choice.reason)


def choose_recipe(source: str, given: Mapping[str, Any]) -> Choice:
    """The recipe for data, by the settings that were given.

    Photographs get a pretrained encoder that stays as it is. Smaller images are trained on from scratch, as such an
    encoder knows little of them.
    """
    if given.get("freeze"):
        return Choice("frozen")
    if given.get("pretrained") or given.get("weights"):
        return Choice("finetune")
    if source in PUBLISHED:
        return Choice(source if source in RECIPES else DEFAULT)
    if given.get("encoder") is not None or given.get("freeze") is False or given.get("pretrained") is False:
        return Choice(DEFAULT)
    try:
        side = median_side(find_path(source))
    except DataError:  # which is reported when the images are read
        side = None
    if side is None:
        return Choice(DEFAULT)
    if side < PHOTOGRAPH_SIDE:
        return Choice(
            DEFAULT,
            f"the images are small (the shorter side has {side} pixels, as the median): a network is trained on them "
            "from scratch. --recipe photographs takes a pretrained encoder instead",
        )
    return Choice(
        PHOTOGRAPHS,
        f"the images are photographs (the shorter side has {side} pixels, as the median, and {PHOTOGRAPH_SIDE} or more "
        "is a photograph): a pretrained encoder, lite0, encodes them, and only the last layer is trained. --encoder "
        "small trains from scratch; --encoder timm:NAME --pretrained tunes another one",
    )


def check_early(settings: Settings) -> None:
    """Check what would otherwise fail after all images have been read."""
    name = settings.encoder
    if name is not None and name.startswith(TIMM):
        timm_config(name)
    elif name is not None and name not in encoders.names():
        raise SettingsError(f"encoder is {name!r}; expected one of {', '.join(encoders.names())}, or timm:NAME")
    elif settings.pretrained and name is not None:
        published_weights(name)  # fails if its package is not installed
    if settings.weights is not None and not Path(settings.weights).is_file():
        raise SettingsError(f"weights is {settings.weights!r}; there is no such file")
