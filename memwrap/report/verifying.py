"""Whether a report says what its run says: the page is made again from what it carries, and the two are compared."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import islice, zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from memwrap.data.published import Progress
from memwrap.errors import DataError, brief
from memwrap.report.making import DELETION_SEED, Source, content_for, hashes, page_for, pictures_of
from memwrap.report.page import FORMAT, FORMAT_VERSION, MANIFEST_ID, NUMBER, HeatmapOptions, Manifest
from memwrap.report.pictures import is_exact, pixels_in
from memwrap.version import __version__

TOLERANCE = "one unit of the last digit shown"
MOST_LISTED = 100  # differences
# How far pictures may lie apart, in levels of 255. Heatmaps are rounded. What is stored with loss looks a little
# different by another version of the library, so there means over small squares are compared.
HEATMAP_LEVELS, LOSSY_LEVELS, SQUARE = 16, 12, 8

_NUMBER = re.compile(r"[-−+]?\d+(?:\.\d+)?")
_IMAGE = "data:image/"
_HEADINGS = ("h1", "h2", "h3")


@dataclass(frozen=True)
class Difference:
    """Something in a report that does not hold: where, what it says, and what was found."""

    where: str
    reported: str
    found: str


@dataclass(frozen=True)
class Piece:
    """A part of a page: a text, a number in the text, a tag with its attributes, ...; and where it stands."""

    kind: str
    content: Any
    where: str


@dataclass(frozen=True)
class Report:
    """What a file holds: its manifest, the pixels of its pictures, uint8 (N, C, H, W), and the page itself."""

    manifest: Manifest
    pixels: Tensor
    pieces: tuple[Piece, ...]


class _Reader(HTMLParser):
    """Takes a page to pieces, and keeps what it carries."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[Piece] = []
        self.inputs: list[str] = []
        self.manifest = ""
        self._kind = "text"  # of the next text
        self._heading: str | None = None  # what has been read of one
        self._section = self._part = self._article = ""
        self._row: str | None = None  # its first text; empty until that comes
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in _HEADINGS:
            self._heading = ""
        if tag == "article":
            self._article = self._part = (given.get("id") or "").replace("-", " ")
        if tag in (*_HEADINGS, "article", "tr", "dt", "table"):
            self._row = "" if tag in ("tr", "dt") else None
        if tag == "img" and "data-input" in given:
            self.inputs.append(given.get("src") or "")
        self._kind = "number" if NUMBER in (given.get("class") or "").split() else "text"
        if tag == "script" and given.get("id") == MANIFEST_ID:
            self._kind = "manifest"
        self._add("tag", (tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self._kind = "text"
        if tag in _HEADINGS and self._heading is not None:
            self._end_heading(tag, self._heading.strip())
        if tag in ("article", "table", "dl"):
            self._row = None
        self._add("end", tag)

    def handle_data(self, data: str) -> None:
        if self._kind == "manifest":
            self.manifest += data
        if not data.strip():
            return
        if self._heading is not None:
            self._heading += data
        if self._row == "":
            self._row = data.strip()
        self._add(self._kind, " ".join(data.split()))

    def handle_comment(self, data: str) -> None:
        self._add("comment", data)

    def handle_decl(self, decl: str) -> None:
        self._add("declaration", decl)

    def handle_pi(self, data: str) -> None:
        self._add("instruction", data)

    def unknown_decl(self, data: str) -> None:
        self._add("declaration", data)

    def _end_heading(self, tag: str, words: str) -> None:
        self._heading = None
        if tag != "h3":
            self._section, self._part, self._article = words, "", ""
        else:
            self._part = f"{self._article} ({words})" if self._article else words

    def _add(self, kind: str, content: Any) -> None:
        places = [place for place in (self._section, self._part, self._row) if place]
        self.pieces.append(Piece(kind, content, ", ".join(places) or "the head of the page"))


def read(text: str) -> Report:
    """A report, from the text of its file; a DataError says why it is none."""
    reader = _Reader(text)
    try:
        manifest = _manifest(json.loads(reader.manifest))
        pixels = torch.stack([pixels_in(uri) for uri in reader.inputs])
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise DataError(f"it is no report of memwrap's, or a damaged one ({brief(error)})") from error
    if len(pixels) != len(manifest.names):
        raise DataError(f"it names {len(manifest.names)} images and holds {len(pixels)}: the report is damaged")
    return Report(manifest, pixels, tuple(reader.pieces))


def _manifest(stored: dict[str, Any]) -> Manifest:
    if stored.pop("format") != FORMAT:
        raise ValueError("it is of another format")
    if (version := stored.pop("format_version")) != FORMAT_VERSION:
        raise DataError(
            f"the report has format version {version}, made by memwrap {stored.get('memwrap')}; memwrap {__version__} "
            f"makes and verifies version {FORMAT_VERSION}: verify it with the memwrap that made it"
        )
    options = stored.pop("heatmaps")
    stored["names"] = tuple(stored["names"])
    stored["labels"] = None if stored["labels"] is None else tuple(stored["labels"])
    manifest = Manifest(**stored, heatmaps=None if options is None else HeatmapOptions(**options))
    _check_kinds(manifest)
    return manifest


def _check_kinds(manifest: Manifest) -> None:
    """Whether the page can be made with it; whether it is right shows then."""
    options, labels = manifest.heatmaps or HeatmapOptions(), manifest.labels or ()
    words = (manifest.memwrap, manifest.created, manifest.run, manifest.title, options.method, options.baseline)
    counts = (manifest.shown, options.max_steps, manifest.seeds["run"], manifest.seeds["deletion"], *labels)
    if not all(isinstance(each, str) for each in (*words, *manifest.names, *manifest.hashes.values())):
        raise TypeError("a text in its manifest is none")
    if not all(type(each) is int for each in counts) or type(options.tolerance) is not float:
        raise TypeError("a number in its manifest is none")
    if manifest.shown < 1 or (manifest.labels is not None and len(labels) != len(manifest.names)):
        raise ValueError("its manifest contradicts itself")


def verify(report: Report, source: Source, progress: Progress | None = None) -> list[Difference]:
    """What does not hold in a report, in the order of the page; nothing if all does."""
    manifest = report.manifest
    if wrong := _other_sources(manifest, source, hashes(source.model, pictures_of(manifest, report.pixels))):
        return wrong
    content = content_for(manifest, source, report.pixels, progress)
    again = _Reader(page_for(manifest, content, source, progress)).pieces
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


def _difference(reported: Piece | None, found: Piece | None) -> Difference | None:
    if reported is None or found is None:
        return Difference("the end of the page", _shown(reported), _shown(found))
    if reported.kind != found.kind:
        return Difference(found.where, _shown(reported), _shown(found))
    if found.kind == "tag":
        return _difference_of_tags(reported, found)
    same = _same_numbers if found.kind == "number" else str.__eq__
    return None if same(reported.content, found.content) else _told(found.where, reported.content, found.content)


def _difference_of_tags(reported: Piece, found: Piece) -> Difference | None:
    (tag, given), (other, expected) = reported.content, found.content
    if tag != other or [name for name, _ in given] != [name for name, _ in expected]:
        return Difference(found.where, _shown(reported), _shown(found))
    for (name, value), (_, right) in zip(given, expected, strict=True):
        if not _comparison(tag, name, str(right))(str(value), str(right)):
            return _told(found.where, f"{name} {value}", f"{name} {right}")
    return None


def _comparison(tag: str, attribute: str, value: str) -> Callable[[str, str], bool]:
    if value.startswith(_IMAGE):
        return lambda one, other: _same_pictures(one, other, levels=0 if tag == "image" else HEATMAP_LEVELS)
    return _same_numbers if attribute == "style" else str.__eq__


def _same_numbers(one: str, other: str) -> bool:
    """The same words around numbers that differ by a unit of their last digit; whole numbers not at all."""
    if _NUMBER.sub("0", one) != _NUMBER.sub("0", other):
        return False
    return all(_close(*pair) for pair in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True))


def _close(one: str, other: str) -> bool:
    digits = {len(number.partition(".")[2]) for number in (one, other)}
    if digits == {0} or len(digits) > 1:
        return one == other
    first, second = (float(number.replace("−", "-")) for number in (one, other))
    return abs(first - second) <= 1.001 * 10.0 ** -digits.pop()


def _same_pictures(one: str, other: str, levels: int) -> bool:
    """levels: by which pixels may differ, where nothing is lost in storing them."""
    if one == other:
        return True
    try:
        first, second = pixels_in(one), pixels_in(other)
    except DataError:
        return False
    if first.shape != second.shape:
        return False
    apart = first.float() - second.float()
    if not (is_exact(one) and is_exact(other)):
        apart, levels = avg_pool2d(apart, SQUARE, ceil_mode=True, count_include_pad=False), LOSSY_LEVELS
    return bool(apart.abs().max() <= levels)


def _told(where: str, reported: str, found: str) -> Difference:
    """Of long texts that part in which they begin to differ."""
    if _IMAGE in reported or _IMAGE in found:
        return Difference(where, "one picture", "another picture")
    pairs = zip_longest(reported, found)
    start = max(0, next(place for place, (one, other) in enumerate(pairs) if one != other) - 60)
    return Difference(where, *(("..." if start else "") + text[start : start + 160] for text in (reported, found)))


def _shown(piece: Piece | None) -> str:
    if piece is None:
        return "nothing"
    if piece.kind == "tag":
        tag, attributes = piece.content
        return f"<{' '.join([tag, *(f'{name}={str(value)[:40]!r}' for name, value in attributes)])}>"[:160]
    return f"</{piece.content}>" if piece.kind == "end" else str(piece.content)[:160]
