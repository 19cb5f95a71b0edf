"""The page in a real browser, with the network off: 50 photos with heatmaps, eight memory images each."""

import io
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import interpolate

from memwrap import DataError
from memwrap.report import HeatmapOptions, verify
from tests.report import HOSTILE, ReportWorld, make_report, network, noise
from tests.report.forgeries import FORGERIES, as_pillow_reads, content_of
from tests.report.test_pictures import SIDE, photos

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to open pages with"),
]

FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)
COUNT, SHOWN = 50, 8
LARGEST = 15_000_000  # bytes
NAMES = tuple(
    f"photos/{name}"
    for name in (
        "<img src=x onerror=alert(2)>.png",
        "</script><script>alert(3)</script>.png",
        '" onload="alert(4)" x=".png',
        "'><svg onload=alert(5)>.png",
        *(f"{number}.jpg" for number in range(COUNT - 4)),
    )
)


@pytest.fixture(scope="module")
def world() -> ReportWorld:
    # Small, as a test has no minutes; what it makes of pixels is grainy all the same.
    encoder = nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.1)
    model = network(3, (3, SIDE, SIDE), 24, encoder=encoder)
    model.remember(model.transform(photos(24, seed=1)), torch.arange(24) % 4)
    return make_report(model, photos(COUNT, seed=2), names=NAMES, shown=SHOWN, heatmaps=HeatmapOptions(max_steps=2))


