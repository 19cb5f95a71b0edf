"""A report read back from its file: the manifest field by field, the pixels of its pictures, the page in pieces."""

import html
import json
import math
import re
import reprlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch
from torch import Tensor

from memwrap.errors import DataError
from memwrap.explain.attribution import BASELINES, METHODS
from memwrap.report.page import (
    DEMO_TITLE,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_ID,
    NUMBER,
    HeatmapOptions,
    Manifest,
    title_of,
)
from memwrap.report.pictures import pixels_in
from memwrap.report.tokens import END, RAW, START, TEXT, Token, tokens
from memwrap.version import __version__

LARGEST_LABEL = 2**63 - 1  # that a tensor holds

_HEADINGS = ("h1", "h2", "h3")


@dataclass(frozen=True)
class Piece:
    """A token of a page, what is known of its meaning, and where it stands."""

    token: Token
    is_number: bool  # a text that is computed, and may be rounded differently elsewhere
    where: str


@dataclass(frozen=True)
class Report:
    """What a file holds: its manifest, the pixels of its pictures, uint8 (N, C, H, W), and the page itself."""

    manifest: Manifest
    pixels: Tensor
    pieces: tuple[Piece, ...]


class PageReader:
    """Takes a page to pieces, and keeps what it carries."""

    def __init__(self, text: str) -> None:
        self.pieces: list[Piece] = []
        self.inputs: list[str] = []
        self.manifest = ""
        self._element: Token | None = None  # that a text is in, if it comes right after its tag
        self._heading: str | None = None  # what has been read of one
        self._section = self._part = self._article = ""
        self._row: str | None = None  # its first text; empty until that comes
        steps = {START: self._start, END: self._end, TEXT: self._text, RAW: self._raw}
        for token in tokens(text):
            steps.get(token.kind, self._add)(token)

    def _start(self, token: Token) -> None:
        if token.tag in _HEADINGS:
            self._heading = ""
        if token.tag == "article":
            self._article = self._part = (token.attribute("id") or "").replace("-", " ")
        if token.tag in (*_HEADINGS, "article", "tr", "dt", "table"):
            self._row = "" if token.tag in ("tr", "dt") else None
        if token.tag == "img" and token.attribute("data-input") is not None:
            self.inputs.append(token.attribute("src") or "")
        self._element = token
        self._add(token)

    def _end(self, token: Token) -> None:
        self._element = None
        if token.tag in _HEADINGS and self._heading is not None:
            self._end_heading(token.tag, self._heading.strip())
        if token.tag in ("article", "table", "dl"):
            self._row = None
        self._add(token)

    def _text(self, token: Token) -> None:
        words = " ".join(html.unescape(token.source).split())
        if self._heading is not None:
            self._heading += words
        if self._row == "":
            self._row = words
        self._add(token)

    def _raw(self, token: Token) -> None:
        if self._element is not None and self._element.attribute("id") == MANIFEST_ID:
            self.manifest += token.source
        self._add(token)

    def _end_heading(self, tag: str, words: str) -> None:
        self._heading = None
        if tag != "h3":
            self._section, self._part, self._article = words, "", ""
        else:
            self._part = f"{self._article} ({words})" if self._article else words

    def _add(self, token: Token) -> None:
        classes = (self._element.attribute("class") or "").split() if self._element is not None else []
        is_number = token.kind == TEXT and NUMBER in classes
        places = [place for place in (self._section, self._part, self._row) if place]
        self.pieces.append(Piece(token, is_number, ", ".join(places) or "the head of the page"))


def read(text: str) -> Report:
    """A report, from the text of its file; a DataError says why it is none."""
    reader = PageReader(text)
    manifest = _manifest(reader.manifest)
    if len(reader.inputs) != len(manifest.names):
        raise DataError(f"it names {len(manifest.names)} images and holds {len(reader.inputs)}: the report is damaged")
    pixels = [pixels_in(uri) for uri in reader.inputs]
    if shapes := {tuple(each.shape) for each in pixels[1:]} - {tuple(pixels[0].shape)}:
        raise _damaged(f"one of its images is of shape {tuple(pixels[0].shape)}, another of {min(shapes)}")
    return Report(manifest, torch.stack(pixels), tuple(reader.pieces))


