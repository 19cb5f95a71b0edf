"""Verification: an untouched report is genuine, and no edit or forgery of what a reader sees passes."""

import base64
import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from torch import Tensor, nn

from memwrap import DataError, MemoryClassifier, __version__
from memwrap.report import (
    Difference,
    HeatmapOptions,
    Inputs,
    ReportRecord,
    Verification,
    read_record,
    render,
    verification,
    verify,
)
from memwrap.report.create import create_report, hashes, memory_pixels
from memwrap.report.pictures import blend, exact_uri, heat_colours, pixels_in, small_uri, to_image
from tests.report import STEPS, ReportWorld, is_genuine, make_report, network, noise
from tests.report.forgeries import drawn_on, with_pictures, with_strokes
from tests.report.test_page import stored_in, with_record
from tests.report.test_pictures import photos, smooth, uri_of

TAG = re.compile(r"(<[^>]*>)")  # names are escaped, so no tag holds another >
COARSE = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())  # for larger pictures
NUMBER = re.compile(r"(?<!&#)(?<![\d.])\d+(?:\.\d+)?")  # but not in &#39;


def found_in(page: str, world: ReportWorld) -> tuple[Difference, ...]:
    """The differences; there are some if, and only if, the report is not genuine."""
    result = verify(page, world.source)
    assert result.equal == (result.page == "equal" and not result.differences)
    assert result.differences or result.page != "different"
    return result.differences


@pytest.fixture(scope="session")
def small() -> ReportWorld:
    """Two inputs, one of them unsure, one wrong without a warning, and all else that a page may show."""
    world = make_report(network(0, memory=16), noise(3)[1:], shown=1, heatmaps=STEPS)
    record = world.record
    assert len(record.uncertain) == len(record.confidently_wrong) == 1
    assert record.unused
    assert all(each.hidden_samples(1) for each in record.explanations)
    return world


@pytest.fixture
def computed_once(small: ReportWorld, monkeypatch: pytest.MonkeyPatch) -> ReportWorld:
    """The run is not asked again for each of many edits: that it gives the same record is for another test."""
    pixels = {name: pixels_in(uri) for name, uri in small.record.pictures.items()}
    monkeypatch.setattr(verification, "create_with_pixels", lambda *_, **__: (small.record, pixels))
    return small


def edits(page: str, change: Callable[[str], Iterator[str]], kind: str) -> Iterator[tuple[str, str]]:
    """Pages in which one text or tag is changed, with what was there. Pictures and scripts stay."""
    pieces = TAG.split(page)  # texts and tags in turn, a text first
    inside = ""
    for place, piece in enumerate(pieces):
        if place % 2 == 1:
            inside = piece
        is_raw = inside.startswith(("<script", "<style", "<image"))
        if (kind == "tag") != (place % 2 == 1) or is_raw:
            continue
        for other in change(piece):
            yield "".join([*pieces[:place], other, *pieces[place + 1 :]]), piece


def other_numbers(text: str) -> Iterator[str]:
    """The text with one of its numbers changed, by one unit of the last digit."""
    for match in NUMBER.finditer(text):
        number = match[0]
        digits = len(number.partition(".")[2])
        yield f"{text[: match.start()]}{float(number) + 10.0**-digits:.{digits}f}{text[match.end() :]}"


# An untouched report


@pytest.mark.parametrize("heatmaps", [None, STEPS], ids=["plain", "heatmaps"])
@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "unlabelled"])
def test_an_untouched_report_is_genuine(model: MemoryClassifier, heatmaps: Any, labelled: bool) -> None:
    world = make_report(model, noise(3), labelled=labelled, heatmaps=heatmaps)
    assert verify(world.page, world.source) == Verification(
        equal=True, page="equal", memwrap_version=__version__, images=3, differences=(), similar=0
    )


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 72, 72)], ids=["gray", "with loss"])
def test_other_pictures_are_genuine_too(shape: tuple[int, int, int]) -> None:
    world = make_report(network(shape=shape, memory=5, encoder=COARSE), noise(2, shape), heatmaps=STEPS)
    assert is_genuine(world.page, world)


def test_a_memory_of_one_and_names_that_are_no_text_are_genuine_too() -> None:
    names = ("caf\udce9.png", "two  blanks\r\n\tand a line")
    world = make_report(network(memory=1), noise(2), names=names, memory_names=None)
    assert is_genuine(world.page.encode().decode(), world)


def doubtful(error: float) -> MemoryClassifier:
    """Whose probabilities are far from one, where rounding shows. error: of the weights, as a share."""
    model, generator = network(memory=30), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.layer.parameters():
            parameter *= 0.3 * (1 + error * torch.randn(parameter.shape, generator=generator))
    model.remember(model.transform(noise(30, seed=1)), torch.arange(30) % 4)
    return model


