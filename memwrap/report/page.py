"""The page: one HTML file that opens from disk, with no network, and carries what it takes to make it again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from memwrap.attribution import positive_map
from memwrap.errors import NoMemoryError
from memwrap.model import MemoryClassifier
from memwrap.report.content import MOST_LISTED, Content
from memwrap.report.pictures import exact_uri, heat_colours, heatmap_uri, small_uri
from memwrap.wording import percent, points

FORMAT = "memwrap report"
FORMAT_VERSION = 1
MANIFEST_ID = "manifest"
NUMBER = "number"  # the class of elements whose text is computed, and may be rounded differently elsewhere
NEVER_SHOWN = 12  # pictures of memory images that were never used


@dataclass(frozen=True)
class HeatmapOptions:
    """How heatmaps are made; see `memwrap.attribution.heatmaps`."""

    method: str = "integrated_gradients"
    baseline: str = "white"
    tolerance: float = 0.01
    max_steps: int = 1024


@dataclass(frozen=True)
class Manifest:
    """What a report carries beside its pictures, for `memwrap verify`."""

    memwrap: str  # the version that made it
    created: str
    run: str
    title: str
    hashes: Mapping[str, str]  # of model, memory and inputs
    seeds: Mapping[str, int]
    names: tuple[str, ...]
    labels: tuple[int, ...] | None
    shown: int
    heatmaps: HeatmapOptions | None


def page(manifest: Manifest, content: Content, model: MemoryClassifier, memory_names: Sequence[str] | None) -> str:
    """The whole HTML file."""
    template, pixels = _environment().get_template("page.html"), memory_pixels(model)
    text: str = template.render(
        manifest=manifest,
        manifest_json=_for_script({"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(manifest)}),
        content=content,
        most_listed=MOST_LISTED,
        never_shown=NEVER_SHOWN,
        memory={index: small_uri(pixels[index]) for index in _shown(content)},
        memory_pixels=lambda index: pixels[index],
        memory_names=memory_names,
        class_name=model.class_name,
        size=model.transform.shape[1:],
        input_uri=exact_uri,
        heat=_heat,
    )
    # A file's name may hold bytes that are no text; written out, they can be saved.
    return text.encode(errors="backslashreplace").decode()


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("memwrap.report", "templates"),
        autoescape=True,  # class and file names come from users
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points}
    return environment


def _for_script(values: Any) -> str:
    """JSON that no HTML parser ends early, whatever names are in it."""
    text = json.dumps(values)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def memory_pixels(model: MemoryClassifier) -> Tensor:
    """The memory's images as pixels, uint8 (M, C, H, W) on the CPU."""
    if model.remembered is None:
        raise NoMemoryError("the model has no memory to report on; model.remember(images, labels) gives it one")
    return model.transform.undone(model.remembered.images).cpu()


def _shown(content: Content) -> list[int]:
    """The memory images that the page shows, each once."""
    shown = {sample.index for card in content.cards for sample in card.samples}
    shown |= {use.index for use in content.uses[:MOST_LISTED]}
    shown |= {use.index for use in content.never_used[:NEVER_SHOWN]}
    return sorted(shown)


def _heat(pixels: Tensor, attributions: Tensor) -> str:
    return heatmap_uri(pixels, positive_map(attributions).cpu(), heat_colours())
