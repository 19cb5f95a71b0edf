"""Figures for print: what they hold, in each format, and names that are meant to break them."""

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from memwrap import InputError, MemoryClassifier
from memwrap.report import figures
from memwrap.report.figures import MOST_INPUTS, TITLES, figure
from memwrap.report.pictures import heat_colours
from tests.report import GRAY, HOSTILE, STEPS, ReportWorld, network, noise, told

SVG = "{http://www.w3.org/2000/svg}"


def drawn(world: ReportWorld, suffix: str = ".svg") -> bytes:
    return figure(world.content, world.source.model, suffix)


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
    return told(model, noise(4))


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


def verdict(card: Any) -> list[str]:
    lines = [card.prediction, f"probability {100 * card.probability:.0f} %"]
    lines += [f"wrong: {card.true_class}"] if card.wrong else []
    return lines + (["unsure"] if card.explanation.uncertain else [])


def test_each_input_stands_over_the_memory_images_that_it_used(plain: ReportWorld) -> None:
    found, cards = texts(plain), plain.content.cards
    for card in cards:
        for line in verdict(card):
            assert line in found
        for sample in card.samples:
            assert f"weight {100 * sample.weight:.0f} %" in found
            assert card.class_name(sample.prediction) in found
            if sample.prediction != sample.label:
                assert f"label: {card.class_name(sample.label)}" in found
    differing = [each for card in cards for each in card.samples if each.prediction != each.label]
    assert sum(line.startswith("label: ") for line in found) == len(differing) > 0
    assert pictures(plain) == sum(1 + len(card.samples) for card in cards)
    assert any(card.explanation.uncertain for card in cards)
    assert any(card.wrong for card in cards)


def test_with_heatmaps_input_example_and_counterfactual_stand_side_by_side(model: MemoryClassifier) -> None:
    world = told(model, noise(3), heatmaps=STEPS)
    cards, found = world.content.cards, texts(world)
    kinds = [kind for card in cards for kind in (card.explanation.example, card.explanation.counterfactual)]
    missing = kinds.count(None)
    scale = 1  # which is a picture, too
    assert pictures(world) == 2 * (3 + 6 - missing) + scale
    assert found.count("none") == missing
    assert [found.count(title) for title in ("input", "example", "counterfactual", "its heatmap")] == [1, 1, 1, 3]


def test_a_heatmap_says_for_which_class(plain: ReportWorld) -> None:
    world = told(plain.source.model, noise(3), heatmaps=STEPS)
    found = texts(world)
    for name in ("cat", "dog", "eel", "fox"):
        cards = [card.explanation for card in world.content.cards if card.prediction == name]
        kinds = [kind for each in cards for kind in (each.example, each.counterfactual) if kind is not None]
        assert found.count(f"for {name}") == len(cards) + len(kinds)


def test_the_colours_of_heatmaps_have_a_scale(model: MemoryClassifier, plain: ReportWorld) -> None:
    ends = {"nothing or against", "much"}
    world = told(model, noise(1), heatmaps=STEPS)
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


def test_what_is_missing_is_called_none() -> None:
    world = told(network(memory=2), noise(2), heatmaps=STEPS)
    assert any(
        card.explanation.example is None or card.explanation.counterfactual is None for card in world.content.cards
    )
    assert "none" in texts(world)


