"""The paper's numbers: against the text itself where it is at hand, and by counts and by hand everywhere."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from memwrap import encoders
from memwrap.errors import SettingsError
from memwrap.reproduce.published import Cell, published_table, table_info, table_names

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "memory_wrap.tex"
needs_paper = pytest.mark.skipif(not PAPER.exists(), reason=f"the paper's text is not at {PAPER}")

COUNTS = {
    "svhn-reduced": 27, "cifar10-reduced": 27, "cinic10-reduced": 27, "svhn-more": 27, "cifar10-more": 27,
    "cinic10-more": 27, "full": 27, "explanations": 30, "counterfactuals": 30, "parameters": 12, "memory-size": 36,
    "cost": 4,
}  # fmt: skip
LABELS = {
    "svhn-reduced": ["reduced-SVHN"],
    "cifar10-reduced": ["reduced-CIFAR10"],
    "cinic10-reduced": ["reduced-CINIC10"],
    "svhn-more": ["additional-SVHN"],
    "cifar10-more": ["additional-CIFAR10"],
    "cinic10-more": ["additional-CINIC10"],
    "full": ["complete"],
    "explanations": ["expaccuracy", "additional-expaccuracy"],
    "counterfactuals": ["counteraccuracy", "additional-uncertainty"],
    "memory-size": ["impactSVHN"],
}
ENCODERS = {
    "EfficientNetB0": "efficientnet_b0",
    "MobileNet-v2": "mobilenet_v2",
    "MobileNet": "mobilenet_v2",
    "ResNet18": "resnet18",
    "GoogLeNet": "googlenet",
    "DenseNet": "densenet",
    "ShuffleNet": "shufflenet_v2",
}
VARIANTS = {"Standard": "standard", "Only Memory": "only_memory", "Memory Wrap": "memory_wrap"}
DATA = {"SVHN": "svhn", "CIFAR10": "cifar10", "CINIC10": "cinic10"}
NAMES = ENCODERS | VARIANTS | DATA


def printed(label: str) -> tuple[str, list[str], list[tuple[list[str], list[tuple[str, str]]]]]:
    """Of a table of the text: its caption, the heads of its columns, and lines of (heads, (mean, spread) pairs)."""
    text = PAPER.read_text()
    (body,) = [
        part for part in re.findall(r"\\begin{table.*?\\end{table", text, re.DOTALL) if f"{{table:{label}}}" in part
    ]
    body = re.sub(r"\\(quad|textbf|bottomrule|midrule|toprule)|[{}]", " ", body)
    caption = " ".join(body[body.index(r"\caption") : body.index(r"\label")].split())
    lines = [[field.strip() for field in line.split("&")] for line in body.split(r"\\")]
    heads = next(fields for fields in lines if fields[0] in ("Model", "Dataset"))
    found, first = [], ""
    for fields in lines:
        pairs = [re.fullmatch(r"([\d.]+)\s*\$\\pm\$\s*([\d.]+)", field) for field in fields]
        if any(pairs):
            first = fields[0] or first
            numbers = [(pair[1], pair[2]) for pair in pairs if pair]
            found.append(([first, *fields[1 : len(fields) - len(numbers)]], numbers))
    return caption, heads, found


def tabular(label: str) -> str:
    """A table of the text, as it is."""
    text = PAPER.read_text()
    start = text.index(rf"\label{{table:{label}}}")
    return text[start : text.index(r"\end{tabular}", start)]


def words_of(cell: Cell) -> set[str]:
    """The headings of a number's line and column, whichever of these the table has."""
    return {cell.data, cell.encoder, cell.variant, str(cell.samples), str(cell.memory_size)}


