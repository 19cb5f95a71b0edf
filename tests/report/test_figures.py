"""Figures for print: what they hold, in each format, and names that try to break them."""

import io
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from memwrap import MemoryClassifier
from memwrap.report import figures
from memwrap.report.figures import MOST_INPUTS, TITLES, figure
from memwrap.report.pictures import heat_colours, pixels_in
from tests.report import GRAY, HOSTILE, STEPS, ReportWorld, make_report, network, noise

SVG = "{http://www.w3.org/2000/svg}"


def drawn(world: ReportWorld, suffix: str = ".svg") -> bytes:
    return figure(world.record, suffix)


def texts(world: ReportWorld) -> list[str]:
    """Of an SVG file, line by line."""
    root = ElementTree.fromstring(drawn(world))
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def pictures(world: ReportWorld) -> int:
    return len(list(ElementTree.fromstring(drawn(world)).iter(f"{SVG}image")))


@pytest.fixture
def plain(model: MemoryClassifier) -> ReportWorld:
    """With class names that fit into a line."""
    model.classes = ("cat", "dog", "eel", "fox")
    return make_report(model, noise(4))


def test_a_png_is_a_picture_that_is_not_empty(plain: ReportWorld) -> None:
    with Image.open(io.BytesIO(drawn(plain, ".png"))) as picture:
        assert picture.format == "PNG"
        assert 500 < picture.width < 2500
        assert 500 < picture.height < 2500
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50


def test_the_suffix_says_the_format(plain: ReportWorld) -> None:
    assert drawn(plain, ".PNG").startswith(b"\x89PNG")
    assert drawn(plain, ".pdf").startswith(b"%PDF")
    assert b"<svg" in drawn(plain, ".svg")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_figure_is_made_each_time(plain: ReportWorld, suffix: str) -> None:
    assert drawn(plain, suffix) == drawn(plain, suffix)


def test_each_input_is_above_the_memory_images_that_it_used(plain: ReportWorld) -> None:
    found, explanations = texts(plain), plain.record.explanations
    samples = [sample for each in explanations for sample in each.shown_samples(3)]
    for each in explanations:
        assert each.prediction_name in found
        assert f"probability {100 * each.probability:.0f} %" in found
        assert f"wrong: {each.label_name}" in found or not each.wrong
    assert found.count("unsure") == len(plain.record.uncertain) > 0
    assert any(each.wrong for each in explanations)
    for sample in samples:
        assert f"weight {100 * sample.weight:.0f} %" in found
        assert sample.prediction_name in found
    differing = [f"label: {sample.label_name}" for sample in samples if sample.prediction != sample.label]
    assert sorted(line for line in found if line.startswith("label: ")) == sorted(differing)
    assert differing
    assert pictures(plain) == len(explanations) + len(samples)


def kinds(world: ReportWorld) -> list[Any]:
    """Example and counterfactual of each input."""
    return [kind for each in world.record.explanations for kind in (each.example, each.counterfactual)]


def test_with_heatmaps_input_example_and_counterfactual_are_in_a_row(model: MemoryClassifier) -> None:
    world = make_report(model, noise(3), heatmaps=STEPS)
    found, missing, scale = texts(world), kinds(world).count(None), 1
    assert pictures(world) == 2 * (3 + 6 - missing) + scale
    assert found.count("none") == missing
    assert [found.count(title) for title in ("input", "example", "counterfactual", "heatmap")] == [1, 1, 1, 3]


def test_a_heatmap_names_its_class(plain: ReportWorld) -> None:
    world = make_report(plain.source.model, noise(3), heatmaps=STEPS)
    found = texts(world)
    for name in ("cat", "dog", "eel", "fox"):
        inputs = [each for each in world.record.explanations if each.prediction_name == name]
        shown = [kind for each in inputs for kind in (each.example, each.counterfactual) if kind is not None]
        assert found.count(f"for {name}") == len(inputs) + len(shown)


