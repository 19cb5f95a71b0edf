"""Verification: an untouched report is equal, and nothing that a reader can see may be changed unnoticed."""

import base64
import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from torch import nn

from memwrap import DataError, MemoryClassifier, MemwrapError
from memwrap.report import verifying
from memwrap.report.making import content_for, hashes, page_for
from memwrap.report.pictures import blended, exact_uri, heat_colours, picture_of, pixels_in, small_uri
from memwrap.report.reading import read
from memwrap.report.tokens import tokens
from memwrap.report.verifying import Difference, verify
from tests.report import HOSTILE, STEPS, ReportWorld, network, noise, told
from tests.report.test_pictures import photos, smooth, uri_of
from tests.report.test_reading import manifest_of, with_manifest

TAG = re.compile(r"(<[^>]*>)")  # names are escaped, so no tag holds another >
COARSE = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())  # for larger pictures
NUMBER = re.compile(r"(?<!&#)(?<![\d.])\d+(?:\.\d+)?")  # but not in &#39;


def found_in(text: str, world: ReportWorld) -> list[Difference]:
    return verify(read(text), world.source)


def is_found(text: str, world: ReportWorld) -> bool:
    """Whether anything is said against a report: that it differs, or that it is none."""
    try:
        return bool(found_in(text, world))
    except DataError:
        return True


@pytest.fixture(scope="session")
def small() -> ReportWorld:
    """Two pictures, one of them unsure, one wrong without a warning, and all else that a page may show."""
    world = told(network(0, memory=16), noise(3)[1:], shown=1, heatmaps=STEPS)
    content = world.content
    assert len(content.uncertain) == len(content.confidently_wrong) == 1
    assert content.never_used
    assert all(card.others for card in content.cards)
    assert any(isinstance(part, float) for card in content.cards for part in card.sentence_parts)
    return world


@pytest.fixture
def made_once(small: ReportWorld, monkeypatch: pytest.MonkeyPatch) -> ReportWorld:
    """The page is not made again for each of many edits; that the same comes out is another test's matter."""
    page, reader = small.page, verifying.PageReader
    again = reader(page)
    monkeypatch.setattr(verifying, "content_for", lambda *_: None)
    monkeypatch.setattr(verifying, "page_for", lambda *_: page)
    monkeypatch.setattr(verifying, "PageReader", lambda text: again if text is page else reader(text))
    return small


def parts(page: str) -> list[str]:
    """Texts and tags in turn, a text first."""
    return TAG.split(page)


def edits(page: str, change: Callable[[str], Iterator[str]], kind: str) -> Iterator[tuple[str, str, str]]:
    """Pages in which one text or tag is another, with what was there and what is now."""
    pieces = parts(page)
    inside = ""
    for place, piece in enumerate(pieces):
        if place % 2 == 1:
            inside = piece
        if (kind == "tag") != (place % 2 == 1) or (kind == "text" and inside.startswith(("<script", "<style"))):
            continue
        for other in change(piece):
            yield "".join([*pieces[:place], other, *pieces[place + 1 :]]), piece, other


def other_numbers(text: str) -> Iterator[str]:
    """The text with one of its numbers changed: a whole one by one, others by two units of the last digit."""
    for match in NUMBER.finditer(text):
        number = match[0]
        digits = len(number.partition(".")[2])
        changed = str(int(number) + 1) if digits == 0 else f"{float(number) + 2 * 10.0**-digits:.{digits}f}"
        yield text[: match.start()] + changed + text[match.end() :]


def visible_words(tag: str) -> str:
    """A tag without the pictures in it."""
    return re.sub(r'="data:[^"]*"', '=""', tag)


# An untouched report


@pytest.mark.parametrize("heatmaps", [None, STEPS], ids=["plain", "heatmaps"])
@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "unlabelled"])
def test_an_untouched_report_is_equal(model: MemoryClassifier, heatmaps: Any, labelled: bool) -> None:
    world = told(model, noise(3), labelled=labelled, heatmaps=heatmaps)
    assert found_in(world.page, world) == []


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 72, 72)], ids=["gray", "with loss"])
def test_other_pictures_are_equal_too(shape: tuple[int, int, int]) -> None:
    world = told(network(shape=shape, memory=5, encoder=COARSE), noise(2, shape), heatmaps=STEPS)
    assert found_in(world.page, world) == []