@needs_paper
@pytest.mark.parametrize("table", LABELS)
def test_each_number_is_the_one_in_the_text_at_the_same_place(table: str) -> None:
    # In the order of the text, with the heads of line and column: none left out, none twice, none misplaced.
    ours = list(published_table(table).items())
    for label in LABELS[table]:
        caption, heads, lines = printed(label)
        for line_heads, numbers in lines:
            for (mean, spread), column in zip(numbers, heads[-len(numbers) :], strict=True):
                cell, number = ours.pop(0)
                assert (f"{number.mean:.2f}", f"{number.spread:.2f}") == (mean, spread)
                assert {NAMES.get(head, head) for head in (*line_heads, column)} <= words_of(cell)
                assert f"{number.runs} runs" in caption
    assert ours == []


@needs_paper
@pytest.mark.parametrize("table", LABELS)
def test_numbers_of_a_table_are_those_after_its_plus_minus_signs(table: str) -> None:
    # Cruder than the test above, and so sure to see every number: whatever surrounds a sign in the text.
    pairs = []
    for label in LABELS[table]:
        for before, after in pairwise(tabular(label).split(r"$\pm$")):
            mean, spread = re.search(r"([\d.]+)\s*$", before), re.match(r"\s*([\d.]+)", after)
            assert mean is not None
            assert spread is not None
            pairs.append((float(mean[1]), float(spread[1])))
    assert Counter(pairs) == Counter((number.mean, number.spread) for number in published_table(table).values())


@needs_paper
def test_no_table_of_the_text_is_left_out() -> None:
    labels = set(re.findall(r"\\label{table:(.*?)}", PAPER.read_text()))
    assert labels == {label for found in LABELS.values() for label in found} | {"parameters"}


@needs_paper
def test_parameters_are_those_in_the_text() -> None:
    body = tabular("parameters")
    lines = [[field.strip() for field in line.split("&")] for line in body.replace(r"\quad", "").split(r"\\")]
    lines = [[field.split("\n")[-1].strip() for field in fields] for fields in lines if len(fields) == 3]
    counted = [int(field.replace(" ", "")) for fields in lines[1:] for field in fields[1:] if field != "-"]
    assert counted == [number.mean for number in published_table("parameters").values()]


@needs_paper
def test_costs_are_those_in_the_text() -> None:
    text = " ".join(PAPER.read_text().split())
    seconds = re.findall(r"textasciitilde (\d+) seconds when the memory contains (\d+) samples", text)
    numbers = {cell: number.mean for cell, number in published_table("cost").items() if cell.metric == "epoch_seconds"}
    assert [(str(int(mean)), str(cell.memory_size)) for cell, mean in numbers.items()] == seconds
    assert "doubling the training time" in text


def test_tables_have_all_their_numbers() -> None:
    assert table_names() == list(COUNTS)
    assert {table: len(published_table(table)) for table in table_names()} == COUNTS


def test_cells_are_those_of_the_paper_s_experiments() -> None:
    cells = [cell for table in table_names() for cell in published_table(table)]
    assert {cell.encoder for cell in cells} - {""} <= set(encoders.names())
    assert {cell.variant for cell in cells} == {"standard", "only_memory", "memory_wrap"}
    assert {cell.samples for cell in cells} == {None, 1000, 2000, 5000}
    assert all((cell.memory_size == 0) == (cell.variant == "standard") for cell in cells)
    others = [
        cell for table in table_names() if table not in ("memory-size", "cost") for cell in published_table(table)
    ]
    assert {cell.memory_size for cell in others} == {0, 100}


