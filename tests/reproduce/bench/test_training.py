"""What training is compared with, and what is left out."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from memwrap.data import RandomMemory
from memwrap.fused import engine
from memwrap.reproduce.bench import training
from memwrap.reproduce.bench.context import BenchContext, random_images
from memwrap.reproduce.bench.record import Measurement, Skipped
from tests.reproduce.bench import PretendGpu, make_context, seen

LOOP, SIDE_BY_SIDE = "our loop", "our 2 runs side by side, each"
MEMORIES = ["Memory Wrap, two passes", "Memory Wrap, batch as memory"]


def measured(where: BenchContext) -> tuple[dict[str, list[Measurement]], list[Skipped]]:
    """Measurements by base and unit, and what was skipped."""
    rows: dict[str, list[Measurement]] = {}
    left_out = []
    for finding in (*training.measure_steps(where, "tiny"), *training.measure_trainings(where, "tiny")):
        if isinstance(finding, Measurement):
            rows.setdefault(f"{finding.base}, {finding.unit}", []).append(finding)
        else:
            left_out.append(finding)
    return rows, left_out


def names(rows: list[Measurement]) -> list[str]:
    return [row.name for row in rows]


def test_on_a_cpu_the_loop_is_measured() -> None:
    rows, left_out = measured(make_context())
    assert names(rows["published loop, step"]) == ["published, arithmetic alone", LOOP]
    assert names(rows["Standard, step"]) == MEMORIES
    assert names(rows["published loop, training"]) == [LOOP] * 2
    assert [(each.subject, each.reason) for each in left_out] == [("tiny, runs side by side", "needs a GPU and Triton")]
    parts = {(row.part, row.unit, row.encoder) for group in rows.values() for row in group}
    assert parts == {("steps", "step", "tiny"), ("training", "training", "tiny")}


def test_on_a_gpu_runs_side_by_side_are_measured_too() -> None:
    rows, left_out = measured(make_context(PretendGpu))
    fairer = "published loop, cuDNN not deterministic"
    assert names(rows["published loop, step"]) == [fairer, "published, arithmetic alone", LOOP, SIDE_BY_SIDE]
    assert names(rows["Standard, step"]) == MEMORIES
    assert names(rows["published loop, training"]) == [LOOP, SIDE_BY_SIDE] * 2
    assert left_out == []


@pytest.mark.parametrize(("kind", "way"), [(BenchContext, LOOP), (PretendGpu, SIDE_BY_SIDE)])
def test_memories_of_several_sizes_are_drawn_for_each_step(
    kind: type[BenchContext], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: set[int] = set()
    draw = RandomMemory.draw

    def watched(self: RandomMemory, *given: Any) -> Tensor:
        found = draw(self, *given)
        drawn.add(len(found))
        return found

    monkeypatch.setattr(RandomMemory, "draw", watched)
    rows = [
        each
        for each in training.measure_sizes(make_context(kind, memory_sizes=(2, 5)), "tiny")
        if isinstance(each, Measurement)
    ]
    assert [(row.name, row.base) for row in rows] == [(f"Memory Wrap, memory of {n}", "Standard") for n in (2, 5)]
    assert {(row.part, row.subject, row.unit) for row in rows} == {("sizes", f"one step, {way}", "step")}
    assert [row.facts["memory_size"] for row in rows] == [2, 5]
    assert drawn == {2, 5}


def test_times_are_of_one_step_of_one_run() -> None:
    where = make_context(PretendGpu, steps=2)
    list(training.steps_versus_published(where, "tiny"))
    # Two epochs of two steps make at least three steps, in each of two runs.
    assert {name: each.units for name, each in seen(where).items()} == {
        "published loop": 2,
        "published loop, cuDNN not deterministic": 2,
        "published, arithmetic alone": 2,
        LOOP: 2,
        SIDE_BY_SIDE: 8,
    }


def test_as_many_steps_are_taken_as_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    step = engine.optimization_step

    def count_steps(predict: Any, labels: Tensor, *others: Any) -> object:
        taken.append(len(labels))  # of each run
        return step(predict, labels, *others)

    monkeypatch.setattr(engine, "optimization_step", count_steps)
    monkeypatch.setattr(engine, "FIRST_STEPS", 1)
    where = make_context(PretendGpu)
    list(training.steps_versus_standard(where, "tiny"))
    # Three candidates of two runs each warm up with their first step before the one round.
    assert sum(taken) == 3 * 2 + sum(each.units for each in seen(where).values())


def test_whole_trainings_are_of_each_run() -> None:
    where = make_context(PretendGpu, epochs=2, rounds=3, training_rounds=2)
    rows = list(training.trainings_versus_published(where, "tiny"))
    assert {name: each.units for name, each in seen(where).items()} == {"published loop": 1, LOOP: 1, SIDE_BY_SIDE: 2}
    assert [(row.subject, row.name, row.rounds) for row in rows if isinstance(row, Measurement)] == [
        (f"{which} training of a process, 4 steps", name, rounds)
        for which, rounds in (("first", 1), ("another", 2))
        for name in (LOOP, SIDE_BY_SIDE)
    ]


def test_rows_say_under_which_conditions() -> None:
    rows, _ = measured(make_context())
    ours = rows["published loop, step"][-1]
    assert ours.facts == {
        "images": 16,
        "batch": 8,
        "memory": "random",
        "memory_size": 4,
        "precision": "fp32",
        "channels_last": False,
        "data": "uint8, on cpu",
        "cudnn_benchmark": False,
        "cudnn_deterministic": False,
    }
    assert "DataLoader without workers" in ours.base_facts["data"]
    two, batch = rows["Standard, step"]
    assert (two.facts["memory_size"], batch.facts["memory_size"]) == (4, None)
    assert (batch.facts["memory"], batch.base_facts["memory"]) == ("batch", None)


def test_published_candidates_have_cudnn_as_published() -> None:
    rows, _ = measured(make_context(PretendGpu))
    steps, trainings = rows["published loop, step"], rows["published loop, training"]
    assert all(row.base_facts["cudnn_deterministic"] for row in (*steps, *trainings))
    deterministic = {row.name: row.facts["cudnn_deterministic"] for row in (*steps, *trainings)}
    assert [name for name, is_so in deterministic.items() if is_so] == ["published, arithmetic alone"]
    assert not any(row.base_facts["cudnn_benchmark"] for row in (*steps, *trainings))
    by_time = {row.name for row in (*steps, *trainings) if row.facts["cudnn_benchmark"]}
    assert by_time == {SIDE_BY_SIDE}, "only a captured step has its kernels chosen by time"


def test_without_the_published_package_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memorywrap", None)
    rows, left_out = measured(make_context())
    assert list(rows) == ["Standard, step"]
    assert [each.subject for each in left_out] == [
        "tiny, one step versus the published loop's",
        "tiny, runs side by side",
        "tiny, a whole training versus the published loop's",
    ]
    assert all("pip install memorywrap" in each.reason for each in left_out[::2])


def test_random_images_can_be_classified() -> None:
    data = random_images(200)
    pixels = torch.cat(list(data.images.batches([torch.arange(200)]))).float()
    bands = torch.stack([pixels[data.labels == label].mean(dim=(0, 1, 3)) for label in range(10)])
    centres = (torch.arange(10) * 32 + 16) // 10
    assert bands[:, centres].argmax(dim=0).tolist() == list(range(10))
    assert bands.max() < 255
