"""Results as tables for a terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from memwrap.explain.record import ExplanationRecord, SampleRecord
from memwrap.explain.sentences import image_name, points
from memwrap.report.page import LEAST_SHOWN
from memwrap.runs.record import FitSummary
from memwrap.training.settings import Settings
from memwrap.visible import visible_name

# Accuracy on held-out images, from 0 for guessing to 1; letters and digits are not what the encoder was trained on.
POOR, POOR_FOR_LETTERS = 0.5, 0.97
MOST_CLASSES = 30  # in the table of classes; of more, the worst
WORST = 10
SHORT = 6  # characters: names up to this are heads of columns, for others there are numbers
LEAST_NAME = 24  # characters that a long name has in a line, at least

# The key of each score in the record, and the words on the screen.
_SCORES = {
    "accuracy": "accuracy",
    "explanation_accuracy": "explanation accuracy",
    "counterfactual_share": "counterfactual on top",
    "counterfactual_accuracy": "  accuracy on these",
    "example_accuracy": "  accuracy on the others",
    "majority_vote_accuracy": "majority vote accuracy",
    "vote_accuracy": "vote by label accuracy",
    "head_accuracy": "last layer accuracy",
    "agreement": "  vote and last layer agree",
    "calibration_error": "calibration error",
}
# What decides, for those who read predictions.
DECIDED_BY = {
    "vote": "decided by the vote of the memory images, by their labels",
    "head": "decided by a last layer that reads image and memory",
    "classifier": "decided by the classifier, without the memory images",
}
# Ways to rank images by certainty: the key in the record, and the words on the screen.
_SUREST = {"confidence": "  by probability", "counterfactual_weight": "  by weight on counterfactuals"}
FEW = 100  # images: below this, a share is printed with its count
_ANSWERED = (0.5, 0.8, 0.9)  # shares of the images, points of the recorded curves
# What the heads of columns mean; with drawn memories, by where they are drawn from.
_REMEMBERED = "the memory of {} images that predict uses"
_DRAWN = {
    "training_subset": ("subset", "memories of {} drawn from the images trained on; mean ± deviation of {}"),
    "whole_training_set": ("whole", "the same, drawn from all training images, also those not trained on"),
}


def evaluation(console: Console, record: dict[str, Any]) -> None:
    """Print what `evaluate_run` found."""
    head, left_out = f"{record['run']}: {record['variant']}", dict(record["left_out"])
    if "images" in record:
        console.print(f"{head}, evaluated on {_describe_images(record)}")
        console.print(f"{DECIDED_BY[record['decided_by']]}\n")
        _scores(console, record)
        main = record.get("remembered") or record["standard"]
        _selective(console, main["selective"])
        _calibration(console, main)
        _classes(console, record["classes"], main)
    else:
        console.print(head)
        left_out.pop("accuracy")  # which ends the command with an error
    if memory := record.get("memory"):
        own = memory["own_accuracy"]  # None for a memory of one
        words = "" if own is None else f"; the model predicts the label of {percent(own, 1)} of them"
        console.print(f"memory: {memory['size']} images{words}")
    if use := record.get("remembered", {}).get("memory_use"):
        unused, tenth = percent(use["unused_share"], 1), percent(use["top_tenth_share"], 1)
        console.print(f"a prediction uses {use['samples_per_input']:.1f} of them on average; {unused} are never used")
        console.print(f"the most used tenth has {tenth} of all weight")
    if evidence := record.get("evidence"):
        _evidence(console, evidence)
    for what, why in left_out.items():
        console.print(f"left out: {what} ({why})")


def fit_lines(found: FitSummary, decided_by: str, settings: Settings, classes: Sequence[str]) -> Iterator[str]:
    """What a fitted last layer was chosen by, and what follows for those who want more."""
    if found.vote_accuracy is None or found.head_accuracy is None:
        yield "too few images to hold some out: nothing was chosen by them, and probabilities are rough"
        return
    yield (
        f"on training images that were held out: vote {percent(found.vote_accuracy, 1)} with "
        f"{found.images_used or 0:.1f} images each, last layer alone {percent(found.head_accuracy, 1)}"
    )
    if decided_by == "classifier":
        yield (
            "the last layer decides, as the vote of the images is more than a point worse; explanations show similar "
            "images, which did not decide"
        )
    guessing = 1 / len(classes)
    skill = (max(found.vote_accuracy, found.head_accuracy) - guessing) / (1 - guessing)
    if skill < (POOR_FOR_LETTERS if all(len(name) == 1 for name in classes) else POOR):
        yield (
            f"the encoder {settings.encoder} tells these classes apart poorly, as it was trained on photographs of "
            "things; training from scratch may do better: --encoder small, or --encoder resnet18 with a GPU"
        )


def percent(value: float | None, digits: int = 2) -> str:
    """0.8651 as 86.51 %; none as a dash."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def _describe_images(record: dict[str, Any]) -> str:
    count, split = record["images"], record["split"]
    return f"{count} {split} images" if split in ("test", "validation") else f"{count} images of {split}"


