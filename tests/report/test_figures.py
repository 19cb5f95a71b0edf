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

from memwrap import MemoryClassifier
from memwrap.report import figures
from memwrap.report.figures import MOST_INPUTS, TITLES, figure
from tests.report import GRAY, HOSTILE, STEPS, Told, network, noise, told

SVG = "{http://www.w3.org/2000/svg}"


def drawn(world: Told, suffix: str = ".svg") -> bytes:
    return figure(world.content, world.source.model, suffix)


def texts(world: Told) -> list[str]:
    """Of an SVG file, line by line."""
    root = ElementTree.fromstring(drawn(world))
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def pictures(world: Told) -> int:
    return len(list(ElementTree.fromstring(drawn(world)).iter(f"{SVG}image")))


@pytest.fixture
def plain(model: MemoryClassifier) -> Told:
    """With class names that fit into a line."""
    model.classes = ("cat", "dog", "eel", "fox")
    return told(model, noise(4))


def test_a_png_is_a_picture_that_is_not_empty(plain: Told) -> None:
    with Image.open(io.BytesIO(drawn(plain, ".png"))) as picture:
        assert picture.format == "PNG"
        assert 500 < picture.width < 2500
        assert 500 < picture.height < 2500
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50


def test_the_suffix_says_the_format(plain: Told) -> None:
    assert drawn(plain, ".PNG").startswith(b"\x89PNG")
    assert drawn(plain, ".pdf").startswith(b"%PDF")
    assert b"<svg" in drawn(plain, ".svg")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_figure_is_made_each_time(plain: Told, suffix: str) -> None:
    assert drawn(plain, suffix) == drawn(plain, suffix)


def verdict(card: Any) -> list[str]:
    lines = [f"{card.prediction} {card.probability:.0%}"]
    lines += [f"wrong: {card.true_class}"] if card.wrong else []
    return lines + (["unsure"] if card.explanation.uncertain else [])


def test_each_input_stands_over_the_memory_images_that_it_used(plain: Told) -> None:
    found, cards = texts(plain), plain.content.cards
    for card in cards:
        for line in verdict(card):
            assert line in found
        for sample in card.samples:
            assert f"{card.class_name(sample.prediction)} {sample.weight:.0%}" in found
    assert pictures(plain) == sum(1 + len(card.samples) for card in cards)
    assert any(card.explanation.uncertain for card in cards)
    assert any(card.wrong for card in cards)


def test_with_heatmaps_input_example_and_counterfactual_stand_side_by_side(model: MemoryClassifier) -> None:
    world = told(model, noise(3), heatmaps=STEPS)
    cards, found = world.content.cards, texts(world)
    kinds = [kind for card in cards for kind in (card.explanation.example, card.explanation.counterfactual)]
    missing = kinds.count(None)
    assert pictures(world) == 2 * (3 + 6 - missing)
    assert found.count("none") == missing
    assert [found.count(title) for title in ("input", "example", "counterfactual", "its heatmap")] == [1, 1, 1, 3]


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
    with pytest.raises(ValueError, match="needs one for each image"):
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
        assert any(line.startswith(f"{name} ") for line in texts(world)), name
    assert "$x_1$" in {card.prediction for card in world.content.cards}
    assert drawn(world, ".png")
    assert drawn(world, ".pdf")


def lines(texts: list[str]) -> Iterator[str]:
    for text in texts:
        yield from text.split("\n")


def test_long_names_are_cut_to_what_fits_and_the_number_stays(model: MemoryClassifier) -> None:
    model.classes = ("a rather long class name, as people give", "x" * 200, "Ort, an dem man war", "y")
    world = told(model, noise(6))
    legend = {line.strip() for line in texts(world) if "memory image" in line}
    found = [line for line in lines(texts(world)) if line not in legend]
    assert max(map(len, found)) <= figures.LETTERS
    assert any(line.endswith("…") for line in found)
    numbers = [line for line in found if re.search(r"\d+%$", line)]
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
    ("name", "words"), [("cat", "cat 7%"), ("x" * 11, f"{'x' * 11} 7%"), ("x" * 12, f"{'x' * 12}\n7%"), ("", " 7%")]
)
def test_a_number_has_a_line_of_its_own_where_there_is_no_room(name: str, words: str) -> None:
    assert figures._named(name, 0.07) == words


def test_a_narrow_figure_breaks_its_legend(model: MemoryClassifier) -> None:
    assert figures.LEGEND in texts(told(model, noise(8)))
    narrow = texts(told(model, noise(1)))
    assert figures.LEGEND not in narrow
    assert "Under a memory image: what" in narrow


def test_colours_say_for_and_against(plain: Told) -> None:
    text = drawn(plain).decode()
    assert figures.FOR in text
    assert figures.AGAINST in text


def test_a_memory_of_one_has_no_class_to_tell() -> None:
    assert "? 100%" in texts(told(network(memory=1), noise(1)))


def test_gray_pictures_are_drawn_in_gray() -> None:
    world = told(network(shape=GRAY), noise(1, GRAY), labelled=False)
    with Image.open(io.BytesIO(drawn(world, ".png"))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    inside = pixels[40:120, 60:200]
    assert (inside.max(axis=2) - inside.min(axis=2)).max() <= 2
    assert len(np.unique(inside)) > 3
