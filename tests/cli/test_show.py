"""Tables: readable on 80 columns, whatever the classes are called and however many they are."""

import contextlib
import io
import os
import random
import re
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from rich.cells import cell_len

from memwrap.cli import show
from memwrap.cli.terminal import plain_console

DRAWN = ("training_subset", "whole_training_set")
SCORES = (
    "accuracy",
    "explanation_accuracy",
    "counterfactual_share",
    "counterfactual_accuracy",
    "example_accuracy",
    "majority_vote_accuracy",
)


def a_record(classes: Sequence[str], confusion: list[list[int]] | None = None) -> dict[str, Any]:
    """What an evaluation finds, with figures of the most digits."""
    numbers = random.Random(0)
    size = len(classes)
    counts = confusion or [
        [numbers.randint(100, 999) if row == column else numbers.choice([0, 0, 5, 17]) for column in range(size)]
        for row in range(size)
    ]
    accuracies = [counts[row][row] / sum(counts[row]) if sum(counts[row]) else None for row in range(size)]
    drawn = {name: {"mean": 1.0, "spread": 0.1234, "repeats": [1.0] * 5} for name in SCORES}
    return {
        "run": "runs/photos",
        "variant": "memory_wrap",
        "decided_by": "head",
        "classes": list(classes),
        "split": "test",
        "images": 5000,
        "left_out": {},
        "memory": {"size": 100, "own_accuracy": 0.987},
        "remembered": {
            "memory_size": 100,
            **dict.fromkeys(SCORES, 1.0),
            "calibration_error": 0.0123,
            "class_accuracies": accuracies,
            "confusion": counts,
            "selective": {
                "confidence": a_curve(),
                "counterfactual_weight": a_curve(),
                "flag": {"coverage": 1.0, "accuracy": 1.0, "confidence_accuracy": 1.0},
            },
            "memory_use": {
                "unused_share": 1.0,
                "effective_samples": 1234.5,
                "top_tenth_share": 1.0,
                "samples_per_input": 1234.56,
            },
        },
        "drawn": {source: {"memory_size": 100, **drawn} for source in DRAWN},
    }


def a_curve(area: float = 1.0, excess_area: float = 0.0, **risks: float) -> dict[str, Any]:
    """With a risk of one but at some coverages, as at_80=0.2."""
    curve = [[point / 20, risks.get(f"at_{5 * point}", 1.0)] for point in range(1, 21)]
    return {"area": area, "excess_area": excess_area, "curve": curve}


def shown(record: dict[str, Any], columns: int = 80) -> list[str]:
    """The lines on a screen so wide."""
    screen = io.StringIO()
    with patch.dict(os.environ, COLUMNS=str(columns)), contextlib.redirect_stdout(screen):
        show.evaluation(plain_console(), record)
    return screen.getvalue().splitlines()


def line_of(lines: list[str], start: str) -> str:
    (found,) = [line for line in lines if line.startswith(start)]
    return found


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.mark.parametrize(
    "classes",
    [tuple("0123456789"), CIFAR10, ("a" * 200, "b c " * 40), tuple(f"class {i}" for i in range(25)), ("猫" * 50, "犬")],
    ids=["digits", "cifar10", "long", "25", "wide characters"],
)
def test_no_line_of_the_tables_is_wider_than_80_columns(classes: tuple[str, ...]) -> None:
    lines = shown(a_record(classes, [[7] * len(classes)] * len(classes)))
    confusions = [line for line in lines if " predicted as " in line]  # in words, which may be long
    assert [line for line in lines if cell_len(line) > 80 and line not in confusions] == []


def test_scores_stand_in_one_line_each_with_all_columns() -> None:
    lines = shown(a_record(CIFAR10))
    assert lines[0] == "runs/photos: memory_wrap, evaluated on 5000 test images"
    heads = line_of(lines, "   ")
    assert heads.split() == ["remembered", "subset", "whole"]
    labels = ("accuracy ", "explanation accuracy ", "counterfactual on top ", "majority vote accuracy ")
    for label in (*labels, "  accuracy on these ", "  accuracy on the others "):
        assert re.split("  +", line_of(lines, label).removeprefix(label).strip()) == [
            "100.00 %",
            *["100.00 % ± 12.34"] * 2,
        ]
    assert line_of(lines, "calibration error").split() == ["calibration", "error", "1.23", "%", "-", "-"]


