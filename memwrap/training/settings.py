"""Everything that decides how a run is made, one definition each: for flags, for YAML files and for the record."""

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from memwrap.data import FITS
from memwrap.errors import SettingsError, brief

VARIANTS = ("memory_wrap", "only_memory", "standard")
HEADS = ("mlp", "linear")
MEMORIES = ("random", "balanced", "batch")
OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("cosine", "steps", "constant")
PRECISIONS = ("auto", "fp32", "bf16")
AUGMENTATIONS = ("flip", "shift", "affine", "colour", "erase")


def _setting(default: Any, words: str, choices: tuple[str, ...] | None = None, least: float | None = None) -> Any:
    """A field with what `--help` says of it, the values that it may take, and the least number."""
    return field(default=default, metadata={"help": words, "choices": choices, "least": least})


@dataclass(frozen=True)
class Settings:
    """How a run is made. None stands for what suits the data: `recipes.settled` fills it in."""

    # Data
    samples: int | None = _setting(
        None, "Train on so many images, drawn by the seed; all of them if left out.", least=1
    )
    validation: float = _setting(
        0.0, "Set images apart to compare settings on: how many, or a share below 1. Never trained on.", least=0
    )
    test: float = _setting(
        0.2, "The same for the test, where the data has no test/ of its own; stratified by class.", least=0
    )
    size: int | None = _setting(
        None, "Height and width in pixels; if left out, what suits encoder and images.", least=1
    )
    fit: str = _setting("crop", "How images of other shapes come to that size.", FITS)
    skip_bad: bool = _setting(False, "Leave files out that cannot be read as images, and say which.")

    # Model
    encoder: str | None = _setting(
        None,
        "small, tiny, resnet18, mobilenet_v2, efficientnet_b0, googlenet, densenet, shufflenet_v2, or timm:NAME. "
        "If left out, and the recipe names none: resnet18 on a GPU; on a CPU small, or tiny for images up to 16x16.",
    )
    variant: str = _setting("memory_wrap", "The last layer.", VARIANTS)
    head: str = _setting("mlp", "What follows the attention: the paper's mlp, or linear.", HEADS)
    project: int | None = _setting(None, "Dimensions that encodings are mapped to before the attention.", least=1)
    pretrained: bool = _setting(False, "Start from timm's pretrained weights (timm:NAME only).")
    weights: str | None = _setting(None, "A file of such weights, instead of a download.")
    freeze: bool = _setting(False, "Train the last layer alone; the encoder stays as it is.")

    # Memory
    memory: str | None = _setting(
        None,
        "Where a training step takes its memory from: a random draw (the paper), a draw balanced by class, or the "
        "batch, each half the memory of the other. If left out: the batch where it has a few images of each class.",
        MEMORIES,
    )
    memory_size: int | None = _setting(
        None, "How many images a drawn memory holds, in training and in evaluation; up to 100 if left out.", least=1
    )
    remember: int | None = _setting(
        None, "How many training images the finished model keeps as its memory; up to 100 if left out.", least=1
    )

    # Training
    epochs: int | None = _setting(None, "Passes over the training images; more for fewer images if left out.", least=1)
    batch_size: int | None = _setting(None, "Images in a step; up to 128, fewer for small data, if left out.", least=1)
    optimizer: str = _setting("sgd", "sgd with Nesterov momentum, or adamw.", OPTIMIZERS)
    lr: float = _setting(0.1, "The highest learning rate.", least=0)
    momentum: float = _setting(0.9, "Of sgd.", least=0)
    weight_decay: float = _setting(2e-3, "On all parameters.", least=0)
    clip: float = _setting(1.0, "Gradients longer than this are shortened to it; 0 leaves them.", least=0)
    schedule: str = _setting("cosine", "How the learning rate falls.", SCHEDULES)
    drops: tuple[float, ...] = _setting(
        (), "With the schedule steps: after which shares of the epochs the rate falls to a tenth, as 0.5,0.75."
    )
    warmup: float = _setting(0.15, "The share of all steps over which the rate rises from zero.", least=0)
    label_smoothing: float = _setting(0.1, "How much of each label is spread over all classes.", least=0)
    augment: tuple[str, ...] | None = _setting(
        None,
        f"Random changes to training images, as shift,flip; of {', '.join(AUGMENTATIONS)}, or none. "
        "If left out: all, without flip for classes that are single letters or digits.",
        (*AUGMENTATIONS, "none"),
    )
    mean: tuple[float, ...] | None = _setting(None, "For normalisation, by channel; measured if left out.")
    std: tuple[float, ...] | None = _setting(None, "Likewise.")
    precision: str = _setting("auto", "auto is bf16 on GPUs that have it and fp32 elsewhere.", PRECISIONS)
    seed: int = _setting(0, "Decides every random choice; the same seed gives the same run.", least=0)

    def __post_init__(self) -> None:
        for known, own in zip(fields(Settings), fields(self), strict=True):
            value = _as_declared(known, getattr(self, known.name), optional=type(None) in get_args(own.type))
            object.__setattr__(self, known.name, value)
        _check_together(self)


@dataclass(frozen=True)
class ResolvedSettings(Settings):
    """Settings that leave nothing to the data."""

    encoder: str = "resnet18"
    memory: str = "random"
    memory_size: int = 100
    remember: int = 100
    epochs: int = 1
    batch_size: int = 128
    augment: tuple[str, ...] = ()


