"""Whether a report is genuine: its page shows its record, and its run gives the same record again."""

import re
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from memwrap.data import Progress
from memwrap.errors import DataError
from memwrap.explain.record import FrozenRecord, Text
from memwrap.models.classifier import MemoryClassifier
from memwrap.report.create import DELETION_SEED, Inputs, Source, create_report, hashes
from memwrap.report.page import read_record, render
from memwrap.report.pictures import is_exact, pixels_in
from memwrap.report.record import ReportRecord, Seeds
from memwrap.version import __version__

MOST_LISTED = 100  # differences
NUMBERS = 1e-5  # by which a number may differ; above 1 the same share of it
HEATMAP_NUMBERS = 1e-3  # the same for the error and the deletion scores of heatmaps, where one pixel changes the order
HEATMAP_LEVELS = 16  # of 255, by which a pixel of a heatmap may differ
# Another version of the WebP encoder gives other pixels. So in pictures stored with loss each pixel may differ by some
# levels, and squares of pixels by fewer, in their mean and in their mean absolute difference: a bright line next to a
# dark one changes only the latter. Other efforts and qualities (78 to 84) of the encoder changed photos, noise and
# heatmaps by up to 46, 8.4 and 13.2 levels.
SQUARE, LOSSY_MEAN, LOSSY_APART, LOSSY_PIXEL = 8, 12, 16, 56
CONTEXT, LONGEST = 60, 160  # characters shown before a difference, and in all


PageState = Literal["equal", "different", "not checked"]
_PLACE = re.compile(r'<h2 id="\w+"[^>]*>([^<]*)|<article id="(image)-(\d+)"')


class Difference(FrozenRecord):
    """A value that differs: where, what the report has, and what was found."""

    where: Text
    reported: Text
    found: Text


class Verification(FrozenRecord):
    """The result of `verify`.

    equal: whether the report is genuine, page and record. page: whether rendering the record gives the page; "not
    checked" if it does not, and another version of memwrap made it. differences: at most MOST_LISTED, the page's first.
    """

    equal: bool
    page: PageState
    memwrap_version: str  # that made the report
    images: int
    differences: tuple[Difference, ...]


def verify(page: str, source: Source, progress: Progress | None = None) -> Verification:
    """Compare a page with what its record renders to, and the record with what `source` gives for the same inputs."""
    record = read_record(page)
    pixels = _input_pixels(record)
    _check_fit(record, pixels, source.model)
    state, differences = _compare_page(page, record)
    inputs = Inputs(pixels, [str(each.path) for each in record.explanations], _labels(record))
    differences += islice(_compare_record(record, source, inputs, progress), MOST_LISTED)
    return Verification(
        equal=state == "equal" and not differences,
        page=state,
        memwrap_version=record.memwrap_version,
        images=len(record.explanations),
        differences=tuple(differences[:MOST_LISTED]),
    )


def _labels(record: ReportRecord) -> list[int] | None:
    labels = [each.label for each in record.explanations if each.label is not None]
    return labels or None


def _input_pixels(record: ReportRecord) -> Tensor:
    """uint8 (N, C, H, W)"""
    pixels = [pixels_in(record.pictures[f"input-{number}"]) for number, _ in record.numbered]
    if shapes := {tuple(each.shape) for each in pixels} - {tuple(pixels[0].shape)}:
        raise DataError(f"the report is damaged: its images have shapes {tuple(pixels[0].shape)} and {min(shapes)}")
    return torch.stack(pixels)


def _check_fit(record: ReportRecord, pixels: Tensor, model: MemoryClassifier) -> None:
    """Whether the model can classify the report's images at all."""
    shape, classes = tuple(pixels.shape[1:]), model.layer.num_classes
    expected = tuple(model.get_transform().shape)
    hint = "the report is damaged or of another run, which --run can name"
    if shape != expected:
        raise DataError(f"the report's images have shape {shape}, the run's model takes {expected}; {hint}")
    for number, each in record.numbered:
        if each.label is not None and not 0 <= each.label < classes:
            raise DataError(f"image {number} has label {each.label}, the model has classes 0 to {classes - 1}; {hint}")


def _compare_page(page: str, record: ReportRecord) -> tuple[PageState, list[Difference]]:
    rendered = render(record)
    if page == rendered:
        return "equal", []
    if record.memwrap_version != __version__:
        return "not checked", []
    lines, expected = page.split("\n"), rendered.split("\n")
    pairs = list(zip_longest(lines, expected, fillvalue="(no line)"))
    differing = [line for line, (one, other) in enumerate(pairs) if one != other]
    # After a line too many or too few, all others differ.
    listed = differing[:MOST_LISTED] if len(lines) == len(expected) else differing[:1]
    return "different", [_text_difference(f"page, {_place(expected, line)}", *pairs[line]) for line in listed]


