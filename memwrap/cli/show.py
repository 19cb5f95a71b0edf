"""Results as tables for a terminal."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

MOST_CLASSES = 30  # in a confusion matrix; larger ones are in the record

# What each score is called in the record, and on the screen.
_SCORES = {
    "accuracy": "accuracy",
    "explanation_accuracy": "explanation accuracy",
    "counterfactual_share": "counterfactual on top, share",
    "counterfactual_accuracy": "accuracy on these",
    "example_accuracy": "accuracy on the others",
    "majority_vote_accuracy": "accuracy of a plain majority vote",
    "calibration_error": "calibration error",
}


def evaluation(console: Console, record: dict[str, Any]) -> None:
    """Print what `evaluate_run` found."""
    if "images" in record:
        console.print(f"{record['run']}: {record['variant']}, judged on {record['images']} {record['split']} images")
        _scores(console, record)
        main = record.get("remembered") or record["standard"]
        _classes(console, record["classes"], main)
        if len(record["classes"]) <= MOST_CLASSES:
            _confusion(console, record["classes"], main["confusion"])
    else:
        console.print(f"{record['run']}: {record['variant']}")
    if record.get("memory"):
        _memory(console, record["memory"])
    for what, why in record["left_out"].items():
        console.print(f"left out: {what} ({escape(why)})", highlight=False)


def percent(value: float | None, digits: int = 2) -> str:
    """0.8651 as 86.51 %; none as a dash."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def _scores(console: Console, record: dict[str, Any]) -> None:
    table = Table("", box=None, pad_edge=False)
    columns = []
    if "standard" in record:
        table.add_column("no memory", justify="right")
        columns.append(record["standard"])
    if "remembered" in record:
        size = record["remembered"]["memory_size"]
        table.add_column(f"remembered memory\n({size} images, as predict uses)", justify="right")
        columns.append(record["remembered"])
    for source, scores in record.get("drawn", {}).items():
        title = f"memories of {scores['memory_size']} drawn from\nthe {source.replace('_', ' ')}"
        table.add_column(title, justify="right")
        columns.append(scores)
    for name, words in _SCORES.items():
        if any(name in scores for scores in columns):
            table.add_row(words, *(_cell(scores.get(name)) for scores in columns))
    console.print(table)


def _cell(value: Any) -> str:
    if not isinstance(value, dict):
        return percent(value)
    return (
        percent(value["mean"]) if value["mean"] is None else f"{percent(value['mean'])} ± {100 * value['spread']:.2f}"
    )


def _classes(console: Console, classes: list[str], scores: dict[str, Any]) -> None:
    table = Table("class", box=None, pad_edge=False)
    for title in ("images", "accuracy"):
        table.add_column(title, justify="right")
    for name, row, accuracy in zip(classes, scores["confusion"], scores["class_accuracies"], strict=True):
        table.add_row(escape(name), str(sum(row)), percent(accuracy, 1))
    console.print(table)


def _confusion(console: Console, classes: list[str], counts: list[list[int]]) -> None:
    table = Table("is \\ taken for", box=None, pad_edge=False)
    for name in classes:
        table.add_column(escape(name), justify="right")
    for name, row in zip(classes, counts, strict=True):
        table.add_row(escape(name), *("." if count == 0 else str(count) for count in row))
    console.print(table)


def _memory(console: Console, memory: dict[str, Any]) -> None:
    console.print(
        f"memory: {memory['size']} images; the model itself puts {percent(memory['own_accuracy'], 1)} of them into "
        "their class",
        highlight=False,
    )