def test_the_colours_of_heatmaps_have_a_scale(model: MemoryClassifier, plain: ReportWorld) -> None:
    ends = {"none or lowered it", "most"}
    world = make_report(model, noise(1), heatmaps=STEPS)
    assert ends <= set(texts(world))
    assert not ends & set(texts(plain)), "where there are none, there is none"
    with Image.open(io.BytesIO(drawn(world, ".png"))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    bottom = pixels[pixels.shape[0] // 2 :]  # below the pictures, of which there is one row
    for heat in (0.3, 0.6, 1.0):
        middle_grey = np.array([128 * 0.6 + 90] * 3)
        share = 0.85 * heat**0.5
        colour = middle_grey * (1 - share) + heat_colours()[round(255 * heat)].numpy() * share
        assert (abs(bottom - colour).max(axis=2) <= 6).any(), heat


def test_a_missing_counterfactual_is_shown_as_none() -> None:
    world = make_report(network(memory=2), noise(2), heatmaps=STEPS)
    assert None in kinds(world)
    assert "none" in texts(world)


def test_heatmaps_are_next_to_the_picture_that_they_belong_to(
    model: MemoryClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_report(model, noise(1), heatmaps=STEPS)
    shown: list[Any] = []
    real = figures._picture

    def noted(place: Any, pixels: Any, *rest: Any, **options: Any) -> None:
        shown.append(pixels)
        real(place, pixels, *rest, **options)

    monkeypatch.setattr(figures, "_picture", noted)
    drawn(world)
    example, other = (kind.index for kind in kinds(world))
    names = ["input-1", "heatmap-1"]
    names += [f"{kind}-{index}" for index in (example, other) for kind in ("memory", "heatmap-1")]
    assert len(shown) == len(TITLES) == 6
    for pixels, name in zip(shown, names, strict=True):
        assert pixels.equal(pixels_in(world.record.pictures[name])), name


def test_of_many_images_the_first_are_drawn(model: MemoryClassifier) -> None:
    world = make_report(model, noise(MOST_INPUTS + 3), shown=1)
    assert pictures(world) == sum(1 + len(each.shown_samples(1)) for each in world.record.explanations[:MOST_INPUTS])


def test_hostile_names_are_text(model: MemoryClassifier) -> None:
    found = "\n".join(texts(make_report(model, noise(8))))
    assert "</script>" in found
    assert "{{ 7 * 7 }}" in found
    assert "<img src=x" in found
    assert HOSTILE[0] not in drawn(make_report(model, noise(2))).decode()


def test_a_name_is_not_read_as_a_formula(model: MemoryClassifier) -> None:
    model.classes = ("$x_1$", "$\\frac{1}{2", "a_b^c", "#%&~")
    world = make_report(model, noise(4))
    names = {each.prediction_name for each in world.record.explanations}
    assert names <= set(texts(world))
    assert "$x_1$" in names
    assert drawn(world, ".png")
    assert drawn(world, ".pdf")


def lines(texts: list[str]) -> Iterator[str]:
    for text in texts:
        yield from text.split("\n")


def test_long_names_are_cut_to_what_fits_and_the_number_stays(model: MemoryClassifier) -> None:
    model.classes = ("a rather long class name, as people give", "x" * 200, "Ort, an dem man war", "y")
    world = make_report(model, noise(6))
    legend = figures.LEGEND + figures.FURTHER
    found = [line for line in lines(texts(world)) if len(line) < 20 or line not in legend]
    assert max(map(len, found)) <= max(figures.LETTERS, len("probability 100 %"))
    assert any(line.endswith("…") for line in found)
    numbers = [line for line in found if re.search(r"\d+ %$", line)]
    assert len(numbers) == sum(1 + len(each.shown_samples(3)) for each in world.record.explanations)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("cat", "cat"),
        ("a rather long class name", "a rather long\nclass name"),
        ("a rather long class name, as people give", "a rather long\nclass name, as…"),
        ("x" * 40, "x" * 16 + "\n" + "x" * 15 + "…"),
        ("", ""),
    ],
)
def test_names_have_two_lines(name: str, short: str) -> None:
    assert figures._short(name) == short


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0 %"), (0.004, "<1 %"), (0.0099, "<1 %"), (0.01, "1 %"), (0.016, "2 %"), (0.794, "79 %"), (1.0, "100 %")],
)
def test_a_small_share_is_not_shown_as_zero(share: float, words: str) -> None:
    assert figures._whole_percent(share) == words


def test_a_narrow_figure_breaks_its_legend(model: MemoryClassifier) -> None:
    wide, narrow = texts(make_report(model, noise(8))), texts(make_report(model, noise(1)))
    assert any(line.startswith(figures.LEGEND[:100]) for line in wide)
    assert not any(line.startswith(figures.LEGEND[:100]) for line in narrow)
    assert "Below each picture: the" in narrow


def test_the_legend_mentions_samples_from_further_down(model: MemoryClassifier) -> None:
    assert figures.FURTHER.strip() in " ".join(texts(make_report(model, noise(8), shown=1)))
    assert "Last row" not in " ".join(texts(make_report(model, noise(8), shown=12)))


def test_colours_show_whether_it_is_another_class(plain: ReportWorld) -> None:
    text = drawn(plain).decode()
    assert figures.SAME in text
    assert figures.OTHER in text


def test_a_memory_of_one_shows_no_class() -> None:
    found = texts(make_report(network(memory=1), noise(1), labelled=False))
    assert "weight 100 %" in found
    assert not any(line.startswith("label: ") for line in found)


def test_gray_pictures_are_drawn_in_gray() -> None:
    world = make_report(network(shape=GRAY), noise(1, GRAY), labelled=False)
    with Image.open(io.BytesIO(drawn(world, ".png"))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    inside = pixels[40:120, 60:200]
    assert (inside.max(axis=2) - inside.min(axis=2)).max() <= 2
    assert len(np.unique(inside)) > 3