def _scores(console: Console, record: dict[str, Any]) -> None:
    columns: dict[str, dict[str, Any]] = {}
    legend: dict[str, str] = {}
    if "standard" in record:
        columns["no memory"] = record["standard"]
    if scores := record.get("remembered"):
        columns["remembered"], legend["remembered"] = scores, _REMEMBERED.format(scores["memory_size"])
    for source, scores in record.get("drawn", {}).items():
        head, words = _DRAWN[source]
        columns[head] = scores
        legend[head] = words.format(scores["memory_size"], len(scores["accuracy"]["repeats"]))
    table = _table("", *columns)
    for name, words in _SCORES.items():
        if any(name in scores for scores in columns.values()):
            table.add_row(words, *(_cell(scores, name, record["images"]) for scores in columns.values()))
    console.print(table)
    for head, words in legend.items():
        console.print(f"{head}: {words}")
    console.print()


def _selective(console: Console, scores: dict[str, Any]) -> None:
    """The errors that are left if the model answers only where it is certain."""
    table = _table("errors if only the surest are answered", *(percent(share, 0) for share in _ANSWERED), "average")
    for name, words in _SUREST.items():
        if found := scores.get(name):
            risks = dict(found["curve"])
            table.add_row(words, *(percent(risks[share]) for share in _ANSWERED), percent(found["area"]))
    console.print(table)
    best = scores["confidence"]["area"] - scores["confidence"]["excess_area"]
    console.print(f"average: over all shares from one image to all; {percent(best)} if all errors came last")
    if flag := scores.get("flag"):
        sure, accuracy = percent(flag["coverage"], 1), percent(flag["accuracy"])
        console.print(f"the {sure} that predict does not call unsure: accuracy {accuracy}")
        console.print(f"equally many, of the highest probability: accuracy {percent(flag['confidence_accuracy'])}")
    console.print()


def _calibration(console: Console, scores: dict[str, Any]) -> None:
    """What calibration has changed."""
    if before := scores.get("uncalibrated"):
        error, area = scores["calibration_error"], scores["selective"]["confidence"]["area"]
        console.print(
            f"probabilities are calibrated; before that, the calibration error was "
            f"{percent(before['calibration_error'])}\n(now {percent(error)}) and the average of errors "
            f"{percent(before['area'])} (now {percent(area)})\n"
        )
    else:
        console.print("probabilities are not calibrated; --validation holds images out for that\n")


def _cell(scores: dict[str, Any], name: str, images: int) -> str:
    """A score; of few images with its count, as one image more or less changes it much."""
    value = scores.get(name)
    if not isinstance(value, dict):
        counted = _count_behind(scores, name, images)
        if value is None or counted is None or images >= FEW:
            return percent(value)
        return f"{percent(value, 2 if images < 10 else 1)} ({round(value * counted)} of {counted})"
    return percent(None) if value["mean"] is None else f"{percent(value['mean'])} ± {100 * value['spread']:.2f}"


def _count_behind(scores: dict[str, Any], name: str, images: int) -> int | None:
    """How many images a score is a share of; None for a score that is not a share."""
    if name == "calibration_error":
        return None
    if name not in ("counterfactual_accuracy", "example_accuracy"):
        return images
    on_top: int = round(scores["counterfactual_share"] * images)
    return on_top if name == "counterfactual_accuracy" else images - on_top


def _classes(console: Console, classes: list[str], scores: dict[str, Any]) -> None:
    """A row for each class, with its confusions where they fit; otherwise the worst classes and confusions."""
    counts, accuracies = scores["confusion"], scores["class_accuracies"]
    rows = list(range(len(classes)))
    if len(classes) > MOST_CLASSES:
        rows = sorted(rows, key=lambda row: 2.0 if accuracies[row] is None else accuracies[row])[:WORST]
        console.print(f"the {WORST} worst of {len(classes)} classes; --json has all")
    numbered = max(map(cell_len, classes)) > SHORT
    names = [f"{row + 1} {name}" for row, name in enumerate(classes)] if numbered else classes
    heads = [str(row + 1) for row in range(len(classes))] if numbered else classes
    fits = len(classes) <= MOST_CLASSES and _fits(console.width, names, heads, counts)
    table = _table("class", "images", "accuracy", *(heads if fits else []))
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for row in rows:
        others = ["." if count == 0 else str(count) for count in counts[row]] if fits else []
        name = names[row] if fits else classes[row]
        table.add_row(name, str(sum(counts[row])), percent(accuracies[row], 1), *others)
    console.print(table)
    if fits:
        number = " of that number" if numbered else ""
        console.print(f"on the right: how many images of a row were predicted as the class{number}\n")
    else:
        _confusions(console, classes, counts)