@pytest.mark.parametrize(("error", "genuine"), [(2e-7, True), (1e-3, False)])
def test_a_machine_that_rounds_differently_finds_it_genuine(
    monkeypatch: pytest.MonkeyPatch, error: float, genuine: bool
) -> None:
    """Hashes aside, as here the model is another."""
    world = make_report(doubtful(0.0), noise(12), heatmaps=STEPS)
    source = replace(world.source, model=doubtful(error))
    monkeypatch.setattr(verification, "hashes", lambda *_: world.record.hashes)
    result = verify(world.page, source)
    assert result.page == "equal"
    assert result.equal == genuine
    if not genuine:
        assert any(re.search(r"image \d+ .*: probability", each.where) for each in result.differences)


# Edits of the page


@pytest.mark.parametrize("kind", ["text", "tag"])
def test_every_number_on_the_page_counts(computed_once: ReportWorld, kind: str) -> None:
    """Also widths of bars, labels of pictures, links, and which picture is shown."""
    pages = list(edits(computed_once.page, other_numbers, kind))
    assert [before for page, before in pages if is_genuine(page, computed_once)] == []
    assert len(pages) > 100


def test_every_word_attribute_and_tag_counts(computed_once: ReportWorld) -> None:
    seen: set[str] = set()

    def longer(text: str) -> Iterator[str]:
        if text.strip():
            yield f"{text.rstrip()}x"

    def changed(tag: str) -> Iterator[str]:
        if tag not in seen:  # of many cells, one is enough
            yield from ("", tag + tag)
            yield from (f"{tag[: match.end(1)]}x{tag[match.end(1) :]}" for match in re.finditer(r'="([^"]*)"', tag))
        seen.add(tag)

    pages = [*edits(computed_once.page, longer, "text"), *edits(computed_once.page, changed, "tag")]
    assert [before for page, before in pages if is_genuine(page, computed_once)] == []
    assert len(pages) > 300


def test_a_row_that_is_missing_or_added_is_found(computed_once: ReportWorld) -> None:
    page = computed_once.page
    for row in re.finditer(r"<tr>.*?</tr>\n?", page, re.DOTALL):
        assert found_in(page[: row.start()] + page[row.end() :], computed_once)
        assert found_in(page[: row.end()] + row[0] + page[row.end() :], computed_once)


@pytest.mark.parametrize(
    "addition", ["<!-- seen -->", "<?php echo 1 ?>", "<![CDATA[1]]>", "<!ELEMENT a>", "<p>1</p>", "1"]
)
def test_additions_are_found(computed_once: ReportWorld, addition: str) -> None:
    page = computed_once.page
    for place in (page.index("<ul class"), page.index("<article"), page.index("</main>")):
        assert found_in(page[:place] + addition + page[place:], computed_once)


# Source that a browser may read differently from a parser


def swallowed(page: str, first: str, second: str) -> str:
    """Change the end tags of two rows so that a browser reads all between them as one attribute."""
    start = page.index("</tr>", page.index("<tbody>", page.index("<article")))
    end = page.index("</tr>", start + 5)
    return page[:start] + first + page[start + 5 : end] + second + page[end + 5 :]


def instead(old: str, new: str) -> Callable[[str], str]:
    def changed(page: str) -> str:
        assert old in page
        return page.replace(old, new, 1)

    return changed