def test_a_memory_of_one_and_names_that_are_no_text_are_equal_too() -> None:
    names = ("caf\udce9.png", "two  blanks\r\n\tand a line")
    world = told(network(memory=1), noise(2), names=names, memory_names=None)
    assert found_in(world.page, world) == []
    assert found_in(world.page.encode().decode(), world) == []


def test_line_ends_of_another_system_do_not_matter(made_once: ReportWorld) -> None:
    assert found_in(made_once.page.replace("\n", "\r\n"), made_once) == []


def test_a_machine_that_rounds_differently_finds_it_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a card might, by which some last digits are others; hashes aside, as here the model is another."""
    world = told(doubtful(0.0), noise(12), heatmaps=STEPS)
    source, report = replace(world.source, model=doubtful(5e-6)), read(world.page)
    again = page_for(world.manifest, content_for(world.manifest, source, report.pixels), source)
    assert again != world.page
    monkeypatch.setattr(verifying, "_other_sources", lambda *_: [])
    assert verify(report, source) == []


def doubtful(error: float) -> MemoryClassifier:
    """Whose probabilities are far from one, where much hangs on the last bit. error: of the weights, as a share."""
    model, generator = network(memory=30), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.layer.parameters():
            parameter *= 0.3 * (1 + error * torch.randn(parameter.shape, generator=generator))
    model.remember(model.transform(noise(30, seed=1)), torch.arange(30) % 4)
    return model


# Every number, one at a time


def test_every_number_in_the_text_counts(made_once: ReportWorld) -> None:
    missed, count = [], 0
    for page, before, after in edits(made_once.page, other_numbers, "text"):
        count += 1
        if not is_found(page, made_once):
            missed.append((before, after))
    assert missed == []
    assert count > 150


def test_every_number_in_a_tag_counts(made_once: ReportWorld) -> None:
    """Widths of bars, descriptions of pictures, links, which picture is shown."""

    def changed(tag: str) -> Iterator[str]:
        words = visible_words(tag)
        pictures = re.findall(r'="(data:[^"]*)"', tag)
        for other in other_numbers(words):
            yield other.replace('=""', f'="{pictures[0]}"', 1) if pictures else other

    missed, count = [], 0
    for page, before, after in edits(made_once.page, changed, "tag"):
        count += 1
        if not is_found(page, made_once):
            missed.append((visible_words(before), visible_words(after)))
    assert missed == []
    assert count > 100


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        (r"<b>2</b> images", "Summary"),
        (r'<b class="number">(\d+\.\d) %', "Summary"),
        (r"accuracy: (\d+) of 2 right", "Summary"),
        (r"<b>(\d+)</b> unsure", "Summary"),
        (r"(\d+) of them never used", "Summary"),
        (r"Unsure \((\d+)\)", "Images"),
        (r"Never used \((\d+)\)", "Memory"),
        (r"run (7), deletion", "Where this comes from, seeds"),
        (r"<code>(\w{64})</code>", "Where this comes from, model"),
    ],
)
def test_the_place_of_a_difference_is_told(made_once: ReportWorld, pattern: str, where: str) -> None:
    (match,) = list(re.finditer(pattern, made_once.page))[:1]
    number = re.search(r"\d", match[0])
    place = match.start() + number.start()
    page = made_once.page
    edited = page[:place] + str((int(page[place]) + 3) % 10) + page[place + 1 :]
    first = found_in(edited, made_once)[0]
    assert first.where.startswith(where)
    assert first.reported != first.found


def test_a_number_of_an_image_is_told_with_its_row(made_once: ReportWorld) -> None:
    page = made_once.page
    start = page.index('<article id="image-2"')
    row = re.compile(r"#(\d+) \d+\.png.*?<td class=\"number\">(\d+\.\d) %", re.DOTALL).search(page, start)
    edited = page[: row.start(2)] + "99.9" + page[row.end(2) :]
    (difference,) = found_in(edited, made_once)
    assert difference == Difference(f"Images, image 2 (picture 1.png), #{row[1]} {row[1]}.png", "99.9 %", f"{row[2]} %")


def test_a_description_before_the_heading_belongs_to_the_image_too(made_once: ReportWorld) -> None:
    edited = made_once.page.replace('alt="the image picture 1.png"', 'alt="the image picture 5.png"')
    (difference,) = found_in(edited, made_once)
    assert difference == Difference("Images, image 2", "alt the image picture 5.png", "alt the image picture 1.png")


# The tolerance


def rounded_numbers(page: str) -> list[re.Match[str]]:
    pattern = r'(?:class="number">|style="width:)[−+]?(\d+\.\d)'
    return list(re.finditer(pattern, page))


@pytest.mark.parametrize(("units", "passes"), [(1, True), (2, False)])
def test_one_unit_of_the_last_digit_passes_and_two_do_not(made_once: ReportWorld, units: int, passes: bool) -> None:
    page, numbers = made_once.page, rounded_numbers(made_once.page)
    assert len(numbers) > 30
    for match in numbers:
        changed = f"{float(match[1]) + units / 10:.1f}"
        edited = page[: match.start(1)] + changed + page[match.end(1) :]
        assert (found_in(edited, made_once) == []) == passes, match[0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("12.3 %", "12.4 %", True),
        ("12.3 %", "12.5 %", False),
        ("12.3 %", "12.30 %", False),
        ("12.3 %", "12 %", False),
        ("99.9 %", "100.0 %", True),
        ("+0.1", "0.0", True),
        ("−0.1", "0.0", True),
        ("−0.1", "+0.1", False),
        ("−2.1", "2.1", False),
        ("12", "13", False),
        ("12", "12", True),
        ("-", "0.0", False),
        ("12.3 %", "12.3", False),
        ("0.30", "0.31", True),
        ("0.30", "0.32", False),
        ("29.5 %", "00000029.5 %", False),
        ("29.5 %", "٢٩.٥ %", False),
        ("29.5 %", "２9.5 %", False),
        ("29.5 %", "29.5\u00a0%", False),
        ("29.5 %", "+29.5 %", False),
        ("−2.1", "-2.1", False),
        ("0.0", "−0.0", False),
        ("0.0", "+0.0", False),
        ("29.5 %", "2e1 %", False),
    ],
)
def test_numbers_agree_to_a_unit_of_their_last_digit(one: str, other: str, same: bool) -> None:
    assert verifying._same_numbers(one, other) == same
    assert verifying._same_numbers(other, one) == same


def test_numbers_in_names_are_no_numbers_that_may_be_rounded(model: MemoryClassifier) -> None:
    model.classes = ("1234.5", "2345.5", "v3.1", "333.5 %")
    world = told(model, noise(3), names=("scan 1.5.png", "77.5", "77.3 %"))
    page = world.page
    assert found_in(page, world) == []
    for name in (*world.pictures.names, *model.classes):
        digit = re.search(r"\.(\d)", name)
        close = name[: digit.start(1)] + str(int(digit[1]) + 1) + name[digit.end(1) :]
        places = [match.start() for match in re.finditer(re.escape(f">{name}"), page)]
        assert places, name
        for place in places:
            assert is_found(f"{page[:place]}>{close}{page[place + 1 + len(name) :]}", world), name


# Everything else


def test_every_word_counts(made_once: ReportWorld) -> None:
    def longer(text: str) -> Iterator[str]:
        if text.strip():
            yield f"{text.rstrip()}x"

    assert [before for page, before, _ in edits(made_once.page, longer, "text") if not is_found(page, made_once)] == []


def test_every_attribute_counts(made_once: ReportWorld) -> None:
    def changed(tag: str) -> Iterator[str]:
        for match in re.finditer(r'="(?!data:)([^"]*)"', tag):
            yield f"{tag[: match.end(1)]}x{tag[match.end(1) :]}"

    assert [before for page, before, _ in edits(made_once.page, changed, "tag") if not is_found(page, made_once)] == []


def test_no_tag_may_be_missing_or_be_there_twice(made_once: ReportWorld) -> None:
    seen: set[str] = set()

    def changed(tag: str) -> Iterator[str]:
        if tag not in seen:  # of many cells, one is enough
            yield from ("", tag + tag)
        seen.add(tag)

    assert [before for page, before, _ in edits(made_once.page, changed, "tag") if not is_found(page, made_once)] == []


def rows_of(page: str) -> list[re.Match[str]]:
    return list(re.finditer(r"<tr>.*?</tr>\n?", page, re.DOTALL))


def test_a_row_that_is_missing_or_added_is_found(made_once: ReportWorld) -> None:
    page = made_once.page
    for row in rows_of(page):
        assert found_in(page[: row.start()] + page[row.end() :], made_once)
        assert found_in(page[: row.end()] + row[0] + page[row.end() :], made_once)


@pytest.mark.parametrize(
    "addition", ["<!-- seen -->", "<?php echo 1 ?>", "<![CDATA[1]]>", "<!ELEMENT a>", "<p>1</p>", "1"]
)
def test_additions_are_found(made_once: ReportWorld, addition: str) -> None:
    page = made_once.page
    for place in (page.index("<ul class"), page.index("<article"), page.index("</main>")):
        assert found_in(page[:place] + addition + page[place:], made_once)


def test_scripts_and_styles_are_part_of_it(made_once: ReportWorld) -> None:
    page = made_once.page
    hidden = page.replace("</style>", ".against { display: none }\n</style>")
    assert "display: none" in found_in(hidden, made_once)[0].reported
    assert found_in(page.replace('"use strict";', '"use strict"; alert(1);'), made_once)
    assert found_in(page.replace("<!DOCTYPE html>", "<!DOCTYPE html5>"), made_once)


def test_the_first_difference_comes_first_and_long_lists_end(made_once: ReportWorld) -> None:
    page = made_once.page
    spoiled = re.sub(r"(\d)\.(\d) %", lambda match: f"{match[1]}.{(int(match[2]) + 5) % 10} %", page)
    found = found_in(spoiled, made_once)
    assert found[0].where == "Summary"
    assert 10 < len(found) < verifying.MOST_LISTED
    assert len(found_in(page.replace("<tr>", "<tr><td></td>"), made_once)) == verifying.MOST_LISTED


def test_of_long_texts_the_part_that_differs_is_shown(made_once: ReportWorld) -> None:
    edited = made_once.page.replace("is not linear and", "is linear and")
    (difference,) = found_in(edited, made_once)
    assert difference.where == "How to read this"
    assert difference.reported.startswith("...")
    assert "layer is linear" in difference.reported
    assert "layer is not linear" in difference.found


# Source that a browser takes otherwise than it looks, or than Python's parser takes it


def swallowed(page: str, first: str, second: str) -> str:
    """The end tags of two rows are others, so that a browser takes all between them for one attribute."""
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
    "bar": instead('style="width:100.0%"', 'style="width:100.0%;display:none"'),
    "bar of another length": instead('style="width:100.0%"', 'style="width:0100.0%"'),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_source_that_looks_otherwise_than_it_reads_is_found(made_once: ReportWorld, attack: str) -> None:
    attacked = ATTACKS[attack](made_once.page)
    assert attacked != made_once.page
    differences = found_in(attacked, made_once)
    assert differences
    assert differences[0].reported != differences[0].found, "the two can be told apart"


def test_what_a_report_does_not_write_is_named(made_once: ReportWorld) -> None:
    first = found_in(ATTACKS["row in an end tag"](made_once.page), made_once)[0]
    assert (first.reported, first.found) == ("</tr x='>", "</tr>")
    assert first.where.startswith("Images, image 1 (picture 0.png), #")


def test_zeros_and_other_digits_before_a_number_are_found(made_once: ReportWorld) -> None:
    for match in rounded_numbers(made_once.page)[:3]:
        for other in (f"0000{match[1]}", match[1].translate({ord("0") + digit: 0x660 + digit for digit in range(10)})):
            assert found_in(made_once.page[: match.start(1)] + other + made_once.page[match.end(1) :], made_once)


def test_the_parts_of_a_page_put_together_are_the_page(made_once: ReportWorld) -> None:
    for page in (made_once.page, *(attack(made_once.page) for attack in ATTACKS.values())):
        assert "".join(token.source for token in tokens(page)) == page


# Pictures


def memory_pictures(page: str) -> list[str]:
    return re.findall(r'<image id="[^>]*href="(data:[^"]*)"', page)


def test_memory_pictures_that_are_swapped_are_found(made_once: ReportWorld) -> None:
    page = made_once.page
    one, other, *_ = memory_pictures(page)
    swapped = other.join(part.replace(other, one) for part in page.split(one))
    first, second = found_in(swapped, made_once)
    assert (first.reported, first.found) == ("one picture", "another picture")
    assert second.reported == "one picture"


def test_a_pixel_of_a_memory_picture_that_is_a_level_brighter_is_found(made_once: ReportWorld) -> None:
    page = made_once.page
    for uri in memory_pictures(page):
        pixels = pixels_in(uri)
        pixels[0, 2, 1] = pixels[0, 2, 1] - 1 if pixels[0, 2, 1] else 1
        assert found_in(page.replace(uri, exact_uri(pixels)), made_once)


def test_a_memory_picture_that_is_none_is_found(made_once: ReportWorld) -> None:
    page = made_once.page
    uri = memory_pictures(page)[0]
    for other in (uri[:60], "data:image/png;base64,", "https://example.com/a.png", "data:image/svg+xml,%3Csvg/%3E"):
        (difference,) = found_in(page.replace(uri, other), made_once)
        assert difference.reported.startswith("a picture in the report cannot be trusted: it ")


def test_an_input_that_is_replaced_is_told_by_its_hash(reported: ReportWorld) -> None:
    page = reported.page
    uri = exact_uri(reported.pictures.pixels[2])
    (difference,) = found_in(page.replace(uri, exact_uri(noise(1, seed=99)[0])), reported)
    assert difference.where == "the hash of the inputs"
    assert difference.reported == reported.manifest.hashes["inputs"]


def with_chunk(kind: bytes, data: bytes) -> Callable[[Image.Image], str]:
    """The picture as a PNG with one more part, before its pixels."""

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
    """A browser turns it upside down, as a camera may ask for."""
    exif = Image.Exif()
    exif[0x0112] = 3
    return lambda picture: uri_of(picture, kind, exif=exif)


def damaged_pixels(picture: Image.Image) -> str:
    """With a check sum that is wrong: Pillow reads it all the same, and a browser shows less."""
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
    return told(network(shape=(1, 4, 4), memory=3), noise(2, (1, 4, 4)), shown=1)


@pytest.mark.parametrize("trick", TRICKS)
def test_a_picture_that_is_read_as_before_but_looks_different_is_found(gray: ReportWorld, trick: str) -> None:
    change, words = TRICKS[trick]
    page = gray.page
    inputs = exact_uri(gray.pictures.pixels[1])
    with pytest.raises(DataError, match=words):
        found_in(page.replace(inputs, change(picture_of(gray.pictures.pixels[1]))), gray)
    remembered = memory_pictures(page)[0]
    tricked = change(picture_of(pixels_in(remembered)))
    (difference,) = found_in(page.replace(remembered, tricked), gray)
    # Where a PNG belongs, no WebP is looked at.
    assert ("expected data:image/png" if "WebP" in trick else words) in difference.reported
    assert difference.found == "another picture"


@pytest.mark.parametrize("trick", [trick for trick in TRICKS if "WebP" in trick])
def test_where_a_picture_with_loss_belongs_it_is_looked_at_too(lossy: ReportWorld, trick: str) -> None:
    change, words = TRICKS[trick]
    remembered = memory_pictures(lossy.page)[0]
    (difference,) = found_in(lossy.page.replace(remembered, change(picture_of(pixels_in(remembered)))), lossy)
    assert words in difference.reported


def test_a_picture_is_of_the_kind_that_belongs_there(small: ReportWorld, lossy: ReportWorld) -> None:
    """What is stored with loss is not compared pixel by pixel, so it may not take the place of what is."""
    page = small.page
    exact = memory_pictures(page)[0]
    faint = uri_of(picture_of(pixels_in(exact)), "WEBP", quality=100)
    (difference,) = found_in(page.replace(exact, faint), small)
    assert "begins with 'data:image/webp;base64," in difference.reported
    assert difference.reported.endswith("expected data:image/png;base64")
    with_loss = memory_pictures(lossy.page)[0]
    (difference,) = found_in(lossy.page.replace(with_loss, exact_uri(pixels_in(with_loss))), lossy)
    assert difference.reported.endswith("expected data:image/webp;base64")


@pytest.mark.parametrize("trick", ["palette", "gamma", "chromaticity", "colour profile", "orientation", "check sum"])
def test_these_tricks_are_worth_finding(gray: ReportWorld, trick: str) -> None:
    """As the pixels that Pillow reads are the same."""
    pixels = gray.pictures.pixels[1]
    tricked = TRICKS[trick][0](picture_of(pixels))
    with Image.open(io.BytesIO(base64.b64decode(tricked.partition(",")[2]))) as picture:
        assert torch.from_numpy(np.array(picture)).equal(pixels[0])


def test_another_heatmap_is_found_and_a_little_rounding_is_not(made_once: ReportWorld) -> None:
    page = made_once.page
    uris = re.findall(r'<img [^>]*alt="heatmap[^>]*src="(data:[^"]*)"', page)
    assert len(uris) > 5
    for uri, other in zip(uris, [*uris[1:], uris[0]], strict=True):
        assert found_in(page.replace(uri, other, 1), made_once)
        pixels = pixels_in(uri).int()
        near = (pixels + torch.tensor([2, -2, 3])[:, None, None]).clamp(0, 255).to(torch.uint8)
        assert found_in(page.replace(uri, exact_uri(near), 1), made_once) == []


@pytest.fixture(scope="module")
def lossy() -> ReportWorld:
    """With memory pictures that are stored with loss."""
    shape = (3, 72, 72)
    model = network(shape=shape, memory=3, encoder=COARSE)
    pixels = torch.stack([smooth(72, 72), smooth(72, 72).flip(1), smooth(72, 72).flip(2)])
    model.remember(model.transform(pixels), [0, 1, 2])
    return told(model, noise(1, shape))


def test_a_picture_by_another_version_of_the_library_is_equal(lossy: ReportWorld) -> None:
    page, pixels = lossy.page, smooth(72, 72)
    assert small_uri(pixels) in page
    for options in ({"quality": 82, "method": 6}, {"quality": 78, "method": 2}):
        other = uri_of(picture_of(pixels), "WEBP", **options)
        assert other not in page
        assert found_in(page.replace(small_uri(pixels), other), lossy) == []


def test_a_small_part_of_a_large_picture_that_is_another_is_found(lossy: ReportWorld) -> None:
    page, pixels = lossy.page, smooth(72, 72)
    assert found_in(page.replace(small_uri(pixels), small_uri(smooth(72, 72).flip(1))), lossy)
    painted = pixels.clone()
    painted[:, 40:46, 10:16] = 255
    assert found_in(page.replace(small_uri(pixels), small_uri(painted)), lossy)
    larger = picture_of(pixels).resize((80, 80), Image.Resampling.BILINEAR)
    assert found_in(page.replace(small_uri(pixels), uri_of(larger, "WEBP")), lossy)


def test_a_bright_line_beside_a_dark_one_in_a_picture_with_loss_is_found(lossy: ReportWorld) -> None:
    """Their mean is that of the picture without them."""
    page, pixels = lossy.page, smooth(72, 72)
    painted = pixels.int()
    for bright, dark in ((33, 34), (35, 36)):
        painted[:, bright, 24:40] += 50
        painted[:, dark, 24:40] -= 50
    assert painted.min() >= 0
    assert painted.max() <= 255
    means = (painted - pixels).float()[:, 32:40, 24:40].mean(dim=(1, 2))
    assert means.abs().max() == 0
    assert not verifying._look_alike(painted.float(), pixels.float(), None)
    edited = page.replace(small_uri(pixels), small_uri(painted.to(torch.uint8)))
    (difference,) = found_in(edited, lossy)
    assert (difference.reported, difference.found) == ("one picture", "another picture")


def test_a_single_pixel_of_a_picture_with_loss_may_not_be_quite_another(lossy: ReportWorld) -> None:
    """Of a square's 64 pixels, it changes neither the mean much nor how far they lie apart."""
    pixels = pixels_in(small_uri(smooth(72, 72))).float()
    painted = pixels.clone()
    painted[:, 40, 40] = 0
    assert 56 < pixels[:, 40, 40].min() < 64 * 12
    assert not verifying._look_alike(painted, pixels, None)
    painted[:, 40, 40] = pixels[:, 40, 40] - 50
    assert verifying._look_alike(painted, pixels, None)


