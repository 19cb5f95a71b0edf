"""Whether a report is genuine: its page shows its record, and its run gives the same record again."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, zip_longest
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d, pad

from memwrap.data import Progress
from memwrap.errors import DataError, brief
from memwrap.explain.record import FrozenRecord, Text
from memwrap.models.classifier import MemoryClassifier
from memwrap.report.create import DELETION_SEED, Inputs, Source, absolute_path, create_with_pixels, hashes
from memwrap.report.page import read_record, render
from memwrap.report.pictures import is_exact, pixels_in
from memwrap.report.record import ReportRecord, Seeds, title_of
from memwrap.version import __version__
from memwrap.visible import visible_name

MOST_LISTED = 100  # differences
FOLDER_NAME = "name of the run's folder"  # where they differ if it was renamed
NUMBERS = 1e-5  # by which a number may differ; above 1 the same share of it
HEATMAP_NUMBERS = 1e-3  # the same for the error and the deletion scores of heatmaps, where one pixel changes the order
SQUARE = 8  # pixels: the side of the squares in which pictures are compared
# Levels, of 255, by which heatmaps may differ: a pixel, a square in its mean, all pixels in their mean. Rounding
# changes few pixels (weights that differ by 2e-6 of themselves: 6, 0.7 and 0.01 levels), a drawing changes many.
HEATMAP_PIXEL, HEATMAP_SQUARE, HEATMAP_MEAN = 16, 2, 0.5
# Another version of the WebP encoder gives other pixels, so pictures stored with loss are compared with the pixels
# before the loss. In each square their mean error may be larger than that of our own encoding by LOSSY_MORE; where that
# is small, by half of it and LOSSY_LEAST. So what is drawn on a picture is lost in the loss of its encoding. Besides,
# squares may differ from our own encoding by LOSSY_MEAN in their mean, and the mean error of the whole picture may be
# larger by LOSSY_WHOLE. Of 1,280 encodings by other efforts of the encoder, or of qualities from 81 to 83, all but 8
# are within these bounds; wider ones would admit drawn digits.
LOSSY_MORE, LOSSY_LEAST, LOSSY_MEAN, LOSSY_WHOLE = 5.0, 3.8, 8.5, 0.6
# Where a picture is flat there is little to lose. So pixels, and the means of strokes of STROKE pixels, may differ from
# our own encoding by a few levels and a share of the range of the pixels in their square and those around it, and never
# by more than LOSSY_PIXEL and LOSSY_STROKE. On 500 photos and drawings the same encodings gave up to 8 and 7.7 levels
# at ranges below 12, 25 and 10.9 at 25 to 40, 29 and 16.1 at 60 to 100, and 47 and 25.1 in all.
STROKE = 7
FLAT_PIXEL, PIXEL_SHARE, LOSSY_PIXEL = 10, 0.6, 56
FLAT_STROKE, STROKE_SHARE, LOSSY_STROKE = 8.5, 0.15, 28
CONTEXT, LONGEST = 60, 160  # characters shown before a difference, and in all
CLOCKS = timedelta(days=1)  # by which the clocks of two machines may differ
FIRST = (0, 2, 0)  # the first release whose reports hold a record


PageState = Literal["equal", "different", "not checked"]
_RELEASE = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_PLACE = re.compile(r'<h2 id="\w+"[^>]*>([^<]*)|<article id="(image)-(\d+)"')


class Difference(FrozenRecord):
    """A value that differs: where, what the report has, and what was found."""

    where: Text
    reported: Text
    found: Text


class Verification(FrozenRecord):
    """The result of `verify`.

    equal: whether the report is genuine, page and record. page: whether rendering the record gives the page; "not
    checked" if it does not, and another version of memwrap made it, or if none can have made it that has the version
    it names. differences: at most MOST_LISTED, the page's first.
    """

    equal: bool
    page: PageState
    memwrap_version: str  # that made the report, as it says
    images: int
    differences: tuple[Difference, ...]
    similar: int


def verify(page: str, source: Source, progress: Progress | None = None) -> Verification:
    """Compare a page with what its record renders to, and the record with what `source` gives for the same inputs."""
    record = read_record(page)
    pixels = _input_pixels(record, source.model)
    state, differences = _compare_page(page, record)
    inputs = Inputs(pixels, [str(each.path) for each in record.explanations], _labels(record))
    similar: list[str] = []
    differences += islice(_compare_record(record, source, inputs, similar, progress), MOST_LISTED)
    return Verification(
        equal=state == "equal" and not differences,
        page=state,
        memwrap_version=record.memwrap_version,
        images=len(record.explanations),
        differences=tuple(differences[:MOST_LISTED]),
        similar=len(similar),
    )


def _labels(record: ReportRecord) -> list[int] | None:
    labels = [each.label for each in record.explanations if each.label is not None]
    return labels or None


def _input_pixels(record: ReportRecord, model: MemoryClassifier) -> Tensor:
    """uint8 (N, C, H, W), of the size and with the labels that the model knows."""
    shape, classes = model.get_transform().shape, model.layer.num_classes
    hint = "the report is damaged or of another run, which --run can name"
    pixels = []
    for number, each in record.numbered:
        if each.label is not None and not 0 <= each.label < classes:
            raise DataError(f"image {number} has label {each.label}, the model has classes 0 to {classes - 1}; {hint}")
        try:
            pixels.append(pixels_in(record.pictures[f"input-{number}"], tuple(shape)))
        except DataError as error:
            raise DataError(f"image {number}: {error}; {hint}") from error
    return torch.stack(pixels)


def _compare_page(page: str, record: ReportRecord) -> tuple[PageState, list[Difference]]:
    try:
        rendered = render(record)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"the report is damaged: its values cannot be shown ({brief(error)})") from error
    if page == rendered and _may_be_by(record.memwrap_version):
        return "equal", []
    if record.memwrap_version != __version__:
        return "not checked", []
    places = [(found.start(), " ".join(filter(None, found.groups()))) for found in _PLACE.finditer(rendered)]
    pairs: Iterable[tuple[str, str, int]]  # lines that may differ, and where they start in what was rendered
    if page.count("\n") == rendered.count("\n"):
        pairs = _lines(page, rendered)
    else:  # after a line too many or too few, all others differ
        start = rendered.rfind("\n", 0, _first_difference(page, rendered)) + 1
        pairs = [("".join(page[start:].partition("\n")[:2]), "".join(rendered[start:].partition("\n")[:2]), start)]
    return "different", [
        _text_difference(f"page, {_place(places, start)}", one, other)
        for one, other, start in islice((pair for pair in pairs if pair[0] != pair[1]), MOST_LISTED)
    ]


def _may_be_by(version: str) -> bool:
    """Whether this version, or a release before it, may have made a page that it would make, too."""
    is_release = _RELEASE.fullmatch(version) is not None
    return version == __version__ or (is_release and FIRST <= _numbers(version) < _numbers(__version__))


def _numbers(version: str) -> tuple[int, ...]:
    """ "0.2.0rc1" -> (0, 2, 0)"""
    found = _RELEASE.match(version)
    return tuple(map(int, found.groups())) if found else ()


def _lines(page: str, rendered: str) -> Iterator[tuple[str, str, int]]:
    start = 0
    for one, other in zip(page.split("\n"), rendered.split("\n"), strict=True):
        yield one, other, start
        start += len(other) + 1


def _place(places: Sequence[tuple[int, str]], start: int) -> str:
    """The image or section of the line that starts here. places: where each starts, and its name."""
    before = bisect_right(places, start, key=lambda place: place[0])
    return places[before - 1][1] if before else "head"


def _first_difference(one: str, other: str) -> int:
    """The place of the first character that differs; the length of the longer one if none does."""
    step = 1 << 16  # in steps, as a page may have megabytes in a line
    for start in range(0, max(len(one), len(other)), step):
        if one[start : start + step] != other[start : start + step]:
            pairs = zip_longest(one[start : start + step], other[start : start + step])
            return start + next(place for place, (first, second) in enumerate(pairs) if first != second)
    return max(len(one), len(other))


def _compare_record(
    record: ReportRecord, source: Source, inputs: Inputs, similar: list[str], progress: Progress | None
) -> Iterator[Difference]:
    """Differences from what the run gives: in hashes and seeds, and where these agree, in all that is computed.

    similar: takes the names of pictures that differ within the tolerances.
    """
    sources = [
        *_compare(record.hashes, hashes(source.model, inputs), "hashes", NUMBERS),
        *_compare(record.seeds, Seeds(run=source.seed, deletion=DELETION_SEED), "seeds", NUMBERS),
    ]
    yield from sources
    yield from _compare(title_of(record.run), title_of(absolute_path(source)), FOLDER_NAME, NUMBERS)
    now = datetime.now(UTC)
    if datetime.fromisoformat(record.created) > now + CLOCKS:
        yield Difference(where="created", reported=record.created, found=f"now it is {now.isoformat('T', 'seconds')}")
    if sources:
        return  # made from something else, so nothing else can agree
    again, pixels = create_with_pixels(source, inputs, record.shown, record.heatmaps, progress=progress)
    yield from _compare(record.image_size, again.image_size, "image_size", NUMBERS)
    yield from _compare(record.unused, again.unused, "unused", NUMBERS)
    for (number, reported), found in zip(record.numbered, again.explanations, strict=True):
        yield from _compare(reported, found, f"image {number} ({visible_name(str(found.path))}): ", NUMBERS)
    for name, original in pixels.items():
        own = again.pictures[name]
        if wrong := _compare_picture(record.pictures.get(name, ""), own, original, name.startswith("heatmap")):
            yield Difference(where=f"picture {name}", reported=wrong, found="another picture")
        elif record.pictures[name] != own:
            similar.append(name)


def _compare(reported: Any, found: Any, where: str, tolerance: float) -> Iterator[Difference]:
    """Equal classes, indices and order; numbers within the tolerance."""
    if isinstance(found, FrozenRecord) and type(reported) is type(found):
        kind = type(found)
        verdicts = (name for name, each in kind.model_computed_fields.items() if each.return_type is bool)
        for name in (*kind.model_fields, *verdicts):  # a verdict may differ though all numbers are within tolerance
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


def _compare_picture(reported: str, own: str, pixels: Tensor, is_heatmap: bool) -> str | None:
    """What is wrong with a reported picture. own: as this machine stores pixels uint8 (C, H, W)."""
    if reported == own:
        return None
    if is_exact(reported) != is_exact(own):
        return f"a picture that starts with {reported[:30]!r}, expected {own.partition(',')[0]}"
    _, height, width = pixels.shape
    try:
        shown = pixels_in(reported, (len(pixels) if is_exact(own) else 3, height, width))
    except DataError as error:
        return str(error)
    if is_exact(own):
        same = _same_heat(shown, pixels) if is_heatmap else shown.equal(pixels)
    else:
        same = _same_with_loss(shown, pixels_in(own), pixels, is_heatmap)
    return None if same else "one picture"


def _same_heat(shown: Tensor, pixels: Tensor) -> bool:
    """Whether two heatmaps stored without loss, uint8 (3, H, W), differ by rounding only."""
    apart = (shown.float() - pixels.float()).abs()
    return bool(
        apart.max() <= HEATMAP_PIXEL
        and _means(apart).max() <= HEATMAP_SQUARE
        and apart.mean(dim=(1, 2)).max() <= HEATMAP_MEAN
    )


def _same_with_loss(shown: Tensor, own: Tensor, pixels: Tensor, is_heatmap: bool) -> bool:
    """Whether a picture is one of these pixels, uint8 (C, H, W). own: our encoding of them."""
    shown, own, pixels = shown.float(), own.float(), pixels.float()  # the first two (3, H, W)
    # For other rounding.
    of_pixel, of_square, of_all = (HEATMAP_PIXEL, HEATMAP_SQUARE, HEATMAP_MEAN) if is_heatmap else (0, 0, 0)
    error, own_error = (shown - pixels).abs(), (own - pixels).abs()
    most = torch.minimum(_means(own_error) + LOSSY_MORE, 1.5 * _means(own_error) + LOSSY_LEAST) + of_square
    apart, ranges = shown - own, _ranges(pixels)
    most_of_pixel = (FLAT_PIXEL + PIXEL_SHARE * ranges + of_pixel).clamp(max=LOSSY_PIXEL)
    most_of_stroke = (FLAT_STROKE + STROKE_SHARE * ranges + of_square).clamp(max=LOSSY_STROKE)
    return bool(
        (_means(error) <= most).all()
        and error.mean() <= own_error.mean() + LOSSY_WHOLE + of_all
        and _means(apart).abs().max() <= LOSSY_MEAN + of_square
        and (_largest(apart.abs()) <= most_of_pixel).all()
        and all((_largest(means.abs()) <= most_of_stroke).all() for means in _strokes(apart))
    )


def _means(values: Tensor) -> Tensor:
    """Of each square of values (C, H, W)."""
    return avg_pool2d(values, SQUARE, ceil_mode=True, count_include_pad=False)


def _largest(values: Tensor) -> Tensor:
    """Of each square of values (C, H, W)."""
    return max_pool2d(values, SQUARE, ceil_mode=True)


def _ranges(pixels: Tensor) -> Tensor:
    """From the darkest to the brightest level in each square of pixels (C, H, W) and those around it."""
    brightest, darkest = (max_pool2d(_largest(values), 3, 1, 1) for values in (pixels, -pixels))
    return (brightest + darkest).amax(dim=0)


def _strokes(values: Tensor) -> Iterator[Tensor]:
    """The means of values (C, H, W) along strokes through each pixel: across, down and both diagonals."""
    reach, (_, height, width) = STROKE // 2, values.shape
    padded = pad(values, [reach] * 4)
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        steps = [(reach + step * down, reach + step * right) for step in range(-reach, reach + 1)]
        shifted = (padded[:, top : top + height, left : left + width] for top, left in steps)
        yield sum(shifted, torch.zeros_like(values)) / STROKE


def _text_difference(where: str, reported: str, found: str) -> Difference:
    """The part in which two texts start to differ, with invisible characters written out, and all blanks but one."""
    start = max(0, _first_difference(reported, found) - CONTEXT)
    texts = [("..." if start else "") + text[start : start + LONGEST] for text in (reported, found)]
    shown = ["".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text) for text in texts]
    return Difference(
        where=where, reported=visible_name(shown[0]) or "nothing", found=visible_name(shown[1]) or "nothing"
    )