def test_the_columns_are_explained() -> None:
    lines = shown(a_record(CIFAR10))
    assert "remembered: the memory of 100 images that predict uses" in lines
    assert line_of(lines, "subset: memories of 100 drawn from the images trained on; mean ± deviation of 5")
    assert line_of(lines, "whole: ")


def test_a_score_that_does_not_exist_is_a_dash() -> None:
    record = a_record(CIFAR10)
    record["remembered"]["counterfactual_accuracy"] = None
    record["drawn"]["training_subset"]["counterfactual_accuracy"] = {"mean": None, "spread": None, "repeats": [None]}
    assert line_of(shown(record), "  accuracy on these").split()[3:5] == ["-", "-"]


def test_a_memory_whose_classes_are_not_known_is_only_counted() -> None:
    lines = shown(a_record(CIFAR10) | {"memory": {"size": 1, "own_accuracy": None}})
    assert "memory: 1 images" in lines
    assert "memory: 100 images; the model predicts the label of 98.7 % of them" in shown(a_record(CIFAR10))


def test_the_use_of_the_memory_is_reported_next_to_its_size() -> None:
    record = a_record(CIFAR10)
    record["remembered"]["memory_use"] |= {"unused_share": 0.04, "top_tenth_share": 0.315, "samples_per_input": 10.94}
    assert shown(record)[-2:] == [
        "a prediction uses 10.9 of them on average; 4.0 % are never used",
        "the most used tenth has 31.5 % of all weight",
    ]


# Answering only the surest


def section(lines: list[str]) -> list[str]:
    """The lines from the errors among the surest to the next that is empty."""
    rest = lines[lines.index(line_of(lines, "errors if only the surest")) :]
    return rest[: rest.index("")]


def test_errors_among_the_surest_are_shown_at_some_shares_and_on_average() -> None:
    record = a_record(CIFAR10)
    record["remembered"]["selective"] = {
        "confidence": a_curve(0.0123, 0.0023, at_50=0.0, at_80=0.005, at_90=0.0321),
        "counterfactual_weight": a_curve(0.0234, 0.0134, at_50=0.01, at_80=0.02, at_90=0.03),
        "flag": {"coverage": 0.8766, "accuracy": 0.9612, "confidence_accuracy": 0.97},
    }
    assert section(shown(record)) == [
        "errors if only the surest are answered    50 %    80 %    90 %  average",
        "  by probability                        0.00 %  0.50 %  3.21 %   1.23 %",
        "  by weight on counterfactuals          1.00 %  2.00 %  3.00 %   2.34 %",
        "average: over all shares from one image to all; 1.00 % if all errors came last",
        "the 87.7 % that predict does not call unsure: accuracy 96.12 %",
        "equally many, of the highest probability: accuracy 97.00 %",
    ]


@pytest.mark.parametrize("of", ["remembered", "standard"])
def test_without_counterfactuals_the_surest_are_reported_by_probability_alone(of: str) -> None:
    record = a_record(CIFAR10)
    scores = record.pop("remembered") | {"selective": {"confidence": a_curve(0.5, 0.25)}}
    del scores["memory_use"]
    lines = shown(record | {of: scores})
    assert [line.split("  ")[0] or line.split("  ")[1] for line in section(lines)] == [
        "errors if only the surest are answered",
        "by probability",
        "average: over all shares from one image to all; 25.00 % if all errors came last",
    ]
    assert not any("a prediction uses" in line for line in lines)


def test_where_predict_is_always_unsure_accuracies_are_dashes() -> None:
    record = a_record(CIFAR10)
    record["remembered"]["selective"]["flag"] = {"coverage": 0.0, "accuracy": None, "confidence_accuracy": None}
    assert section(shown(record))[-2:] == [
        "the 0.0 % that predict does not call unsure: accuracy -",
        "equally many, of the highest probability: accuracy -",
    ]


