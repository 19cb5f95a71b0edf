"""Whether a report says what its run says: the page is made again from what it carries, and the two are compared."""

import html
import re
from dataclasses import dataclass
from itertools import islice, zip_longest

from torch import Tensor
from torch.nn.functional import avg_pool2d

from memwrap.data import Progress
from memwrap.errors import DataError
from memwrap.models.classifier import MemoryClassifier
from memwrap.report.making import DELETION_SEED, Source, content_for, hashes, page_for, pictures_of
from memwrap.report.page import Manifest
from memwrap.report.pictures import is_exact, pixels_in
from memwrap.report.reading import PageReader, Piece, Report
from memwrap.report.tokens import START, Token

MOST_LISTED = 100  # differences
HEATMAP_LEVELS = 16  # of 255, by which a pixel of a heatmap may differ, as it is rounded; one of a picture by none
# What is stored with loss looks a little different by another version of the library. So there each pixel may differ by
# some levels; squares of pixels by fewer, in their mean, and in how far their pixels lie apart on average, which a
# bright line beside a dark one has. Encoded with other efforts and qualities (78 to 84), photos, noise and heatmaps
# had up to 46, 8.4 and 13.2 levels.
SQUARE, LOSSY_MEAN, LOSSY_APART, LOSSY_PIXEL = 8, 12, 16, 56

# As a report writes them: no zeros before, no other digits than these.
_NUMBER = re.compile(r"[−+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_IMAGE = "data:image/"
_MAP = "heatmap"  # the class of their elements


@dataclass(frozen=True)
class Difference:
    """Something in a report that does not hold: where, what it says, and what was found."""

    where: str
    reported: str
    found: str


def verify(report: Report, source: Source, progress: Progress | None = None) -> list[Difference]:
    """What does not hold in a report, in the order of the page; nothing if all does."""
    manifest = report.manifest
    _check_fit(report, source.model)
    if wrong := _other_sources(manifest, source, hashes(source.model, pictures_of(manifest, report.pixels))):
        return wrong
    content = content_for(manifest, source, report.pixels, progress)
    again = PageReader(page_for(manifest, content, source, progress)).pieces
    found = (_difference(*pair) for pair in zip_longest(report.pieces, again))
    return list(islice((difference for difference in found if difference is not None), MOST_LISTED))


def _other_sources(manifest: Manifest, source: Source, found: dict[str, str]) -> list[Difference]:
    """Where a report was made from something else; then there is no use in making it again."""
    stated = {f"the hash of the {name}": value for name, value in manifest.hashes.items()}
    stated |= {f"the seed of the {name}": str(value) for name, value in manifest.seeds.items()}
    known = {f"the hash of the {name}": value for name, value in found.items()}
    known |= {"the seed of the run": str(source.seed), "the seed of the deletion": str(DELETION_SEED)}
    return [
        Difference(name, stated.get(name, "nothing"), known.get(name, "nothing"))
        for name in {**stated, **known}
        if stated.get(name) != known.get(name)
    ]


def _check_fit(report: Report, model: MemoryClassifier) -> None:
    """Whether the model can judge what the report carries at all."""
    shape, classes = tuple(report.pixels.shape[1:]), model.layer.num_classes
    expected = tuple(model.get_transform().shape)
    if shape != expected:
        raise DataError(
            f"the report's images are of shape {shape}, the run's model takes {expected}: the "
            "report is damaged, or of another run; give that with --run"
        )
    if (largest := max(report.manifest.labels or (0,))) >= classes:
        raise DataError(
            f"the report labels an image {largest}, the run's model has classes 0 to {classes - 1}: the report is "
            "damaged, or of another run; give that with --run"
        )


def _difference(reported: Piece | None, found: Piece | None) -> Difference | None:
    if reported is None or found is None:
        return Difference("the end of the page", _shown(reported), _shown(found))
    said, right = reported.token, found.token
    if said.source == right.source:
        return None
    if said.kind != right.kind:
        return Difference(found.where, _shown(reported), _shown(found))
    if right.kind == START:
        return _difference_of_tags(said, right, found.where)
    if found.is_number and _same_numbers(said.source, right.source):
        return None
    return _told(found.where, said.source, right.source)


def _difference_of_tags(said: Token, right: Token, where: str) -> Difference | None:
    given, expected = said.attributes, right.attributes
    if said.tag != right.tag or [name for name, _ in given] != [name for name, _ in expected]:
        return Difference(where, _tag_shown(said), _tag_shown(right))
    for (name, value), (_, wanted) in zip(given, expected, strict=True):
        if value == wanted:
            continue
        if value is None or wanted is None:
            return Difference(where, _tag_shown(said), _tag_shown(right))
        if wanted.startswith(_IMAGE):
            levels = HEATMAP_LEVELS if _MAP in (right.attribute("class") or "").split() else 0
            if wrong := _wrong_in_picture(value, wanted, levels):
                return Difference(where, wrong, "another picture")
        elif name != "style" or not _same_numbers(value, wanted):
            return _told(where, f"{name} {value}", f"{name} {wanted}")
    return None


def _same_numbers(one: str, other: str) -> bool:
    """The same words around numbers that differ by a unit of their last digit; whole numbers not at all."""
    if _NUMBER.sub("0", one) != _NUMBER.sub("0", other):
        return False
    return all(_close(*pair) for pair in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True))


def _close(one: str, other: str) -> bool:
    if one == other:
        return True
    digits = {len(number.partition(".")[2]) for number in (one, other)}
    if digits == {0} or len(digits) > 1:
        return False
    first, second = (float(number.replace("−", "-")) for number in (one, other))
    for number, value in ((one, first), (other, second)):
        if number[0] in "−+" and value == 0:
            return False  # which no report writes
    signed = {number[0] in "−+" for number in (one, other)}
    if len(signed) > 1 and first != 0 != second:
        return False
    return abs(first - second) <= 1.001 * 10.0 ** -digits.pop()


def _wrong_in_picture(reported: str, found: str, levels: int) -> str | None:
    """What is reported instead of the picture that was found. levels: by which pixels without loss may differ."""
    if is_exact(reported) != is_exact(found):
        expected = found.partition(",")[0]
        return f"a picture in the report cannot be trusted: it begins with {reported[:30]!r}, expected {expected}"
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


def _told(where: str, reported: str, found: str) -> Difference:
    """Of long texts that part in which they begin to differ; as people read them, if that tells them apart."""
    read = html.unescape(reported), html.unescape(found)
    reported, found = read if read[0] != read[1] else (reported, found)
    pairs = zip_longest(reported, found)
    start = max(0, next(place for place, (one, other) in enumerate(pairs) if one != other) - 60)
    return Difference(
        where, *(_visible(("..." if start else "") + text[start : start + 160]) for text in (reported, found))
    )


def _shown(piece: Piece | None) -> str:
    if piece is None:
        return "nothing"
    return _tag_shown(piece.token) if piece.token.kind == START else _visible(piece.token.source[:160])


def _tag_shown(token: Token) -> str:
    """With the beginning of each value: some are pictures."""
    values = (name if value is None else f'{name}="{value[:40]}"' for name, value in token.attributes)
    return _visible(f"<{' '.join([token.tag, *values])}>"[:160])


def _visible(text: str) -> str:
    """With characters that one cannot see written out, as a difference may be nothing else."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\u{ord(each):04x}" for each in text).strip()