def _manifest(text: str) -> Manifest:
    if not text.strip():
        raise _damaged("it has no manifest")
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"its manifest is no JSON ({error})") from error
    if not isinstance(stored, dict):
        raise _damaged(f"its manifest is {reprlib.repr(stored)}; expected fields and their values")
    _check_format(stored)
    stored = {name: value for name, value in stored.items() if name not in ("format", "format_version")}
    _check_fields(stored, _KINDS)
    if (labels := stored["labels"]) is not None and len(labels) != len(stored["names"]):
        raise _damaged(f"its manifest has {len(labels)} labels and {len(stored['names'])} names; expected as many")
    if (options := stored["heatmaps"]) is not None:
        _check_fields(options, _HEATMAP_KINDS, "heatmaps.")
    if (title := stored["title"]) not in (expected := title_of(stored["run"]), DEMO_TITLE):
        raise _damaged(
            f"the field title of its manifest is {reprlib.repr(title)}; expected the name of its run, {expected!r}"
        )
    return Manifest(
        **{
            **stored,
            "names": tuple(stored["names"]),
            "labels": None if labels is None else tuple(labels),
            "heatmaps": None if options is None else HeatmapOptions(**options),
        }
    )


def _check_format(stored: dict[str, Any]) -> None:
    if stored.get("format") != FORMAT:
        raise _damaged(f"the field format of its manifest is {reprlib.repr(stored.get('format'))}; expected {FORMAT!r}")
    if type(version := stored.get("format_version")) is not int or version != FORMAT_VERSION:
        maker = stored.get("memwrap_version")
        raise DataError(
            f"the report has format version {version!r}, made by memwrap {maker}; memwrap {__version__} makes and "
            f"verifies version {FORMAT_VERSION}: verify it with the memwrap that made it"
        )


@dataclass(frozen=True)
class _Kind:
    """What a field has to be for a page to be made with it; whether it is right shows then."""

    words: str
    fits: Callable[[Any], bool]


def _all_are(kind: type, values: Any) -> bool:
    return all(type(value) is kind for value in values)  # true is no whole number here


def _are_labels(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and _all_are(int, value) and all(0 <= label <= LARGEST_LABEL for label in value)
    )


def _are_seeds(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= {"run", "deletion"} and _all_are(int, value.values())


def _is_time(value: Any) -> bool:
    """As a report writes it, in full; so nothing else can stand there."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\+00:00", value):
        return False
    try:
        return datetime.fromisoformat(value).isoformat(timespec="seconds") == value
    except ValueError:
        return False


def _is_version(value: Any) -> bool:
    form = r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}((a|b|rc|\.dev|\.post)[0-9]{1,4})*"
    return isinstance(value, str) and re.fullmatch(form, value) is not None


def _one_of(names: Collection[str]) -> "_Kind":
    return _Kind(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_COUNT = _Kind("a whole number above 0", lambda value: type(value) is int and value > 0)

_KINDS = {
    "memwrap_version": _Kind("a version, such as 0.1.0", _is_version),
    "created": _Kind("a time, such as 2026-01-31T12:00:00+00:00", _is_time),
    "run": _TEXT,
    "title": _TEXT,
    "hashes": _Kind("texts by their names", lambda value: isinstance(value, dict) and _all_are(str, value.values())),
    "seeds": _Kind("whole numbers by their names, run and deletion among them", _are_seeds),
    "names": _Kind(
        "a list of texts, not empty", lambda value: isinstance(value, list) and value != [] and _all_are(str, value)
    ),
    "labels": _Kind("null, or a list of whole numbers from 0 on", _are_labels),
    "shown": _COUNT,
    "heatmaps": _Kind("null, or fields and their values", lambda value: value is None or isinstance(value, dict)),
}
_HEATMAP_KINDS = {
    "method": _one_of(METHODS),
    "baseline": _one_of(BASELINES),
    "tolerance": _Kind(
        "a number above 0", lambda value: type(value) in (int, float) and math.isfinite(value) and value > 0
    ),
    "max_steps": _COUNT,
}


def _check_fields(stored: dict[str, Any], kinds: dict[str, _Kind], within: str = "") -> None:
    """within: what stands before the names of fields of another one."""
    for name, kind in kinds.items():
        if name not in stored:
            raise _damaged(f"the field {within}{name} is missing in its manifest; expected {kind.words}")
        if not kind.fits(stored[name]):
            given = reprlib.repr(stored[name])
            raise _damaged(f"the field {within}{name} of its manifest is {given}; expected {kind.words}")
    if others := stored.keys() - kinds.keys():
        raise _damaged(f"its manifest has a field {within}{min(others)}, which no report of this version has")


def _damaged(what: str) -> DataError:
    return DataError(f"it is no report of memwrap's, or a damaged one: {what}")