# Classes


def test_short_names_are_the_heads_of_their_columns() -> None:
    lines = shown(a_record(("cat", "dog"), [[4, 1], [0, 5]]))
    assert lines[lines.index("class  images  accuracy  cat  dog") + 1 :][:2] == [
        "cat         5    80.0 %    4    1",
        "dog         5   100.0 %    .    5",
    ]


def test_longer_names_have_numbers_for_it() -> None:
    lines = shown(a_record(CIFAR10, [[9] * 10] * 10))
    assert line_of(lines, "class").split()[3:] == [str(number) for number in range(1, 11)]
    assert line_of(lines, "2 automobile").split() == ["2", "automobile", "90", "10.0", "%", *["9"] * 10]
    assert any(line.endswith("predicted as the class of that number") for line in lines)


def test_a_long_name_continues_in_the_next_lines_and_none_of_it_is_lost() -> None:
    lines = shown(a_record(("Q" * 150, "y"), [[4, 1], [0, 5]]))
    assert "".join(lines).count("Q") == 150
    assert line_of(lines, "1").split()[-4:] == ["80.0", "%", "4", "1"]


def test_where_the_confusions_do_not_fit_the_most_frequent_are_named() -> None:
    counts = [[100 if row == column else 0 for column in range(25)] for row in range(25)]
    counts[3][4], counts[7][8] = 11, 22
    lines = shown(a_record([f"class {number}" for number in range(25)], counts))
    assert line_of(lines, "class  ").split() == ["class", "images", "accuracy"]
    place = lines.index("22 x class 7 predicted as class 8")
    assert lines[place + 1] == "11 x class 3 predicted as class 4"
    assert len([line for line in lines if line.startswith("class ") and "%" in line]) == 25


def test_a_wide_screen_has_room_for_all_confusions() -> None:
    classes = [f"class {number}" for number in range(25)]
    lines = shown(a_record(classes), columns=300)
    assert line_of(lines, "class  ").split()[3:] == [str(number) for number in range(1, 26)]


def test_of_many_classes_the_worst_are_shown() -> None:
    counts = [[100 - row if row == column else 0 for column in range(100)] for row in range(100)]
    for row in range(100):
        counts[row][(row + 1) % 100] += row
    lines = shown(a_record([f"name{number}" for number in range(100)], counts))
    assert "the 10 worst of 100 classes; --json has all" in lines
    rows = [line.split()[0] for line in lines if line.startswith("name")]
    assert rows == [f"name{number}" for number in range(99, 89, -1)]
    assert "99 x name99 predicted as name0" in lines
    assert any(line.startswith("and 89 other confusions") for line in lines)
    assert len(lines) < 55


def test_a_class_without_images_is_none_of_the_worst() -> None:
    counts = [[0] * 40 for _ in range(40)]
    for row in range(1, 40):
        counts[row][row] = 10
    lines = shown(a_record([f"name{number}" for number in range(40)], counts))
    assert not any(line.startswith("name0 ") for line in lines)


def test_names_are_shown_as_they_are() -> None:
    odd = ["[red]x", "<b>", ":cat:", "[/]", "a\\"]
    lines = shown(a_record(odd, [[1] * 5] * 5))
    head = lines.index(line_of(lines, "class"))
    assert lines[head].split()[3:] == odd
    assert [line.split()[0] for line in lines[head + 1 : head + 6]] == odd
    record = a_record(odd) | {"run": "[bold]run[/bold]", "left_out": {"[i]it[/i]": ":dog:"}}
    lines = shown(record)
    assert lines[0].startswith("[bold]run[/bold]: ")
    assert lines[-1] == "left out: [i]it[/i] (:dog:)"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.8651, 2, "86.51 %"), (1.0, 1, "100.0 %"), (0.0, 2, "0.00 %"), (None, 2, "-"), (0.99999, 2, "100.00 %")],
)
def test_shares_are_shown_in_percent(value: float | None, digits: int, text: str) -> None:
    assert show.percent(value, digits) == text