@pytest.fixture(scope="module")
def file(world: ReportWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "why not?.html"
    path.write_text(world.page, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, file: Path, **options: Any) -> Iterator[Any]:
    """The page in a browser of its own; at the end there may be no message, request or dialog."""
    noted: list[str] = []
    with browser.new_context(offline=True, **{"viewport": {"width": 1100, "height": 900}, **options}) as context:
        page = context.new_page()
        page.on("console", lambda message: noted.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: noted.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (noted.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: noted.append(request.url[:60]) if not own(request.url) else None)
        page.on("requestfailed", lambda request: noted.append(f"failed: {request.url[:60]}"))

        def own(url: str) -> bool:
            return url.startswith("data:image/") or url.split("#")[0] == file.as_uri()

        page.goto(file.as_uri())
        yield page
        assert noted == []


@pytest.fixture(scope="module")
def looked_at(browser: Any, file: Path) -> Iterator[Any]:
    """For tests that only look."""
    with opened(browser, file) as page:
        yield page


def shown(page: Any) -> list[int]:
    """The numbers of the images that can be seen."""
    return page.evaluate(
        "[...document.querySelectorAll('article')].filter(a => a.checkVisibility()).map(a => +a.id.slice(6))"
    )


# What it holds


def test_the_page_is_smaller_than_it_may_be(world: ReportWorld, file: Path) -> None:
    print(f"{COUNT} images of {SIDE}x{SIDE} with heatmaps: {file.stat().st_size / 1e6:.1f} MB")
    assert file.stat().st_size < LARGEST
    assert all(len(each.shown_samples(SHOWN)) >= SHOWN for each in world.record.explanations)


def test_names_show_as_text(looked_at: Any) -> None:
    assert looked_at.locator("article h3").all_inner_texts() == list(NAMES)
    text = looked_at.locator("main").inner_text()
    for name in HOSTILE:
        assert name in text
    assert looked_at.locator("script").count() == 2
    assert looked_at.evaluate("document.images.length") == 0, "all pictures are drawn by reference"


def test_numbers_are_seen_as_they_were_computed(looked_at: Any, world: ReportWorld) -> None:
    record = world.record
    totals = looked_at.locator(".totals b").all_inner_texts()
    assert totals == [
        "50",
        f"{100 * record.correct / 50:.1f} %",
        str(len(record.uncertain)),
        "24",
    ]
    for each, words in zip(record.explanations, looked_at.locator("article .sentence").all_inner_texts(), strict=True):
        assert words.replace("\u00a0", " ") == each.sentence


def test_all_pictures_can_be_seen(browser: Any, file: Path, world: ReportWorld) -> None:
    with opened(browser, file) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        page.evaluate("Promise.all([...document.querySelectorAll('image')].map(image => image.decode()))")
        assert page.locator("image").count() == len(world.record.pictures)
        missing = "[...document.querySelectorAll('use')].filter(u => !document.getElementById(u.href.baseVal.slice(1)))"
        assert page.evaluate(f"{missing}.length") == 0
        hidden = "[...document.querySelectorAll('svg[role=img]')].filter(s => s.getBoundingClientRect().height < 10)"
        assert page.evaluate(f"{hidden}.length") == 0
        for selector in ("article .small", "article .pic", "article .heatmap"):
            with Image.open(io.BytesIO(page.locator(selector).first.screenshot())) as image:
                assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 100


def test_a_memory_picture_is_the_one_that_it_should_be(looked_at: Any, world: ReportWorld) -> None:
    """Drawn by reference, so its place in the page does not show which it is."""
    sample = world.record.explanations[0].samples[0]
    with Image.open(io.BytesIO(looked_at.locator("article .small").first.screenshot())) as image:
        rows = np.array(image.convert("RGB").resize((4, 4), Image.Resampling.BOX))
    found = torch.from_numpy(rows).float().reshape(16, 3)
    memory = photos(24, seed=1).float()
    small = interpolate(memory, size=(4, 4), mode="area").permute(0, 2, 3, 1).reshape(24, 16, 3)
    assert int((small - found).abs().mean(dim=(1, 2)).argmin()) == sample.index


def seen(browser: Any, tmp_path: Path, text: str) -> np.ndarray:
    """The first input as a browser shows it, (H, W, 3) in its own size."""
    file = tmp_path / "forged.html"
    file.write_text(text, encoding="utf-8")
    with opened(browser, file) as page:
        page.evaluate("Promise.all([...document.querySelectorAll('image')].map(image => image.decode()))")
        picture = page.locator("article .pic").first
        # On whole pixels: elsewhere, its own would be mixed.
        style = "position: fixed; inset: 0; width: 144px; border: 0; border-radius: 0; z-index: 1"
        picture.evaluate("(each, style) => { each.style = style }", style)
        with Image.open(io.BytesIO(picture.screenshot())) as image:
            return np.array(image.convert("RGB").resize((16, 16), Image.Resampling.BOX)).astype(float)


def test_an_interlaced_picture_with_rows_missing_shows_other_than_what_is_read(browser: Any, tmp_path: Path) -> None:
    """So `verify` refuses it, though the run gives the same numbers for the pixels that are read."""
    shape = (3, 16, 16)
    world = make_report(network(0, shape, memory=8), interpolate(photos(1, seed=2).float(), size=16).byte(), shown=1)
    genuine = world.inputs.pixels[0].permute(1, 2, 0).numpy()
    assert np.abs(seen(browser, tmp_path, world.page) - genuine).max() <= 3
    forged = FORGERIES["interlaced, passes missing"](world)
    content = content_of(re.search(r'id="input-1".*?href="([^"]*)"', forged)[1])
    read = as_pillow_reads(content).permute(1, 2, 0).numpy()
    assert (read == 0).mean() > 0.5, "Pillow leaves black what is missing"
    assert (seen(browser, tmp_path, forged) == 0).mean() < 0.05, "a browser fills it"
    assert verify(world.page, world.source).equal
    with pytest.raises(DataError, match="interlacing"):
        verify(forged, world.source)


def test_a_stream_that_only_some_decoders_read_shows_no_picture(browser: Any, tmp_path: Path) -> None:
    shape = (3, 16, 16)
    world = make_report(network(0, shape, memory=8), interpolate(photos(1, seed=2).float(), size=16).byte(), shown=1)
    forged = FORGERIES["odd block of the stream"](world)
    content = content_of(re.search(r'id="input-1".*?href="([^"]*)"', forged)[1])
    assert as_pillow_reads(content).equal(world.inputs.pixels[0])
    assert np.median(seen(browser, tmp_path, forged)) > 250, "the page behind it"
    assert np.median(seen(browser, tmp_path, world.page)) < 200
    with pytest.raises(DataError, match="not stored as reports store them"):
        verify(forged, world.source)


def test_names_that_would_turn_the_text_around_are_seen_as_escapes(browser: Any, tmp_path: Path) -> None:
    names = ("\u202egnp.sure 100 %", "un\u00adsure\u200b.png", "קטן.png", "قطة.png", "猫\U0001f408\u200d⬛.png")
    world = make_report(network(memory=8), noise(5), names=names)
    file = tmp_path / "why.html"
    file.write_text(world.page, encoding="utf-8")
    with opened(browser, file) as page:
        shown_names = page.locator("article h3").all_inner_texts()
        texts = page.locator("body").inner_text()
        # Numbers stay to the right of names that are written from right to left.
        boxes = "e => [e.querySelector('bdi'), e.querySelector('.number')].map(each => each.getBoundingClientRect().x)"
        places = [each.evaluate(boxes) for each in page.locator("article .answer").all()]
    assert shown_names == ["\\u202egnp.sure 100 %", "un\\xadsure\\u200b.png", *names[2:]]
    assert not set(texts) & set("\u202e\u00ad\u200b")
    assert all(name < number for name, number in places)


@pytest.mark.parametrize("width", [400, 1100])
def test_a_name_that_cannot_be_broken_covers_nothing_beside_it(browser: Any, tmp_path: Path, width: int) -> None:
    bar = "\u200d".join("\u25fc" * 90)
    pages = [make_report(network(memory=8), noise(4), names=(name, name, "c.png", "d.png")).page for name in (bar, "a")]
    looks = []
    for number, page_text in enumerate(pages):
        file = tmp_path / f"{number}.html"
        file.write_text(page_text, encoding="utf-8")
        with opened(browser, file, viewport={"width": width, "height": 900}) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            boxes = "e => e.map(each => each.getBoundingClientRect()).map(box => [box.x, box.y, box.width, box.height])"
            place = page.locator(".listed li", has_text="d.png").evaluate_all(boxes)[0]
            clip = dict(zip(("x", "y", "width", "height"), place, strict=True))
            looks.append(page.screenshot(clip=clip, full_page=True))
    one, other = (np.asarray(Image.open(io.BytesIO(look)).convert("L")) < 128 for look in looks)
    assert one.sum() == other.sum()


# By keyboard


def test_images_are_filtered_by_keyboard(browser: Any, file: Path, world: ReportWorld) -> None:
    unsure = [number for number, _ in world.record.uncertain]
    wrong = [number for number, each in world.record.numbered if each.wrong]
    assert 0 < len(unsure) < COUNT
    assert 0 < len(wrong) < COUNT
    with opened(browser, file) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "To the images"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "All"
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        assert shown(page) == unsure
        assert page.get_by_role("status").inner_text() == f"{len(unsure)} of {COUNT} images"
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert shown(page) == wrong
        pressed = page.locator("button[aria-pressed=true]").all_inner_texts()
        assert pressed == [f"Wrong ({len(wrong)})"]
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        assert shown(page) == list(range(1, COUNT + 1))


def test_the_focus_can_be_seen(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        for _ in range(3):
            page.keyboard.press("Tab")
            style = "getComputedStyle(document.activeElement)"
            assert page.evaluate(f"{style}.outlineStyle") == "solid"
            assert page.evaluate(f"parseFloat({style}.outlineWidth)") >= 2


def in_sight(page: Any, selector: str) -> bool:
    box = page.evaluate(
        f"(({{top, bottom}}) => [top, bottom])(document.querySelector('{selector}').getBoundingClientRect())"
    )
    return box[0] < 900 and box[1] > 0


def test_links_lead_to_their_images_and_show_those_that_are_filtered_out(
    browser: Any, file: Path, world: ReportWorld
) -> None:
    number = world.record.confidently_wrong[0][0]
    with opened(browser, file) as page:
        link = page.locator(f".listed a[href='#image-{number}']")
        for _ in range(2):  # the second time, the address is what it was
            page.get_by_role("button", name="Unsure").click()
            assert number not in shown(page)
            link.focus()
            page.keyboard.press("Enter")
            page.wait_for_function(f"location.hash === '#image-{number}'")
            assert shown(page) == list(range(1, COUNT + 1))
            assert in_sight(page, f"#image-{number}")


def test_heatmaps_are_opened_by_keyboard(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        details = page.locator("article details").first
        assert not details.locator("svg").first.is_visible()
        details.locator("summary").focus()
        page.keyboard.press("Enter")
        assert details.locator("svg").first.is_visible()
        page.keyboard.press("Enter")
        assert not details.locator("svg").first.is_visible()


# For those who do not see it, or see it otherwise


def tree(page: Any) -> list[dict[str, Any]]:
    """What a screen reader is given."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    return [node for node in nodes if not node["ignored"]]


def test_a_screen_reader_has_a_name_for_every_picture_and_place(browser: Any, file: Path, world: ReportWorld) -> None:
    with opened(browser, file) as page:
        page.locator("article summary").first.click()
        nodes = tree(page)
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert len(names["image"]) > COUNT * (1 + SHOWN)
    for role in ("image", "article", "region", "button", "link"):
        assert all(names[role]), role
    assert names["article"] == list(NAMES)
    assert "Summary" in names["region"]
    first = world.record.explanations[0].samples[0]
    assert f"memory image {first.index}, predicted as {HOSTILE[first.prediction]}" in names["image"]


def test_headings_are_in_order(looked_at: Any) -> None:
    levels = [
        next(each["value"]["value"] for each in node["properties"] if each["name"] == "level")
        for node in tree(looked_at)
        if node["role"]["value"] == "heading"
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert levels.count(3) >= COUNT


def background(page: Any) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def lightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)


def test_light_and_dark_follow_the_preference(browser: Any, file: Path) -> None:
    found = {}
    for scheme in ("light", "dark"):
        with opened(browser, file, color_scheme=scheme) as page:
            ink = page.evaluate("getComputedStyle(document.body).color")
            found[scheme] = lightness(background(page)), lightness(ink)
    assert found["light"][0] > 0.9 > 0.3 > found["light"][1]
    assert found["dark"][0] < 0.2 < 0.7 < found["dark"][1]


def test_it_prints_in_black_on_white(browser: Any, file: Path) -> None:
    with opened(browser, file, color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert lightness(background(page)) == 1
        assert not page.locator(".controls").is_visible()
        paper = page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    assert len(paper) > 1_000_000
    pages = len(re.findall(rb"/Type\s*/Page\b", paper))
    assert COUNT <= pages < 1.5 * COUNT, "each image has a page of its own, with its heatmaps"


def test_heatmaps_are_printed_though_they_are_closed(browser: Any, file: Path) -> None:
    with opened(browser, file) as page:
        first = page.locator("article details").first
        assert not first.locator("svg").first.is_visible()
        page.emulate_media(media="print")
        for picture in (first.locator("svg").first, first.locator(".scale")):
            assert picture.is_visible()
            assert picture.bounding_box()["height"] > 5
        assert not first.evaluate("each => each.open"), "and stay closed on the screen"
        page.emulate_media(media="screen")
        assert not first.locator("svg").first.is_visible()


@pytest.mark.parametrize("width", [400, 700, 1600])
def test_nothing_is_wider_than_the_screen(browser: Any, file: Path, width: int) -> None:
    with opened(browser, file, viewport={"width": width, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth).length"
        assert page.evaluate(wide) == 0


def test_without_scripts_all_is_there_but_the_filter(browser: Any, file: Path) -> None:
    with opened(browser, file, java_script_enabled=False) as page:
        assert page.locator("article:visible").count() == COUNT
        assert not page.locator(".controls").is_visible()