ATTACKS: dict[str, Callable[[str], str]] = {
    "row in an end tag": lambda page: swallowed(page, "</tr x='>", "</tr '>"),
    "row in an end tag, other quotes": lambda page: swallowed(page, '</tr x=">', '</tr ">'),
    "row in a comment": lambda page: swallowed(page, "</tr><!--", "--></tr>"),
    "row in a comment that ends oddly": lambda page: swallowed(page, "</tr><!-- --!>", "<!----></tr>"),
    "attribute of an end tag": instead("</h3>", '</h3 x="">'),
    "open quote in an end tag": instead("</h3>", '</h3 x=">'),
    "slash in an end tag": instead("</p>", "</p/>"),
    "slash and more in an end tag": instead("</p>", "</p/x>"),
    "line in an end tag": instead("</h3>", "</h3\n>"),
    "capitals in an end tag": instead("</h3>", "</H3>"),
    "capitals in a tag": instead("<h2 ", "<H2 "),
    "empty comment": instead("</h3>", "</h3><!-->"),
    "empty comment with a dash": instead("</h3>", "</h3><!--->"),
    "empty end tag": instead("</h3>", "</h3></>"),
    "end tag with a blank": instead("</h3>", "</h3></ x>"),
    "end tag at the end": instead("</html>", "</html></p"),
    "open comment at the end": instead("</html>", "</html><!--"),
    "open tag at the end": instead("</html>", "</html><p"),
    "instruction": instead("</h3>", "</h3><?x>"),
    "CDATA": instead("</h3>", "</h3><![CDATA[x]]>"),
    "open quote": instead('<p class="soft">', '<p class="soft>'),
    "no quotes": instead('<p class="soft">', "<p class=soft>"),
    "other quotes": instead('<p class="soft">', "<p class='soft'>"),
    "slash for a blank": instead('<p class="soft">', '<p/class="soft">'),
    "closed by itself": instead('<td class="bars">', '<td class="bars"/>'),
    "attribute twice": instead('<p class="soft">', '<p class="soft" class="soft">'),
    "attribute twice, another first": instead('<p class="soft">', '<p class="skip" class="soft">'),
    "one more attribute": instead('<p class="soft">', '<p class="soft" hidden>'),
    "attribute without a value": instead('<p class="soft">', "<p class>"),
    "two blanks": instead('<p class="soft">', '<p  class="soft">'),
    "stray <": instead("Summary</h2>", "Summary< /h2></h2>"),
    "stray >": instead("Summary</h2>", "Summary></h2>"),
    "NUL in a text": instead("Summary</h2>", "Sum\0mary</h2>"),
    "NUL in a tag": instead('<p class="soft">', '<p\0 class="soft">'),
    "NUL in an attribute": instead('<p class="soft">', '<p class="soft\0">'),
    "character by its number": instead("Summary</h2>", "&#83;ummary</h2>"),
    "blank that does not break": instead("How to read", "How to\u00a0read"),
    "blank that cannot be seen": instead("Summary</h2>", "Sum\u200bmary</h2>"),
    "blanks": instead("How to read", "How  to read"),
    "byte order mark": lambda page: "\ufeff" + page,
    "style: another blank": instead(".bar { display: block", ".bar\u00a0{ display: block"),
    "style: all blanks": lambda page: re.sub(
        "<style>.*</style>", lambda match: match[0].replace(" ", "\u00a0"), page, flags=re.DOTALL
    ),
    "style: other lines": lambda page: re.sub(
        "<style>.*</style>", lambda match: match[0].replace("\n", "\x1c"), page, flags=re.DOTALL
    ),
    "style: one more blank": instead(".bar { display: block", ".bar {  display: block"),
    "script: a line that ends a comment": instead("// A link to", "// A\u2028link to"),
    "script: one more blank": instead('"use strict";', '"use strict"; '),
    "script that ends early": instead('"use strict";', '"use strict";</script >'),
    "line ends of another system": lambda page: page.replace("\n", "\r\n"),
    "end of the file": lambda page: page[:-1],
    "line after the end": lambda page: page + "\n",
    "blank before the start": lambda page: " " + page,
    "bar": instead('style="width:100.0%"', 'style="width:100.0%;display:none"'),
    "bar of another length": instead('style="width:100.0%"', 'style="width:0100.0%"'),
}


@pytest.mark.parametrize("attack", [*ATTACKS, "style", "script", "doctype", "name"])
def test_source_that_looks_different_from_what_it_says_is_found(computed_once: ReportWorld, attack: str) -> None:
    others = {
        "style": instead("</style>", ".against { display: none }\n</style>"),
        "script": instead('"use strict";', '"use strict"; alert(1);'),
        "doctype": instead("<!DOCTYPE html>", "<!DOCTYPE html5>"),
        "name": instead("&lt;img src=x onerror=alert(1)&gt;", "<img src=x onerror=alert(1)>"),
    }
    attacked = {**ATTACKS, **others}[attack](computed_once.page)
    assert attacked != computed_once.page
    differences = found_in(attacked, computed_once)
    assert differences[0].reported != differences[0].found


def test_a_report_that_is_cut_anywhere_is_not_genuine(computed_once: ReportWorld) -> None:
    page = computed_once.page
    for place in range(0, len(page), len(page) // 97):
        assert not is_genuine(page[:place], computed_once), place


# What is reported


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        (r"<b>2</b> images", "page, Summary"),
        (r'<b class="number">(\d+\.\d) %', "page, Summary"),
        (r"Unsure \((\d+)\)", "page, Images"),
        (r'id="name-2">picture 1', "page, image 2"),
        (r"Not used \((\d+)\)", "page, Memory"),
        (r"run (7), deletion", "page, Where this comes from"),
        (r"<!DOCTYPE html()>", "page, head"),
    ],
)
def test_the_place_of_an_edit_is_reported(computed_once: ReportWorld, pattern: str, where: str) -> None:
    page = computed_once.page
    match = re.search(pattern, page)
    (difference,) = found_in(page[: match.end() - 1] + "99" + page[match.end() - 1 :], computed_once)
    assert difference.where == where
    assert "99" in difference.reported
    assert "99" not in difference.found


def test_differences_are_bounded_and_show_the_part_that_differs(computed_once: ReportWorld) -> None:
    page = computed_once.page
    assert len(found_in(page.replace("\n", " \n"), computed_once)) == verification.MOST_LISTED
    (difference,) = found_in(page.replace("is not linear,", "is linear,"), computed_once)
    assert difference.where == "page, How to read this"
    assert difference.reported.startswith("...")
    assert "layer is linear" in difference.reported
    assert "layer is not linear" in difference.found
    assert max(map(len, (difference.reported, difference.found))) < 200