def _place(lines: list[str], line: int) -> str:
    """The image or section that a line of a page belongs to."""
    found = next((found for text in reversed(lines[: line + 1]) if (found := _PLACE.search(text))), None)
    return "head" if found is None else " ".join(part for part in found.groups() if part)


def _compare_record(
    record: ReportRecord, source: Source, inputs: Inputs, progress: Progress | None
) -> Iterator[Difference]:
    """Differences from what the run gives: in hashes and seeds, and where these agree, in all that is computed."""
    sources = [
        *_compare(record.hashes, hashes(source.model, inputs), "hashes", NUMBERS),
        *_compare(record.seeds, Seeds(run=source.seed, deletion=DELETION_SEED), "seeds", NUMBERS),
    ]
    yield from sources
    if sources:
        return  # made from something else, so nothing else can agree
    again = create_report(source, inputs, shown=record.shown, heatmaps=record.heatmaps, progress=progress)
    yield from _compare(record.image_size, again.image_size, "image_size", NUMBERS)
    yield from _compare(record.unused, again.unused, "unused", NUMBERS)
    for (number, reported), found in zip(record.numbered, again.explanations, strict=True):
        yield from _compare(reported, found, f"image {number} ({found.path}): ", NUMBERS)
    for name, found_uri in again.pictures.items():
        levels = HEATMAP_LEVELS if name.startswith("heatmap") else 0
        if wrong := _compare_picture(record.pictures.get(name, ""), found_uri, levels):
            yield Difference(where=f"picture {name}", reported=wrong, found="another picture")


def _compare(reported: Any, found: Any, where: str, tolerance: float) -> Iterator[Difference]:
    """Equal classes, indices and order; numbers within the tolerance."""
    if isinstance(found, FrozenRecord) and type(reported) is type(found):
        for name in type(found).model_fields:
            within = HEATMAP_NUMBERS if name == "heatmap" else tolerance
            separator = "" if where.endswith(": ") else "."
            yield from _compare(getattr(reported, name), getattr(found, name), f"{where}{separator}{name}", within)
    elif isinstance(found, tuple) and isinstance(reported, tuple) and len(found) == len(reported):
        for place, pair in enumerate(zip(reported, found, strict=True)):
            yield from _compare(*pair, f"{where}[{place}]", tolerance)
    elif isinstance(found, tuple) and isinstance(reported, tuple):
        yield Difference(where=where, reported=f"{len(reported)} entries", found=f"{len(found)} entries")
    elif isinstance(found, float) and isinstance(reported, float):
        if abs(reported - found) > tolerance * max(1.0, abs(found)):
            yield Difference(where=where, reported=repr(reported), found=repr(found))
    elif reported != found:
        yield _text_difference(where, str(reported), str(found))


def _compare_picture(reported: str, found: str, levels: int) -> str | None:
    """What is wrong with a reported picture. levels: by which pixels stored without loss may differ."""
    if reported == found:
        return None
    if is_exact(reported) != is_exact(found):
        return f"a picture that starts with {reported[:30]!r}, expected {found.partition(',')[0]}"
    try:
        first, second = pixels_in(reported), pixels_in(found)
    except DataError as error:
        return str(error)
    tolerance = levels if is_exact(found) else None
    if first.shape == second.shape and _look_alike(first.float(), second.float(), tolerance):
        return None
    return "one picture"


def _look_alike(first: Tensor, second: Tensor, levels: int | None) -> bool:
    """levels: None where they are stored with loss."""
    apart = first - second
    if levels is not None:
        return bool(apart.abs().max() <= levels)
    means, spreads = (
        avg_pool2d(each, SQUARE, ceil_mode=True, count_include_pad=False) for each in (apart, apart.abs())
    )
    return bool(means.abs().max() <= LOSSY_MEAN and spreads.max() <= LOSSY_APART and apart.abs().max() <= LOSSY_PIXEL)


def _text_difference(where: str, reported: str, found: str) -> Difference:
    """The part in which two texts start to differ, with invisible characters written out."""
    pairs = zip_longest(reported, found)
    start = max(0, next(place for place, (one, other) in enumerate(pairs) if one != other) - CONTEXT)
    texts = [("..." if start else "") + text[start : start + LONGEST] for text in (reported, found)]
    shown = ["".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text) for text in texts]
    return Difference(where=where, reported=shown[0] or "nothing", found=shown[1] or "nothing")