def test_heatmaps_are_put_beside_the_picture_that_they_belong_to(
    model: MemoryClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = told(model, noise(1), heatmaps=STEPS)
    shown: list[Any] = []
    real = figures._picture

    def noted(place: Any, pixels: Any, *rest: Any, **options: Any) -> None:
        shown.append(pixels)
        real(place, pixels, *rest, **options)

    monkeypatch.setattr(figures, "_picture", noted)
    drawn(world)
    (card,), memory = world.content.cards, noise(12, seed=1)
    example, other = card.explanation.example, card.explanation.counterfactual
    rows = [card.heatmap.moved.index(sample.index) for sample in (example, other)]
    assert shown[0].equal(card.pixels)
    assert shown[1].equal(figures._heated(card.pixels, card.heatmap.input))
    assert shown[2].equal(memory[example.index])
    assert shown[3].equal(figures._heated(memory[example.index], card.heatmap.samples[rows[0]]))
    assert shown[4].equal(memory[other.index])
    assert shown[5].equal(figures._heated(memory[other.index], card.heatmap.samples[rows[1]]))
    assert len(shown) == len(TITLES)


def test_heatmaps_of_some_images_only_are_refused(model: MemoryClassifier) -> None:
    world = told(model, noise(2), heatmaps=STEPS)
    first, second = world.content.cards
    content = replace(world.content, cards=(first, replace(second, heatmap=None)))
    with pytest.raises(InputError, match=r"image 2 has no heatmap, but the first one has; a figure needs one for each"):
        drawn(replace(world, content=content))


def test_of_many_images_the_first_are_drawn(model: MemoryClassifier) -> None:
    world = told(model, noise(MOST_INPUTS + 3), shown=1)
    assert pictures(world) == sum(1 + len(card.samples) for card in world.content.cards[:MOST_INPUTS])


def test_hostile_names_are_text(model: MemoryClassifier) -> None:
    found = "\n".join(texts(told(model, noise(8))))
    assert "</script>" in found
    assert "{{ 7 * 7 }}" in found
    assert "<img src=x" in found
    assert HOSTILE[0] not in drawn(told(model, noise(2))).decode()


def test_a_name_is_not_taken_for_a_formula(model: MemoryClassifier) -> None:
    model.classes = ("$x_1$", "$\\frac{1}{2", "a_b^c", "#%&~")
    world = told(model, noise(4))
    for name in {card.prediction for card in world.content.cards}:
        assert name in texts(world), name
    assert "$x_1$" in {card.prediction for card in world.content.cards}
    assert drawn(world, ".png")
    assert drawn(world, ".pdf")


def lines(texts: list[str]) -> Iterator[str]:
    for text in texts:
        yield from text.split("\n")


def test_long_names_are_cut_to_what_fits_and_the_number_stays(model: MemoryClassifier) -> None:
    model.classes = ("a rather long class name, as people give", "x" * 200, "Ort, an dem man war", "y")
    world = told(model, noise(6))
    legend = figures.LEGEND + figures.FURTHER
    found = [line for line in lines(texts(world)) if len(line) < 20 or line not in legend]
    assert max(map(len, found)) <= max(figures.LETTERS, len("probability 100 %"))
    assert any(line.endswith("…") for line in found)
    numbers = [line for line in found if re.search(r"\d+ %$", line)]
    assert len(numbers) == sum(1 + len(card.samples) for card in world.content.cards)


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
def test_a_share_that_is_there_is_not_called_nothing(share: float, words: str) -> None:
    assert figures._whole_percent(share) == words


def test_a_narrow_figure_breaks_its_legend(model: MemoryClassifier) -> None:
    wide, narrow = texts(told(model, noise(8))), texts(told(model, noise(1)))
    assert any(line.startswith(figures.LEGEND[:100]) for line in wide)
    assert not any(line.startswith(figures.LEGEND[:100]) for line in narrow)
    assert "Under each picture: what" in narrow


def test_what_is_further_down_is_told(model: MemoryClassifier) -> None:
    assert figures.FURTHER.strip() in " ".join(texts(told(model, noise(8), shown=1)))
    assert "Last row" not in " ".join(texts(told(model, noise(8), shown=12)))


def test_colours_say_whether_it_is_another_class(plain: ReportWorld) -> None:
    text = drawn(plain).decode()
    assert figures.SAME in text
    assert figures.OTHER in text


def test_a_memory_of_one_has_no_class_to_tell() -> None:
    found = texts(told(network(memory=1), noise(1), labelled=False))
    assert "weight 100 %" in found
    assert not any(line.startswith("label: ") for line in found)


def test_gray_pictures_are_drawn_in_gray() -> None:
    world = told(network(shape=GRAY), noise(1, GRAY), labelled=False)
    with Image.open(io.BytesIO(drawn(world, ".png"))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    inside = pixels[40:120, 60:200]
    assert (inside.max(axis=2) - inside.min(axis=2)).max() <= 2
    assert len(np.unique(inside)) > 3