@pytest.mark.parametrize(
    ("table", "cell", "mean", "spread", "runs"),
    [
        ("svhn-reduced", Cell("accuracy", "svhn", 1000, "efficientnet_b0", "standard", 0), 57.70, 7.89, 15),
        ("svhn-reduced", Cell("accuracy", "svhn", 5000, "resnet18", "memory_wrap", 100), 87.74, 0.35, 15),
        ("cifar10-reduced", Cell("accuracy", "cifar10", 1000, "mobilenet_v2", "only_memory", 100), 43.15, 1.35, 15),
        ("cinic10-reduced", Cell("accuracy", "cinic10", 5000, "efficientnet_b0", "only_memory", 100), 44.97, 0.95, 15),
        ("svhn-more", Cell("accuracy", "svhn", 1000, "densenet", "only_memory", 100), 40.94, 12.06, 15),
        ("cifar10-more", Cell("accuracy", "cifar10", 5000, "shufflenet_v2", "only_memory", 100), 70.05, 0.84, 15),
        ("cinic10-more", Cell("accuracy", "cinic10", 2000, "googlenet", "memory_wrap", 100), 50.47, 0.77, 15),
        ("full", Cell("accuracy", "cinic10", None, "mobilenet_v2", "only_memory", 100), 74.60, 0.13, 15),
        (
            "explanations",
            Cell("explanation_accuracy", "svhn", 1000, "mobilenet_v2", "memory_wrap", 100),
            84.26,
            1.29,
            15,
        ),
        (
            "explanations",
            Cell("explanation_accuracy", "cifar10", 5000, "resnet18", "memory_wrap", 100),
            85.86,
            0.46,
            15,
        ),
        (
            "counterfactuals",
            Cell("counterfactual_accuracy", "svhn", 2000, "efficientnet_b0", "memory_wrap", 100),
            40.77,
            2.80,
            15,
        ),
        ("memory-size", Cell("accuracy", "svhn", 1000, "resnet18", "memory_wrap", 500), 40.59, 12.27, 5),
        ("parameters", Cell("parameters", "", None, "mobilenet_v2", "memory_wrap", 100), 15_447_642, None, 1),
        ("cost", Cell("epoch_seconds", "svhn", 5000, "efficientnet_b0", "memory_wrap", 300), 16, None, 1),
    ],
)
def test_numbers_read_off_by_hand(table: str, cell: Cell, mean: float, spread: float | None, runs: int) -> None:
    number = published_table(table)[cell]
    assert (number.mean, number.spread, number.runs) == (mean, spread, runs)


@pytest.mark.parametrize(("encoder", "width"), [("efficientnet_b0", 320), ("mobilenet_v2", 1280), ("resnet18", 512)])
def test_parameters_follow_from_the_last_layer(encoder: str, width: int) -> None:
    # d -> classes; d -> 2d -> classes; 2d -> 4d -> classes, each with biases, in place of one another.
    found = published_table("parameters")
    numbers = {
        cell.variant: found[cell].mean for cell in found if (cell.metric, cell.encoder) == ("parameters", encoder)
    }
    without = numbers["standard"] - (width * 10 + 10)
    assert numbers["only_memory"] == without + (width * 2 * width + 2 * width) + (2 * width * 10 + 10)
    assert numbers["memory_wrap"] == without + (2 * width * 4 * width + 4 * width) + (4 * width * 10 + 10)
    size = Cell("encoding_size", "", None, encoder, "standard", 0)
    assert found[size].mean == width


def test_only_counted_numbers_are_exact() -> None:
    assert all(
        number.exact == (table == "parameters") for table in table_names() for number in published_table(table).values()
    )


def test_slips_of_the_paper_are_kept_and_noted() -> None:
    noted = {cell: number for cell, number in published_table("explanations").items() if number.note}
    (cell,) = noted
    assert (cell.data, cell.samples, cell.variant, noted[cell].mean) == ("cinic10", 5000, "memory_wrap", 74.47)
    assert "SVHN" in table_info("cinic10-reduced").notes[0]
    assert "explanation accuracy" in table_info("counterfactuals").notes[0]


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    expected = re.escape(f"table 'svhn' is not known; known are {', '.join(COUNTS)}")
    with pytest.raises(SettingsError, match=f"^{expected}$"):
        published_table("svhn")


def test_a_changed_answer_changes_no_other() -> None:
    published_table("full").clear()
    assert len(published_table("full")) == COUNTS["full"]


def test_cells_have_an_order_in_which_the_full_data_set_is_last() -> None:
    cells = [Cell("accuracy", "svhn", samples, "resnet18", "standard", 0) for samples in (None, 5000, 1000)]
    assert [cell.samples for cell in sorted(cells)] == [1000, 5000, None]