# Forged records: page and record agree, and the run does not


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in pairs:
            yield from leaves(each, (*path, name))
    else:
        yield path


def get(stored: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        stored = stored[name]
    return stored


def forge(world: ReportWorld, path: tuple[Any, ...], value: Any) -> str:
    """A page with another value in its record, rendered from it."""

    def change(stored: dict[str, Any]) -> None:
        get(stored, path[:-1])[path[-1]] = value

    return render(read_record(with_record(world.page, change)))


def other_value(value: Any) -> Any:
    """Different in kind or by more than the tolerance of heatmap numbers."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value + 0.0011
    return 1 if value is None else value + 1 if isinstance(value, int) else f"{value}x"


# Taken from the report itself; the options decide what is computed.
OWN = ("run", "created", "memwrap_version", "shown", "heatmaps")


def test_every_value_of_a_forged_record_counts(computed_once: ReportWorld) -> None:
    page = computed_once.page
    stored = json.loads(page[slice(*stored_in(page))])
    missed, forged = [], 0
    for path in (path for path in leaves(stored) if path[0] not in OWN):
        try:
            changed = forge(computed_once, path, other_value(get(stored, path)))
        except DataError:
            continue  # a value that no report has
        forged += 1
        if is_genuine(changed, computed_once):
            missed.append(path)
    assert missed == []
    assert forged > 200


@pytest.mark.parametrize(
    ("path", "change", "genuine"),
    [
        (("explanations", 0, "probability"), 9e-6, True),
        (("explanations", 0, "probability"), 2e-5, False),
        (("explanations", 0, "samples", 0, "weight"), -2e-5, False),
        (("explanations", 1, "samples", 1, "effect"), 2e-5, False),
        (("explanations", 0, "heatmap", "deletion", "score"), 9e-4, True),
        (("explanations", 0, "heatmap", "deletion", "score"), 2e-3, False),
    ],
)
def test_numbers_agree_within_their_tolerance(
    computed_once: ReportWorld, path: tuple[Any, ...], change: float, genuine: bool
) -> None:
    value = get(json.loads(computed_once.page[slice(*stored_in(computed_once.page))]), path)
    result = verify(forge(computed_once, path, value + change), computed_once.source)
    assert result.page == "equal"
    assert result.equal == genuine
    if not genuine:
        (difference,) = result.differences
        field = ".".join(map(str, path[2:])).replace(".0.", "[0].").replace(".1.", "[1].")
        assert difference.where == f"image {path[1] + 1} (picture {path[1]}.png): {field}"
        assert (float(difference.reported), float(difference.found)) == pytest.approx((value + change, value))


def test_samples_in_another_order_or_left_out_are_found(computed_once: ReportWorld) -> None:
    samples = computed_once.record.explanations[0].samples

    def forged(*others: Any) -> tuple[Difference, ...]:
        first, second = computed_once.record.explanations
        changed = computed_once.changed(explanations=(first.model_copy(update={"samples": others}), second))
        return found_in(changed.page, computed_once)

    assert forged(*samples) == ()
    assert "samples[1].index" in " ".join(
        each.where for each in forged(samples[0], samples[2], samples[1], *samples[3:])
    )
    difference = forged(*samples[:-1])[0]
    assert (difference.reported, difference.found) == (f"{len(samples) - 1} entries", f"{len(samples)} entries")


def test_options_decide_what_is_computed(model: MemoryClassifier) -> None:
    """Another number of samples to show, or other options of heatmaps, need other pictures and numbers."""
    world = make_report(model, noise(2), heatmaps=STEPS)
    assert not is_genuine(render(world.record.model_copy(update={"heatmaps": replace(STEPS, max_steps=3)})), world)
    assert not is_genuine(world.changed(shown=5).page, world)


def test_a_record_that_is_written_differently_is_found(computed_once: ReportWorld) -> None:
    """True for 1, or without a blank."""
    for old, new in (
        ('"shown": 1', '"shown": true'),
        ('"shown": 1', '"shown":1'),
    ):
        page = computed_once.page
        assert old in page
        (difference,) = found_in(page.replace(old, new, 1), computed_once)
        assert new in difference.reported


@pytest.mark.parametrize("field", ["path", "label"])
def test_other_names_or_labels_are_found_by_the_hash_of_the_inputs(model: MemoryClassifier, field: str) -> None:
    """Though page, record and run agree on all else."""
    world = make_report(model, noise(2))
    names, labels = (("a.png", "b.png"), [0, 1]) if field == "path" else (world.inputs.names, [2, 2])
    forged = replace(world, inputs=Inputs(noise(2), names, labels))
    again = create_report(world.source, forged.inputs, shown=3)
    (difference,) = found_in(render(again.model_copy(update={"hashes": world.record.hashes})), world)
    assert difference.where == "hashes.inputs"


def test_a_verdict_on_heatmaps_may_not_differ_though_its_numbers_agree(
    model: MemoryClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_report(model, noise(1), heatmaps=HeatmapOptions(method="saliency"))
    deletion = world.record.explanations[0].heatmap.deletion
    # The heatmap fails its check by less than its numbers may differ.
    monkeypatch.setattr("memwrap.explain.record.SOONER", deletion.random_score - deletion.score + 5e-4)
    assert "Do not rely" in world.page
    forged = forge(world, ("explanations", 0, "heatmap", "deletion", "random_score"), deletion.random_score + 9e-4)
    assert "Do not rely" not in forged
    (difference,) = found_in(forged, world)
    assert difference.where == "image 1 (picture 0.png): heatmap.reliable"
    assert (difference.reported, difference.found) == ("True", "False")


# Versions


def test_a_page_by_another_version_is_genuine_only_if_it_renders_the_same(
    model: MemoryClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "__version__", "0.10.1rc2")
    world = make_report(model, noise(1))
    for version in ("0.2.0", "0.9.12", "0.10.0", "0.10.1rc2"):
        result = verify(world.changed(memwrap_version=version).page, world.source)
        assert (result.equal, result.page, result.memwrap_version) == (True, "equal", version)
    for version in ("0.1.9", "0.10.1", "0.10.1rc1"):
        result = verify(world.changed(memwrap_version=version).page, world.source)
        assert (result.equal, result.page) == (False, "not checked")
    other = world.changed(memwrap_version="0.9.12")
    edited = other.page.replace("may be wrong, too", "may not be wrong")
    result = verify(edited, world.source)
    assert (result.equal, result.page, result.differences) == (False, "not checked", ())
    (first,) = other.record.explanations
    forged = other.changed(explanations=(first.model_copy(update={"probability": 0.9}),)).page
    result = verify(forged.replace("may be wrong, too", "may not be wrong"), world.source)
    assert (result.equal, result.page, len(result.differences)) == (False, "not checked", 1)


# Pictures


def memory_pictures(record: ReportRecord) -> dict[str, str]:
    return {name: uri for name, uri in record.pictures.items() if name.startswith("memory-")}


def test_pictures_that_are_swapped_are_found(computed_once: ReportWorld) -> None:
    pictures = computed_once.record.pictures
    one, other, *_ = memory_pictures(computed_once.record)
    swapped = computed_once.changed(pictures={**pictures, one: pictures[other], other: pictures[one]})
    assert [each.where for each in found_in(swapped.page, computed_once)] == [f"picture {one}", f"picture {other}"]


def test_a_pixel_of_a_memory_picture_that_is_a_level_brighter_is_found(computed_once: ReportWorld) -> None:
    pictures = computed_once.record.pictures
    for name, uri in memory_pictures(computed_once.record).items():
        pixels = pixels_in(uri)
        pixels[0, 2, 1] = pixels[0, 2, 1] - 1 if pixels[0, 2, 1] else 1
        changed = computed_once.changed(pictures={**pictures, name: exact_uri(pixels)})
        (difference,) = found_in(changed.page, computed_once)
        assert difference.where == f"picture {name}"


@pytest.mark.parametrize(
    "uri", ["data:image/png;base64,iVBORw0KGgoAAAANSUhEUg==", "data:image/png;base64,", "data:image/svg+xml,%3Csvg/%3E"]
)
def test_a_memory_picture_that_is_none_is_found(computed_once: ReportWorld, uri: str) -> None:
    name = next(iter(memory_pictures(computed_once.record)))
    changed = computed_once.changed(pictures={**computed_once.record.pictures, name: uri})
    (difference,) = found_in(changed.page, computed_once)
    assert difference.where == f"picture {name}"
    assert not is_genuine(computed_once.page.replace(computed_once.record.pictures[name], "https://a.b"), computed_once)


def test_an_input_that_is_replaced_is_found_by_its_hash(reported: ReportWorld) -> None:
    pictures = {**reported.record.pictures, "input-3": exact_uri(noise(1, seed=99)[0])}
    (difference,) = found_in(reported.changed(pictures=pictures).page, reported)
    assert (difference.where, difference.reported) == ("hashes.inputs", reported.record.hashes.inputs)


def with_chunk(kind: bytes, data: bytes) -> Callable[[Image.Image], str]:
    """A PNG with one more part before its pixels."""

    def changed(picture: Image.Image) -> str:
        content = base64.b64decode(uri_of(picture, "PNG").partition(",")[2])
        part = struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        place = content.index(b"IDAT") - 4
        return "data:image/png;base64," + base64.b64encode(content[:place] + part + content[place:]).decode()

    return changed


def by_palette(picture: Image.Image) -> str:
    """Indices are the grey levels, but each is shown as its opposite."""
    indices = Image.fromarray(np.asarray(picture), "P")
    indices.putpalette([255 - level for level in range(256) for _ in range(3)])
    return uri_of(indices, "PNG")


def turned(kind: str) -> Callable[[Image.Image], str]:
    """With an orientation, by which a browser turns it upside down."""
    exif = Image.Exif()
    exif[0x0112] = 3
    return lambda picture: uri_of(picture, kind, exif=exif)


def damaged_pixels(picture: Image.Image) -> str:
    """With a wrong check sum: Pillow reads it all the same, and a browser shows less."""
    content = bytearray(base64.b64decode(uri_of(picture, "PNG").partition(",")[2]))
    content[content.index(b"IEND") - 5] ^= 1
    return "data:image/png;base64," + base64.b64encode(content).decode()


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
TRICKS: dict[str, tuple[Callable[[Image.Image], str], str]] = {
    "palette": (by_palette, "PLTE"),
    "transparency": (with_chunk(b"tRNS", b"\0\0"), "tRNS"),
    "gamma": (with_chunk(b"gAMA", struct.pack(">I", 10_000)), "gAMA"),
    "chromaticity": (with_chunk(b"cHRM", struct.pack(">8I", *range(10_000, 90_000, 10_000))), "cHRM"),
    "code points": (with_chunk(b"cICP", bytes([9, 16, 0, 1])), "cICP"),
    "rendering intent": (with_chunk(b"sRGB", b"\0"), "sRGB"),
    "colour profile": (lambda picture: uri_of(picture, "PNG", icc_profile=PROFILE), "iCCP"),
    "orientation": (turned("PNG"), "eXIf"),
    "a second frame": (lambda picture: moving(picture, "PNG"), "acTL"),
    "sixteen bits": (lambda picture: uri_of(picture.convert("I;16"), "PNG"), "colour type 0 with 16 bits"),
    "one bit": (lambda picture: uri_of(picture.convert("1"), "PNG"), "colour type 0 with 1 bits"),
    "alpha": (lambda picture: uri_of(picture.convert("LA"), "PNG"), "colour type 4 with 8 bits"),
    "check sum": (damaged_pixels, "the check sum of its part IDAT is wrong"),
    "WebP, orientation": (turned("WEBP"), "VP8X"),
    "WebP, colour profile": (lambda picture: uri_of(picture, "WEBP", icc_profile=PROFILE), "VP8X"),
    "WebP, a second frame": (lambda picture: moving(picture, "WEBP"), "VP8X"),
    "WebP without loss": (lambda picture: uri_of(picture, "WEBP", lossless=True), "VP8L"),
    "JPEG": (lambda picture: uri_of(picture, "JPEG"), "data:image/jpeg"),
}


def moving(picture: Image.Image, kind: str) -> str:
    other = picture.transpose(Image.Transpose.ROTATE_180)
    return uri_of(picture, kind, save_all=True, append_images=[other], duration=1)


@pytest.fixture(scope="module")
def gray() -> ReportWorld:
    return make_report(network(shape=(1, 4, 4), memory=3), noise(2, (1, 4, 4)), shown=1)


@pytest.fixture(scope="module")
def lossy() -> ReportWorld:
    """With memory pictures that are stored with loss."""
    shape = (3, 72, 72)
    model = network(shape=shape, memory=3, encoder=COARSE)
    pixels = torch.stack([smooth(72, 72), smooth(72, 72).flip(1), smooth(72, 72).flip(2)])
    model.remember(model.transform(pixels), [0, 1, 2])
    world = make_report(model, noise(1, shape))
    assert world.record.pictures["memory-0"] == small_uri(smooth(72, 72))
    return world


def with_picture(world: ReportWorld, name: str, uri: str) -> tuple[Difference, ...]:
    return found_in(world.changed(pictures={**world.record.pictures, name: uri}).page, world)


@pytest.mark.parametrize("trick", TRICKS)
def test_a_picture_that_is_read_as_before_but_looks_different_is_found(
    gray: ReportWorld, lossy: ReportWorld, trick: str
) -> None:
    change, part = TRICKS[trick]
    with pytest.raises(DataError, match=part):
        with_picture(gray, "input-2", change(to_image(gray.inputs.pixels[1])))
    name = next(iter(memory_pictures(gray.record)))
    (difference,) = with_picture(gray, name, change(to_image(pixels_in(gray.record.pictures[name]))))
    # Where a PNG belongs, no WebP is accepted.
    assert ("expected data:image/png" if "WebP" in trick else part) in difference.reported
    if "WebP" in trick:
        (difference,) = with_picture(lossy, "memory-0", change(to_image(smooth(72, 72))))
        assert part in difference.reported


def test_a_picture_is_of_the_kind_that_belongs_there(gray: ReportWorld, lossy: ReportWorld) -> None:
    """What is stored with loss is not compared pixel by pixel, so it may not take the place of what is."""
    name, exact = next(iter(memory_pictures(gray.record).items()))
    (difference,) = with_picture(gray, name, uri_of(to_image(pixels_in(exact)), "WEBP", quality=100))
    assert "'data:image/webp;base64," in difference.reported
    assert difference.reported.endswith("expected data:image/png;base64")
    (difference,) = with_picture(lossy, "memory-0", exact_uri(smooth(72, 72)))
    assert difference.reported.endswith("expected data:image/webp;base64")


@pytest.mark.parametrize("trick", ["palette", "gamma", "chromaticity", "colour profile", "orientation", "check sum"])
def test_these_tricks_are_worth_finding(gray: ReportWorld, trick: str) -> None:
    """As the pixels that Pillow reads are the same."""
    pixels = gray.inputs.pixels[1]
    tricked = TRICKS[trick][0](to_image(pixels))
    with Image.open(io.BytesIO(base64.b64decode(tricked.partition(",")[2]))) as picture:
        assert torch.from_numpy(np.array(picture)).equal(pixels[0])


def test_another_heatmap_is_found_and_a_little_rounding_is_not(computed_once: ReportWorld) -> None:
    maps = {name: uri for name, uri in computed_once.record.pictures.items() if name.startswith("heatmap")}
    assert len(maps) > 4
    names = list(maps)
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        assert with_picture(computed_once, name, maps[other])
        near = pixels_in(maps[name]).int()
        near[:, 0, 0] += torch.where(near[:, 0, 0] < 128, 8, -8)
        assert with_picture(computed_once, name, exact_uri(near.to(torch.uint8))) == ()
        near[:, 1, 1] += torch.where(near[:, 1, 1] < 128, 8, -8)
        assert with_picture(computed_once, name, exact_uri(near.to(torch.uint8))), "one pixel too many"


@pytest.mark.parametrize("options", [{"quality": 82, "method": 6}, {"quality": 78, "method": 2}])
def test_a_picture_by_another_version_of_the_encoder_is_equal(lossy: ReportWorld, options: dict[str, int]) -> None:
    other = uri_of(to_image(smooth(72, 72)), "WEBP", **options)
    assert other != lossy.record.pictures["memory-0"]
    assert with_picture(lossy, "memory-0", other) == ()


def test_a_large_picture_that_is_another_is_found(lossy: ReportWorld) -> None:
    pixels = smooth(72, 72)
    painted, lines = pixels.clone(), pixels.int()
    painted[:, 40:46, 10:16] = 255
    # A bright line next to a dark one has the mean of the picture without them.
    for bright, dark in ((33, 34), (35, 36)):
        lines[:, bright, 24:40] += 50
        lines[:, dark, 24:40] -= 50
    assert (lines.min() >= 0) & (lines.max() <= 255)
    assert (lines - pixels).float()[:, 32:40, 24:40].mean(dim=(1, 2)).abs().max() == 0
    for other in (pixels.flip(1), painted, lines.to(torch.uint8)):
        (difference,) = with_picture(lossy, "memory-0", small_uri(other))
        assert (difference.where, difference.reported) == ("picture memory-0", "one picture")
    larger = to_image(pixels).resize((80, 80), Image.Resampling.BILINEAR)
    assert with_picture(lossy, "memory-0", uri_of(larger, "WEBP"))


def test_a_single_pixel_of_a_picture_with_loss_may_not_be_quite_another() -> None:
    """Among 64 pixels it hardly changes the mean or the mean difference."""
    pixels = smooth(72, 72)
    own = pixels_in(small_uri(pixels))
    painted = own.clone()
    painted[:, 40, 40] = 0
    assert 56 < own[:, 40, 40].min() < 64 * 2.5
    assert not verification._same_with_loss(painted, own, pixels, False)
    painted[:, 40, 40] = own[:, 40, 40] - 40
    assert verification._same_with_loss(painted, own, pixels, False)


def blurred(pixels: Tensor) -> Tensor:
    return nn.functional.avg_pool2d(pixels[None].float(), 9, 1, 4)[0].round().to(torch.uint8)


LOSSY_KINDS: dict[str, Callable[[], Tensor]] = {
    "photo": lambda: photos(1, seed=3)[0],
    "another photo": lambda: photos(1, seed=8)[0],
    "grey photo": lambda: photos(1, seed=5)[0, :1],
    "blurred photo": lambda: blurred(photos(1, seed=9)[0]),
    "noise": lambda: noise(1, (3, 96, 96))[0],
    "smooth": lambda: smooth(72, 72),
    "one colour": lambda: torch.full((3, 96, 96), 128, dtype=torch.uint8),
    "squares": lambda: (
        (torch.arange(96)[:, None] // 7 % 2 * 200 + torch.arange(96) // 5 % 2 * 40).expand(3, 96, 96).to(torch.uint8)
    ),
    "heatmap": lambda: blend(photos(1, seed=4)[0, :, ::2, ::2], noise(1, (1, 112, 112))[0, 0] / 255, heat_colours()),
}


@pytest.mark.parametrize("kind", LOSSY_KINDS)
def test_honest_encodings_are_within_the_bounds(kind: str) -> None:
    """At all efforts of the encoder, and at a quality that another version may use."""
    pixels = LOSSY_KINDS[kind]()
    for options in (
        *({"quality": 82, "method": method} for method in (0, 2, 4, 6)),
        *({"quality": quality, "method": 4} for quality in (81, 83)),
    ):
        other = uri_of(to_image(pixels), "WEBP", **options)
        assert verification._compare_picture(other, small_uri(pixels), pixels, False) is None, options


def test_pictures_of_another_encoder_are_counted() -> None:
    shape = (3, 96, 96)
    model = network(shape=shape, memory=3, encoder=COARSE)
    model.remember(model.transform(photos(3, seed=5)[:, :, :96, :96]), [0, 1, 2])
    world = make_report(model, noise(1, shape))
    assert verify(world.page, world.source).similar == 0
    name = next(name for name in world.record.pictures if name.startswith("memory"))
    pixels = memory_pixels(model)[int(name.split("-")[1])]
    other = with_pictures(world, {name: uri_of(to_image(pixels), "WEBP", quality=82, method=6)})
    found = verify(other, world.source)
    assert (found.equal, found.similar) == (True, 1)


@pytest.mark.parametrize(
    ("kind", "levels"),
    [("photo", 8), ("another photo", 8), ("grey photo", 8), ("blurred photo", 6), ("smooth", 8), ("one colour", 6)],
)
def test_a_digit_drawn_on_a_picture_with_loss_is_found_where_it_can_be_seen(kind: str, levels: int) -> None:
    pixels = LOSSY_KINDS[kind]()
    drawn = small_uri(drawn_on(pixels, levels))
    assert verification._compare_picture(drawn, small_uri(pixels), pixels, False) == "one picture"


@pytest.mark.parametrize("kind", ["one colour", "shape on one colour", "slight noise"])
@pytest.mark.parametrize("quality", [82, 100])
def test_thin_strokes_on_flat_ground_are_found(kind: str, quality: int) -> None:
    """They change few pixels of a square, and a better quality than our own leaves them room in its mean error."""
    pixels = torch.full((3, 96, 96), 180, dtype=torch.uint8)
    if kind == "shape on one colour":
        pixels[:, 20:44, 30:54] = 40
    elif kind == "slight noise":
        pixels = 178 + noise(1, (3, 96, 96))[0] % 5
    assert verification._compare_picture(small_uri(pixels), small_uri(pixels), pixels, False) is None
    for levels in (-28, -19, -13, 13, 19, 28):
        other = uri_of(to_image(with_strokes(pixels, levels)), "WEBP", quality=quality, method=6)
        assert verification._compare_picture(other, small_uri(pixels), pixels, False) == "one picture", levels


# Other runs


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 5, 4), (3, 4, 5)])
def test_images_that_the_model_does_not_take_are_refused(model: MemoryClassifier, shape: tuple[int, int, int]) -> None:
    world = make_report(model, noise(1))
    with pytest.raises(DataError) as error:
        with_picture(world, "input-1", exact_uri(noise(1, shape)[0]))
    assert str(shape) in str(error.value)
    assert "(3, 4, 4)" in str(error.value)


def test_images_of_two_sizes_are_refused(reported: ReportWorld) -> None:
    with pytest.raises(DataError) as error:
        with_picture(reported, "input-2", exact_uri(noise(1, (1, 5, 6))[0]))
    assert "(1, 5, 6)" in str(error.value)


@pytest.mark.parametrize("label", [4, -1, 10**30])
def test_a_label_that_is_no_class_is_refused(model: MemoryClassifier, label: int) -> None:
    world = make_report(model, noise(2))
    first, second = world.record.explanations
    changed = world.changed(explanations=(first, second.model_copy(update={"label": label})))
    with pytest.raises(DataError, match=f"image 2 has label {label}, the model has classes 0 to 3"):
        found_in(changed.page, world)


def test_another_run_is_reported_by_hashes_and_seed(model: MemoryClassifier) -> None:
    world = make_report(model, noise(2))
    others = verify(world.page, replace(world.source, model=network(seed=1), seed=8)).differences
    assert [each.where for each in others] == ["hashes.model", "hashes.memory", "seeds.run"]
    assert (others[2].reported, others[2].found) == ("7", "8")
    model.remembered.labels[0] = 3
    (difference,) = found_in(world.page, world)
    assert difference.where == "hashes.memory"
    assert difference.found == hashes(model, world.inputs).memory


def test_other_names_of_memory_images_are_found(model: MemoryClassifier) -> None:
    world = make_report(model, noise(1))
    others = verify(world.page, replace(world.source, memory_names=None)).differences
    assert any(each.where == "image 1 (picture 0.png): samples[0].file" for each in others)
    assert ".png" in others[0].reported