TYPES: dict[str, Any] = get_type_hints(Settings)


def with_changes(settings: Settings, changes: Mapping[str, Any], where: str) -> Settings:
    """The settings with some of them changed, by name. where: what the changes come from, for the error."""
    known = [each.name for each in fields(Settings)]
    for name in changes:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]}? Known" if close else "known"
            raise SettingsError(f"{where}: there is no setting {name!r}; {hint} are {', '.join(known)}")
    try:
        return dataclasses.replace(settings, **changes)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


# What has an effect only with one value of another setting.
_ONLY_WITH = {
    "drops": ("schedule", ("steps",)),
    "momentum": ("optimizer", ("sgd",)),
    **dict.fromkeys(("head", "project", "memory", "memory_size", "remember"), ("variant", VARIANTS[:2])),
}


def without_effect(settings: Settings, given: Iterable[str]) -> list[str]:
    """Which of the settings that were given, by name, change nothing beside the others, and why."""
    defaults = {each.name: each.default for each in fields(Settings)}
    return [
        f"{name} has no effect with {other} {getattr(settings, other)}"
        for name, (other, values) in _ONLY_WITH.items()
        if name in given and getattr(settings, other) not in values and getattr(settings, name) != defaults[name]
    ]


def read_file(path: Path) -> dict[str, Any]:
    """The settings that a YAML file or a run's run.json gives, by name, and a recipe if it names one."""
    import yaml

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: of bytes, numbers or dates
        raise SettingsError(f"{path}: is no YAML file ({brief(error)})") from error
    if given is None:
        return {}
    if isinstance(given, dict) and isinstance(given.get("settings"), dict):  # a run's own record
        return {**given["settings"], "recipe": given.get("recipe")}
    if not isinstance(given, dict):
        raise SettingsError(f"{path}: holds a {type(given).__name__}; expected lines such as 'epochs: 100'")
    return given


def _as_declared(known: "dataclasses.Field[Any]", value: Any, optional: bool) -> Any:
    """The value in its declared type, or an error that says what may be given."""
    if value is None:
        if optional:
            return None
        raise SettingsError(f"{known.name} is empty; expected {_expected(known)}")
    kind = _kind(TYPES[known.name])
    items = value if get_origin(kind) is tuple and isinstance(value, list | tuple) else (value,)
    try:
        converted = tuple(_scalar(item, get_args(kind)[0] if get_origin(kind) is tuple else kind) for item in items)
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(f"{known.name} is {value!r}; expected {_expected(known)}") from None
    choices, least = known.metadata["choices"], known.metadata["least"]
    if (choices and not set(converted) <= set(choices)) or (
        least is not None and not all(x >= least for x in converted)
    ):
        raise SettingsError(f"{known.name} is {value!r}; expected {_expected(known)}")
    return converted if get_origin(kind) is tuple else converted[0]


def _kind(declared: Any) -> Any:
    """A declared type without its None."""
    if isinstance(declared, types.UnionType):
        return next(each for each in get_args(declared) if each is not type(None))
    return declared


def _scalar(value: Any, kind: type) -> Any:
    if kind is bool or isinstance(value, bool):
        if kind is not bool or not isinstance(value, bool):
            raise TypeError
        return value
    if kind is float:
        number = float(value)  # YAML takes 1e-4 for a string
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError
        return number
    if not isinstance(value, kind):
        raise TypeError
    return value


def _expected(known: "dataclasses.Field[Any]") -> str:
    kind = _kind(TYPES[known.name])
    several = get_origin(kind) is tuple
    noun = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[
        get_args(kind)[0] if several else kind
    ]
    if known.metadata["choices"]:
        noun = f"one of {', '.join(known.metadata['choices'])}"
    if known.metadata["least"] is not None:
        noun += f", at least {known.metadata['least']}"
    return f"a list, each {noun}" if several else noun


def _check_together(settings: Settings) -> None:
    """What no single value can be blamed for."""
    if settings.augment is not None and "none" in settings.augment:
        if len(settings.augment) > 1:
            raise SettingsError(f"augment is {', '.join(settings.augment)}; expected none, or some without none")
        object.__setattr__(settings, "augment", ())
    if settings.schedule == "steps" and not settings.drops:
        raise SettingsError("schedule is steps, but there are no drops; expected some, as in drops: [0.5, 0.75]")
    if not all(0 < share < 1 for share in settings.drops):
        raise SettingsError(f"drops are {settings.drops}; expected shares of the epochs between 0 and 1")
    if not settings.warmup < 1 or not settings.label_smoothing < 1 or not settings.momentum < 1:
        raise SettingsError("warmup, label_smoothing and momentum are shares; expected values below 1")
    if (settings.mean is None) != (settings.std is None):
        raise SettingsError("mean and std go together; expected both or neither")
    if (settings.pretrained or settings.weights) and not (settings.encoder or "").startswith("timm:"):
        raise SettingsError(
            f"encoder is {settings.encoder or 'left out'}, for which there are no pretrained weights; "
            "expected timm:NAME, as in --encoder timm:resnet18 --pretrained"
        )
    for name in ("validation", "test"):
        amount = getattr(settings, name)
        if amount > 1 and amount != int(amount):
            raise SettingsError(f"{name} is {amount}; expected a whole number of images, or a share below 1")
