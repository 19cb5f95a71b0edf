"""The page: one HTML file that opens from disk, with no network, and carries what it takes to make it again."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from memwrap.errors import NoMemoryError
from memwrap.explain.attribution import positive_map
from memwrap.explain.sentences import image_name, magnitude, percent, points
from memwrap.models.classifier import MemoryClassifier
from memwrap.report.content import MOST_LISTED, Content
from memwrap.report.pictures import exact_uri, heat_colours, heatmap_uri, scale_colours, small_copy_uri, small_uri

FORMAT = "memwrap report"
FORMAT_VERSION = 1
MANIFEST_ID = "manifest"
NUMBER = "number"  # the class of elements whose text is computed, and may be rounded differently elsewhere
TOLERANCE = "one unit of the last digit shown"  # to which a number counts as the same when it is computed again
SCALE_STEPS = 9  # colours between which a browser mixes
DEMO_TITLE = "memwrap demo"  # of the report that the demo makes; others are called by their run
NEVER_SHOWN = 12  # pictures of memory images that were never used


@dataclass(frozen=True)
class HeatmapOptions:
    """How heatmaps are made; see `memwrap.explain.attribution.heatmaps`."""

    method: str = "integrated_gradients"
    baseline: str = "white"
    tolerance: float = 0.01
    max_steps: int = 1024


@dataclass(frozen=True)
class Manifest:
    """What a report carries beside its pictures, for `memwrap verify`."""

    memwrap_version: str  # that made it
    created: str
    run: str
    title: str
    hashes: Mapping[str, str]  # of model, memory and inputs
    seeds: Mapping[str, int]
    names: tuple[str, ...]
    labels: tuple[int, ...] | None
    shown: int
    heatmaps: HeatmapOptions | None


def title_of(run: str) -> str:
    """What a report is called: the last part of its run's path."""
    return re.split(r"[/\\]", run.rstrip("/\\"))[-1]


def heading(title: str) -> str:
    """Over the page."""
    return title if title == DEMO_TITLE else f"Why “{title}” decided so"


def page(manifest: Manifest, content: Content, model: MemoryClassifier, memory_names: Sequence[str] | None) -> str:
    """The whole HTML file."""
    template, pixels = _environment().get_template("page.html"), memory_pixels(model)
    text: str = template.render(
        manifest=manifest,
        title=heading(manifest.title),
        nothing_of_note=_nothing_of_note(content),
        manifest_json=_for_script({"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(manifest)}),
        content=content,
        most_listed=MOST_LISTED,
        never_shown=NEVER_SHOWN,
        tolerance=TOLERANCE,
        memory={index: small_uri(pixels[index]) for index in _shown(content)},
        memory_pixels=lambda index: pixels[index],
        memory_names=memory_names,
        class_name=model.class_name,
        size=model.get_transform().shape[1:],
        input_uri=exact_uri,
        heat=_heat,
        small=small_copy_uri,
        percent=percent,
        magnitude=magnitude,
        heat_scale=", ".join(f"rgb({red} {green} {blue})" for red, green, blue in scale_colours(SCALE_STEPS).tolist()),
    )
    # A file's name may hold bytes that are no text; written out, they can be saved.
    return text.encode(errors="backslashreplace").decode()


def _nothing_of_note(content: Content) -> str:
    """What a reader may look for in the summary in vain; nothing if all of it is there."""
    missing = {
        "no errors": content.labelled and content.correct == len(content.cards),
        "no unsure predictions": not content.uncertain,
        "no errors without a warning": content.labelled
        and content.correct < len(content.cards)
        and not content.confidently_wrong,
    }
    return " and ".join(words for words, is_missing in missing.items() if is_missing)


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("memwrap.report", "templates"),
        autoescape=True,  # class and file names come from users
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points, "image_name": image_name}
    return environment


def _for_script(values: Any) -> str:
    """JSON that no HTML parser ends early, whatever names are in it."""
    text = json.dumps(values)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def memory_pixels(model: MemoryClassifier) -> Tensor:
    """The memory's images as pixels, uint8 (M, C, H, W) on the CPU."""
    if model.remembered is None:
        raise NoMemoryError("the model has no memory to report on; model.remember(images, labels) gives it one")
    return model.get_transform().invert(model.remembered.images).cpu()


def _shown(content: Content) -> list[int]:
    """The memory images that the page shows, each once."""
    shown = {sample.index for card in content.cards for sample in card.samples}
    shown |= {use.index for use in content.uses[:MOST_LISTED]}
    shown |= {use.index for use in content.never_used[:NEVER_SHOWN]}
    return sorted(shown)


def _heat(pixels: Tensor, attributions: Tensor) -> str:
    return heatmap_uri(pixels, positive_map(attributions).cpu(), heat_colours())