def _fits(width: int, names: list[str], heads: list[str], counts: list[list[int]]) -> bool:
    """Whether a column for every class fits next to the class names."""
    columns = zip(heads, zip(*counts, strict=True), strict=True)
    needed = sum(2 + max(cell_len(head), *(len(str(count)) for count in column)) for head, column in columns)
    return width - needed - len("  images  accuracy") >= min(LEAST_NAME, max(map(cell_len, names)))


def _confusions(console: Console, classes: list[str], counts: list[list[int]]) -> None:
    pairs = [
        (count, classes[row], classes[column])
        for row, others in enumerate(counts)
        for column, count in enumerate(others)
        if count and row != column
    ]
    for count, name, other in sorted(pairs, key=lambda pair: -pair[0])[:WORST]:
        console.print(f"{count} x {name} predicted as {other}")
    if len(pairs) > WORST:
        console.print(f"and {len(pairs) - WORST} other confusions, none more frequent")
    console.print()


def _evidence(console: Console, scores: dict[str, Any]) -> None:
    """How far predictions rest on the memory; parts that could not be tried are left out."""
    if (survives := scores["survives_without_examples"]) is not None:
        console.print(f"{percent(survives, 1)} of predictions stay the same without all memory images of their class")
    if (memory := scores["follows_memory"]) is not None:
        console.print(
            f"given the memory part of an image of another class, {percent(memory, 1)} follow the memory, "
            f"{percent(scores['follows_input'], 1)} the image"
        )
    if (specific := scores["specificity"]) is not None:
        console.print(
            f"two images of a class share {percent(1 - specific, 1)} of the memory images that they use; "
            f"{scores['samples_for_half']:.1f} images carry half of the weight"
        )


def _table(label: str, *numbers: str) -> Table:
    """A table without lines, numbers aligned to the right."""
    table = Table(box=None, pad_edge=False)
    table.add_column(label, no_wrap=True)
    for head in numbers:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def explanation(console: Console, record: ExplanationRecord, shown: int) -> None:
    """Print a prediction with up to `shown` of the memory images behind it."""
    label = f", wrong: it is {record.label_name}" if record.wrong else ""
    second = ""
    if record.second is not None and record.second.probability >= LEAST_SHOWN:
        second = f"; then {record.second.prediction_name} ({percent(record.second.probability, 1)})"
    verdict = f"{record.path}: {record.prediction_name} ({percent(record.probability, 1)}){label}{second}"
    console.print(visible_name(verdict))
    console.print(f"  {visible_name(record.sentence)}")
    has_effects = record.decided_by != "classifier"
    table = _table("", "weight", *(["without it"] if has_effects else []))
    for head in ("predicted as", "label", "memory image"):
        table.add_column(head, overflow="fold")
    for place, sample in enumerate(record.shown_samples(shown)):
        if place == shown:
            table.add_row(" ", "...")
        table.add_row(" ", *_sample_cells(sample, has_effects))
    console.print(table)
    for sample in record.shown_samples(shown)[shown:]:
        console.print(f"  ... {record.further_title(sample)}")
    if hidden := record.hidden_samples(shown):
        together = percent(sum(sample.weight for sample in hidden), 1)
        console.print(f"  and {len(hidden)} more with {together} together")
    if record.effect_sentence:
        console.print(f"  {record.effect_sentence}")
    if record.flip_sentence:
        console.print(f"  {visible_name(record.flip_sentence)}")
    console.print()


def _sample_cells(sample: SampleRecord, has_effects: bool) -> tuple[str, ...]:
    differs = "" if sample.prediction in (None, sample.label) else " (differs)"
    cells = (
        percent(sample.weight, 1),
        *(["-" if sample.effect is None else f"{points(sample.effect)} points"] if has_effects else []),
        sample.prediction_name or "-",
        f"{sample.label_name}{differs}",
        f"#{sample.index}" if sample.file is None else f"#{sample.index} {image_name(sample.file)}",
    )
    return tuple(map(visible_name, cells))