@pytest.mark.parametrize("kind", ["photo", "noise", "smooth", "heatmap"])
def test_honest_encodings_lie_well_within_the_bounds(kind: str) -> None:
    """At all efforts of the encoder, and at a quality that it may take for another."""
    pixels = {
        "photo": photos(1, seed=3)[0],
        "noise": noise(1, (3, 96, 96))[0],
        "smooth": smooth(72, 72),
        "heatmap": blended(photos(1, seed=4)[0, :, ::2, ::2], noise(1, (1, 112, 112))[0, 0] / 255, heat_colours()),
    }[kind]
    own = small_uri(pixels)
    for options in ({"quality": 82, "method": 0}, {"quality": 82, "method": 6}, {"quality": 79, "method": 4}):
        other = uri_of(picture_of(pixels), "WEBP", **options)
        assert verifying._wrong_in_picture(other, own, 0) is None, options


# The manifest


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in pairs:
            yield from leaves(each, (*path, name))
    else:
        yield path


def put(stored: Any, path: tuple[Any, ...], value: Any) -> None:
    for name in path[:-1]:
        stored = stored[name]
    stored[path[-1]] = value


def got(stored: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        stored = stored[name]
    return stored


def test_every_value_of_the_manifest_counts(model: MemoryClassifier) -> None:
    world = told(model, noise(2), heatmaps=replace(STEPS, max_steps=1))
    page = world.page
    start, end = manifest_of(page)
    paths = list(leaves(json.loads(page[start:end])))
    assert len(paths) == 20
    for path in paths:

        def change(stored: dict[str, Any], path: tuple[Any, ...] = path) -> None:
            value = got(stored, path)
            put(stored, path, f"{value}x" if isinstance(value, str) else type(value)(value + 1))

        try:
            found = found_in(with_manifest(page, change), world)
        except MemwrapError as error:  # a method, say, that does not exist
            found = [error]
        assert found, path


@pytest.mark.parametrize("value", [None, 3, -1, 1.5, "x", "", [], {}, [None], ["x", 3], {"run": "x"}, True])
def test_a_manifest_of_the_wrong_kind_is_told_in_words(model: MemoryClassifier, value: Any) -> None:
    world = told(model, noise(2), heatmaps=replace(STEPS, max_steps=1))
    page = world.page
    start, end = manifest_of(page)
    stored = json.loads(page[start:end])
    for name in stored:
        if stored[name] == value or (name, value) == ("labels", None):
            continue
        edited = with_manifest(page, lambda stored, name=name: stored.update({name: value}))
        try:
            found: list[Any] = found_in(edited, world)
        except MemwrapError as error:  # which are meant for people
            found = [error]
        assert found, name


def test_a_manifest_that_is_written_otherwise_is_found(made_once: ReportWorld) -> None:
    page = made_once.page
    start, end = manifest_of(page)
    doubled = page[:start] + page[start:end].replace('"shown": 1', '"shown": 9, "shown": 1') + page[end:]
    (difference,) = found_in(doubled, made_once)
    assert '"shown": 9' in difference.reported


def test_hashes_and_seeds_that_nobody_knows_are_found(model: MemoryClassifier) -> None:
    world = told(model, noise(1))
    for name in ("hashes", "seeds"):
        manifest = replace(
            world.manifest, **{name: {**getattr(world.manifest, name), "luck": 13 if name == "seeds" else "a"}}
        )
        (difference,) = found_in(replace(world, manifest=manifest).page, world)
        assert difference.where.endswith("of the luck")
        assert difference.found == "nothing"


@pytest.mark.parametrize("field", ["names", "labels"])
def test_a_report_that_was_made_of_other_names_or_labels_is_found_by_the_hash(
    model: MemoryClassifier, field: str
) -> None:
    """Though page and manifest agree."""
    world = told(model, noise(2))
    others = {"names": ("a.png", "b.png"), "labels": (2, 2)}
    forged = replace(world, manifest=replace(world.manifest, **{field: others[field]}))
    content = content_for(forged.manifest, forged.source, forged.pictures.pixels)
    (difference,) = found_in(replace(forged, content=content).page, world)
    assert difference.where == "the hash of the inputs"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"title": "Certified by the FDA"}, "the field title of its manifest is 'Certified by the FDA'; expected the"),
        ({"created": "2020-01-01, audited by Dr. X"}, "the field created of its manifest is '2020-01-01, audited by"),
        ({"created": "2020-13-01T00:00:00+00:00"}, "expected a time, such as 2026-01-31T12:00:00+00:00"),
        ({"created": "2020-01-01"}, "expected a time"),
        ({"memwrap_version": "0.1.0, audited"}, "the field memwrap_version of its manifest is '0.1.0, audited'"),
        ({"memwrap_version": "٣.1"}, "expected a version, such as 0.1.0"),
    ],
)
def test_no_field_that_is_shown_takes_any_words(model: MemoryClassifier, fields: dict[str, str], words: str) -> None:
    """Though page and manifest agree."""
    world = told(model, noise(1))
    forged = replace(world, manifest=replace(world.manifest, **fields))
    with pytest.raises(DataError, match=re.escape(words)):
        found_in(forged.page, world)


