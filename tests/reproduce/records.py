"""Records of runs that never were."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memwrap.reproduce.provenance import Provenance
from memwrap.reproduce.records import Failure, ImageInfo, RunRecord, Seconds
from memwrap.reproduce.tasks import RANDOM, STANDARD, Task, select_cells, tasks_for_cells
from memwrap.training.recipes import resolve_settings

TASK = Task("svhn", 1000, "mobilenet_v2", "memory_wrap", 100, 3)
ORIGIN = Provenance("0123456789abcdef", False, "c0de", {"memwrap": "0.1.0", "torch": "2.11"}, "cpu", "loop", 1)
DIGITS = tuple("0123456789")


def drawn(accuracy: float, explanation: float, counterfactual: float | None) -> dict[str, Any]:
    values = {
        "accuracy": accuracy,
        "explanation_accuracy": explanation,
        "counterfactual_accuracy": counterfactual,
    }
    return {name: {"mean": value, "spread": 0.0, "repeats": [value] * 5} for name, value in values.items()}


def metrics_for(task: Task, accuracy: float) -> dict[str, Any]:
    if task.variant == STANDARD:
        return {"images": 26032, "standard": {"accuracy": accuracy}}
    # Of the subset other than of the whole set, so that mixing them up shows.
    sources = {"training_subset": drawn(accuracy, 0.9, 0.4), "whole_training_set": drawn(accuracy / 2, 0.8, 0.5)}
    return {"images": 26032, "drawn": sources}


def recorded(task: Task = TASK, accuracy: float = 0.6, **changes: Any) -> RunRecord:
    """What such a run would have left."""
    record = RunRecord(
        task=task,
        settings=resolve_settings(task.settings(), task.samples or 67257, DIGITS).replace(precision="fp32"),
        images=ImageInfo(task.data, "f00d", 73257, 26032),
        subset="5e7",
        origin=ORIGIN,
        seconds=Seconds(12.0, 3.0),
        date="2026-11-16T04:00:00+00:00",
        metrics=metrics_for(task, accuracy),
    )
    return replace(record, **changes)


def failed(task: Task = TASK, reason: str = "training diverged") -> Failure:
    return Failure(task, reason, ORIGIN, "2026-11-16T04:00:00+00:00")


def tasks_of(table: str, seeds: Sequence[int], memory: str = RANDOM, **part: Any) -> list[Task]:
    """The runs that a table needs, or a part of it, as `select_cells` takes it."""
    return tasks_for_cells(select_cells(table, **part), seeds, memory)
