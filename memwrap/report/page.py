"""A report as one HTML file that opens from disk without a network, and the way back from the file to its record."""

import functools
import json
import re
import reprlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memwrap.errors import DataError
from memwrap.explain.sentences import image_name, percent, points
from memwrap.report.picture_files import Shape
from memwrap.report.pictures import exact_size, scale_colours
from memwrap.report.record import FORMAT, FORMAT_VERSION, MOST_LISTED, ReportRecord, title_of
from memwrap.storage.files import read_file
from memwrap.storage.validation import parse_json, too_large
from memwrap.version import __version__
from memwrap.visible import visible_name

LARGEST_FILE = 1 << 26  # bytes
SCALE_STEPS = 9  # colours between which a browser mixes
LEAST_SHOWN = 0.0005  # of probability: a second class with less would show as 0.0 %

_RECORD = re.compile(r'<script type="application/json" id="record">([^<]*)</script>')
# What lies between is bounded, so that no page makes the search slow.
_PICTURE = re.compile(r'<image id="([a-z0-9-]{1,40})"[^<>]{0,200} href="(data:[^<>"]*)"></image>')
_OLD_RECORD = '<script type="application/json" id="manifest">'  # of memwrap 0.1.0


def render(record: ReportRecord) -> str:
    """The HTML page of a report. The same record gives the same page, byte for byte."""
    colours = scale_colours(SCALE_STEPS).tolist()
    page: str = _template().render(
        record=record,
        run_name=title_of(record.run),
        missing=_missing(record),
        most_listed=MOST_LISTED,
        least_shown=LEAST_SHOWN,
        heat_scale=", ".join(f"rgb({red} {green} {blue})" for red, green, blue in colours),
        record_json=_for_script(record.model_dump(mode="json", round_trip=True)),
    )
    return page


def page_content(record: ReportRecord) -> bytes:
    """The content of a report's file; a DataError if it is larger than `verify` reads."""
    page = render(record)
    content = page.encode()
    reason = f"has {len(content):,} bytes" if len(content) > LARGEST_FILE else None
    if reason := reason or too_large(page[page.rindex("<script type=") :]):
        raise DataError(
            f"the report is too large: it {reason}, expected at most {LARGEST_FILE:,} bytes; explain fewer images, or "
            "show fewer memory images for each"
        )
    return content


def check_inputs_fit(count: int, shape: Shape) -> None:
    """Raise a DataError if a page cannot hold so many inputs (C, H, W), which are stored without loss."""
    size, (_, height, width) = exact_size(shape), shape
    if count * size > LARGEST_FILE:
        raise DataError(
            f"the report would be too large: {count} images of {width} x {height} pixels take {count * size:,} bytes, "
            f"expected at most {LARGEST_FILE:,} bytes; explain at most {LARGEST_FILE // size} of them, by naming fewer "
            "or with --limit, or some less, as memory images need space, too"
        )


def read_page(path: Path) -> str:
    """The text of a report's file; a DataError says why it cannot be one."""
    try:
        return read_file(path, LARGEST_FILE, follow_links=True).decode()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); expected a report of memwrap explain --html") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a report of memwrap, or a damaged one ({error})") from error


def read_record(page: str) -> ReportRecord:
    """The record in a page; a DataError says why there is none. Whether the page shows that record is for `verify`."""
    if (found := _RECORD.search(page)) is None:
        if _OLD_RECORD in page:
            raise DataError(
                "the report was made by an earlier version of memwrap, which embeds no record; verify it with the "
                "version that is named at its end, or make the report again"
            )
        raise _damaged("it has no record")
    try:
        stored = parse_json(found[1])
    except (ValueError, RecursionError) as error:
        raise _damaged(f"its record cannot be read ({error})") from error
    if not isinstance(stored, dict):
        raise _damaged(f"its record is a {type(stored).__name__}; expected an object")
    _check_format(stored)
    try:
        return ReportRecord.model_validate({**stored, "pictures": dict(_PICTURE.findall(page))})
    except ValidationError as error:
        raise _damaged(f"its record is not valid: {_first_error(error)}") from error


def _check_format(stored: dict[str, Any]) -> None:
    kind, version = stored.get("format"), stored.get("format_version")
    if kind != FORMAT:
        raise _damaged(f"the format of its record is {reprlib.repr(kind)}; expected {FORMAT!r}")
    if version != FORMAT_VERSION:
        maker = reprlib.repr(stored.get("memwrap_version"))
        raise DataError(
            f"the report has format version {reprlib.repr(version)} and was made by memwrap {maker}; memwrap "
            f"{__version__} reads version {FORMAT_VERSION}: use the version that made it"
        )


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    given = "" if first["type"] in ("missing", "value_error") else f", given {reprlib.repr(first['input'])}"
    return f"{place}: {first['msg']}{given}".removeprefix(": ")


def _damaged(reason: str) -> DataError:
    return DataError(f"it is not a report of memwrap, or a damaged one: {reason}")


def _missing(record: ReportRecord) -> str:
    """What a reader may look for in the summary in vain; empty if all of it is there."""
    wrong = record.labelled and record.correct < len(record.explanations)
    missing = {
        "no errors": record.labelled and not wrong,
        "no unsure predictions": not record.uncertain,
        "no errors without a warning": wrong and not record.confidently_wrong,
    }
    return " and ".join(words for words, is_missing in missing.items() if is_missing)


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("memwrap.report", "templates"),
        autoescape=True,  # class and file names come from users
        finalize=lambda value: visible_name(value) if type(value) is str else value,  # and not of what is safe
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "image_name": image_name,
        "unbroken": lambda sentence: sentence.replace(" %", "\u00a0%").replace(" points", "\u00a0points"),
    }
    return environment.get_template("page.html")


def _for_script(values: Any) -> str:
    """JSON that no HTML parser ends early, whatever names are in it."""
    text = json.dumps(values)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