def test_the_demo_has_a_title_of_its_own(model: MemoryClassifier) -> None:
    world = told(model, noise(1))
    assert found_in(replace(world, manifest=replace(world.manifest, title="memwrap demo")).page, world) == []


def test_a_label_that_is_no_class_is_told(model: MemoryClassifier) -> None:
    world = told(model, noise(2))
    pictures = replace(world.pictures, labels=torch.tensor([0, 4]))
    forged = replace(world.manifest, labels=(0, 4), hashes=hashes(model, pictures))
    edited = with_manifest(world.page, lambda stored: stored.update(json.loads(json.dumps(asdict(forged)))))
    with pytest.raises(DataError, match="labels an image 4, the run's model has classes 0 to 3"):
        found_in(edited, world)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 5, 4), (3, 4, 5)])
def test_images_that_the_model_does_not_take_are_told(model: MemoryClassifier, shape: tuple[int, int, int]) -> None:
    world = told(model, noise(1))
    page = world.page.replace(exact_uri(world.pictures.pixels[0]), exact_uri(noise(1, shape)[0]))
    with pytest.raises(DataError, match=re.escape(f"images are of shape {shape}, the run's model takes (3, 4, 4)")):
        found_in(page, world)


# Other runs and other files


def test_another_run_is_told_by_what_differs(model: MemoryClassifier) -> None:
    world = told(model, noise(2))
    others = verify(read(world.page), replace(world.source, model=network(seed=1), seed=8))
    assert [each.where for each in others] == ["the hash of the model", "the hash of the memory", "the seed of the run"]
    assert (others[2].reported, others[2].found) == ("7", "8")
    model.remembered.labels[0] = 3
    (difference,) = found_in(world.page, world)
    assert difference.where == "the hash of the memory"


def test_other_names_of_memory_images_are_found(model: MemoryClassifier) -> None:
    world = told(model, noise(1))
    others = verify(read(world.page), replace(world.source, memory_names=None))
    assert others
    assert ".png" in others[0].reported


def test_a_report_that_is_cut_anywhere_is_damaged_or_differs(made_once: ReportWorld) -> None:
    page = made_once.page.rstrip()
    for place in range(0, len(page), len(page) // 97):
        assert is_found(page[:place], made_once), place
    assert is_found(page[:-1], made_once)


def test_hostile_names_are_compared_like_any_other(made_once: ReportWorld) -> None:
    page = made_once.page
    assert HOSTILE[0] not in page
    escaped = "&lt;img src=x onerror=alert(1)&gt;"
    assert escaped in page
    assert found_in(page.replace(escaped, HOSTILE[0], 1), made_once)
