"""Runs that are missing: made as `memwrap train` makes them, recorded at once, and stopped or broken without loss."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from memwrap.data import DataSet, digits, open_data
from memwrap.errors import DataError, DivergedError, SaveError
from memwrap.reproduce import runner
from memwrap.reproduce.record_files import append_record
from memwrap.reproduce.records import SHARE, Failure, ImageInfo, RunRecord, read_records
from memwrap.reproduce.runner import Engine, Loop, Outcome, RunConfig, Status, run_missing
from memwrap.reproduce.tasks import STANDARD, Task
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.run import open_run
from memwrap.runs.splits import split
from memwrap.runs.training import begin
from memwrap.storage.fingerprint import fingerprint
from memwrap.training.settings import Settings, with_changes
from memwrap.training.trainer import StepMetrics, Trainer
from tests.cli import environment

SMALL = Settings(validation=20, test=0.2, epochs=2, batch_size=16, memory_size=8, remember=8, warmup=0.0)
STEPS = 4
CPU = torch.device("cpu")
TASK = Task("digits", 32, "tiny", "memory_wrap", 8, 0)


def settings_for(task: Task) -> Settings:
    changes: dict[str, Any] = {name: getattr(task, name) for name in ("encoder", "samples", "variant", "seed")}
    if task.variant != STANDARD:
        changes |= {"memory_size": task.memory_size, "memory": task.memory}
    return with_changes(SMALL, changes, task.name)


def seeds(count: int, task: Task = TASK) -> list[Task]:
    return [replace(task, seed=seed) for seed in range(count)]


@pytest.fixture(scope="module")
def data() -> DataSet:
    return digits()


@dataclass
class Harness:
    """What runs need, and their entries."""

    data: DataSet
    engine: Engine = field(default_factory=Loop)
    side_by_side: int = 1
    settings_for: Callable[[Task], Settings] = settings_for
    entries: list[RunRecord | Failure] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)

    def open(self, name: str) -> DataSet:
        self.opened.append(name)
        return self.data

    def run(self, tasks: Sequence[Task], **options: Any) -> Outcome:
        config = RunConfig(self.engine, "loop", CPU, self.side_by_side, settings_for=self.settings_for)
        known = {entry.task: entry for entry in self.entries if isinstance(entry, RunRecord)}
        return run_missing(tasks, known, self.open, config, self.entries.append, **options)

    @property
    def results(self) -> dict[Task, dict[str, Any]]:
        return {entry.task: entry.metrics for entry in self.entries if isinstance(entry, RunRecord)}


@pytest.fixture
def harness(data: DataSet) -> Harness:
    return Harness(data)


@pytest.fixture(scope="module")
def whole(data: DataSet) -> dict[Task, dict[str, Any]]:
    """The results of four seeds."""
    harness = Harness(data)
    harness.run(seeds(4))
    return harness.results


@dataclass
class RecordingEngine:
    """The loop, which records the trainers it gets."""

    groups: list[list[int]] = field(default_factory=list)
    trainers: list[Trainer] = field(default_factory=list)

    def train(self, trainers: Sequence[Trainer], *others: Any) -> Sequence[DivergedError | None]:
        self.groups.append([trainer.settings.seed for trainer in trainers])
        self.trainers += trainers
        return Loop().train(trainers, *others)


# Memories


def test_memories_are_like_the_paper_s_where_its_images_were_more(harness: Harness) -> None:
    """Digits in the place of SVHN are fewer than the paper had; of digits it had none."""
    harness.run([replace(TASK, data="svhn"), TASK])
    assert [SHARE in metrics["drawn"] for metrics in harness.results.values()] == [True, False]


# The same runs


@pytest.mark.parametrize(
    "task",
    [
        replace(TASK, seed=3),
        replace(TASK, seed=3, memory="batch"),
        replace(TASK, seed=3, variant="only_memory", memory_size=12),
        Task("digits", 32, "tiny", "standard", 0, 3),
        replace(TASK, samples=None, seed=1),
    ],
    ids=lambda task: task.name,
)
def test_a_run_is_the_one_that_train_makes_and_evaluate_scores(task: Task, harness: Harness, tmp_path: Path) -> None:
    # So long that it has learnt something, and other draws would give other scores.
    settings = with_changes(settings_for(task), {"epochs": 40 if task.samples else 1}, "test")
    harness.engine, harness.settings_for = engine, _ = RecordingEngine(), lambda _: settings
    harness.run([task])
    assert begin(tmp_path / "run", harness.data, settings, "default").train()
    run = open_run(tmp_path / "run")
    model = run.model()
    evaluated = evaluate_run(run, model, harness.data, None, "test")
    (record,) = harness.entries
    assert isinstance(record, RunRecord)
    (trainer,) = engine.trainers
    for own, other in ((trainer.model.encoder, model.encoder), (trainer.model.layer, model.layer)):
        assert own.state_dict().keys() == other.state_dict().keys()
        assert all(value.equal(other.state_dict()[name]) for name, value in own.state_dict().items())
    assert record.metrics == {name: evaluated[name] for name in ("images", "standard", "drawn") if name in evaluated}
    assert record.settings == run.settings
    if task.variant != "standard":
        assert len(set(evaluated["drawn"]["training_subset"]["accuracy"]["repeats"])) > 1, "scores depend on the draws"


def test_a_record_is_complete(harness: Harness) -> None:
    harness.run([TASK])
    (record,) = harness.entries
    assert isinstance(record, RunRecord)
    assert record.images == ImageInfo("digits", harness.data.fingerprint, 1797, record.metrics["images"])
    assert record.metrics["drawn"].keys() == {"training_subset", "whole_training_set"}
    assert record.subset == fingerprint({"train": split(harness.data, settings_for(TASK)).train})
    assert (record.origin.device, record.origin.engine, record.origin.side_by_side) == ("cpu", "loop", 1)
    assert record.seconds.training > 0
    assert record.seconds.evaluation > 0
    assert record.date.startswith("20")


def test_variants_of_a_seed_are_trained_on_the_same_subset_and_seeds_on_others(harness: Harness) -> None:
    harness.run([*seeds(2), *seeds(2, Task("digits", 32, "tiny", "standard", 0, 0))])
    subsets = [entry.subset for entry in harness.entries if isinstance(entry, RunRecord)]
    assert subsets[:2] == subsets[2:]
    assert subsets[0] != subsets[1]


@pytest.mark.parametrize(
    ("name", "source"),
    [("/home/me/svhn.zip", "svhn.zip"), ("/home/me/svhn", "./svhn")],  # which is not what is published as svhn
)
def test_of_a_folder_or_zip_a_record_has_the_name_alone(name: str, source: str, harness: Harness) -> None:
    harness.data = replace(harness.data, name=name)
    harness.run([TASK])
    (record,) = harness.entries
    assert isinstance(record, RunRecord)
    assert record.images.source == source


# What is missing, group by group


def test_only_what_is_missing_is_run(harness: Harness, whole: dict[Task, dict[str, Any]]) -> None:
    harness.run(seeds(2))
    harness.engine = engine = RecordingEngine()
    outcome = harness.run(seeds(4))
    assert engine.groups == [[2], [3]]
    assert [record.task.seed for record in outcome.made] == [2, 3]
    assert harness.results == whole


def test_when_nothing_is_missing_no_data_is_opened(harness: Harness) -> None:
    harness.run([TASK])
    harness.opened.clear()
    assert harness.run([TASK]) == Outcome((), (), stopped=False)
    assert harness.opened == []


def test_a_task_given_twice_is_run_once(harness: Harness) -> None:
    assert len(harness.run([TASK, TASK]).made) == 1


def test_seeds_of_a_group_are_given_to_the_engine_together(harness: Harness, whole: dict[Task, dict[str, Any]]) -> None:
    harness.engine, harness.side_by_side = engine, _ = RecordingEngine(), 3
    harness.run([*seeds(4), *seeds(2, replace(TASK, memory="batch"))])
    assert engine.groups == [[0, 1, 2], [3], [0, 1]]
    assert {task: harness.results[task] for task in whole} == whole
    assert [entry.origin.side_by_side for entry in harness.entries] == [3, 3, 3, 1, 2, 2]


@dataclass
class SlowEngine:
    """An engine that sleeps first."""

    seconds: float

    def train(self, trainers: Sequence[Trainer], *others: Any) -> Sequence[DivergedError | None]:
        time.sleep(self.seconds)
        return Loop().train(trainers, *others)


def test_the_seconds_of_runs_side_by_side_add_up_to_what_they_took(harness: Harness) -> None:
    harness.engine, harness.side_by_side = SlowEngine(0.6), 3
    begun = time.monotonic()
    harness.run(seeds(3))
    took = time.monotonic() - begun
    seconds = [entry.seconds for entry in harness.entries if isinstance(entry, RunRecord)]
    assert sum(each.training for each in seconds) >= 0.6, "whatever the engine did counts"
    assert sum(each.training + each.evaluation for each in seconds) <= took
    assert len({each.training for each in seconds}) == 1, "each has its share"


def test_data_is_opened_once_and_before_the_first_step(harness: Harness) -> None:
    harness.engine = engine = RecordingEngine()

    def open_some(name: str) -> DataSet:
        if name == "gone":
            raise DataError("gone: is gone")
        return harness.open(name)

    config = RunConfig(engine, "recording", CPU, settings_for=settings_for)
    with pytest.raises(DataError, match="gone: is gone"):
        run_missing([*seeds(2), replace(TASK, data="gone")], {}, open_some, config, harness.entries.append)
    assert (engine.groups, harness.entries) == ([], [])
    assert harness.opened == ["digits"]


def test_too_few_images_are_reported_before_the_first_step(harness: Harness) -> None:
    harness.engine = engine = RecordingEngine()
    with pytest.raises(DataError, match="5000 images are asked for, but there are"):
        harness.run([TASK, replace(TASK, samples=5000)])
    assert engine.groups == []


def test_records_of_other_images_are_not_added_to(harness: Harness) -> None:
    harness.run(seeds(1))
    harness.data = replace(harness.data, name="others.zip", fingerprint="others")
    harness.engine = engine = RecordingEngine()
    message = r"digits: others.zip .* digits-.*seed0 \(digits, 1797"
    with pytest.raises(DataError, match=message):
        harness.run(seeds(2))
    with pytest.raises(DataError, match=message):
        harness.run(seeds(3)[1:])  # which belong to the same cell
    assert engine.groups == []


def test_progress_is_reported_before_each_group_and_at_the_end(harness: Harness) -> None:
    harness.run(seeds(1))
    reports: list[Status] = []
    harness.run(seeds(3), progress=reports.append)
    assert [(each.needed, each.done, each.failed) for each in reports] == [(3, 1, 0), (3, 2, 0), (3, 3, 0)]
    assert [[task.seed for task in each.left] for each in reports] == [[1, 2], [2], []]
    assert [[task.seed for task in each.next] for each in reports] == [[1], [2], []]
    assert [[entry.task.seed for entry in each.news] for each in reports] == [[], [1], [2]]


# Failures


@dataclass
class FailingEngine:
    """An engine under which some seeds die."""

    seeds: tuple[int, ...]
    error: Exception
    most: int = 10  # at the same time
    groups: list[list[int]] = field(default_factory=list)

    def train(self, trainers: Sequence[Trainer], *others: Any) -> Sequence[DivergedError | None]:
        given = [trainer.settings.seed for trainer in trainers]
        self.groups.append(given)
        if set(given) & set(self.seeds) or len(given) > self.most:
            raise self.error
        return Loop().train(trainers, *others)


class UnknownError(Exception):
    """An error of another library, such as a kernel compiler."""


@pytest.mark.parametrize(
    ("error", "reason", "side_by_side"),
    [
        (DivergedError("training diverged in step 3"), "training diverged in step 3", 1),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to"), "OutOfMemoryError: CUDA out of memory.", 4),
        (MemoryError(), "MemoryError: no message", 1),
        (RuntimeError("CUDA error: an illegal memory access"), "RuntimeError: CUDA error: an illegal memory access", 4),
        (DataError("a.png: is gone"), "a.png: is gone", 1),
        (UnknownError("out of resource: shared memory"), "UnknownError: out of resource: shared memory", 4),
    ],
)
def test_a_run_that_fails_is_recorded_and_the_others_continue(
    error: Exception, reason: str, side_by_side: int, harness: Harness, whole: dict[Task, dict[str, Any]]
) -> None:
    harness.engine, harness.side_by_side = FailingEngine((1,), error), side_by_side
    reports: list[Status] = []
    outcome = harness.run(seeds(4), progress=reports.append)
    assert harness.results == {task: whole[task] for task in whole if task.seed != 1}
    assert [(failure.task.seed, failure.reason) for failure in outcome.failures] == [(1, reason)]
    assert [entry.task.seed for entry in harness.entries] == [0, 1, 2, 3]
    assert (reports[-1].done, reports[-1].failed, outcome.stopped) == (3, 1, False)


def test_a_run_that_failed_is_tried_again(harness: Harness, whole: dict[Task, dict[str, Any]]) -> None:
    harness.engine = FailingEngine((1, 2), DivergedError("diverged"))
    harness.run(seeds(4))
    harness.engine = engine = RecordingEngine()
    harness.run(seeds(4))
    assert engine.groups == [[1], [2]]
    assert harness.results == whole


def test_runs_that_diverged_among_others_are_not_run_again(harness: Harness, whole: dict[Task, dict[str, Any]]) -> None:
    class DivergingEngine(RecordingEngine):
        def train(self, trainers: Sequence[Trainer], *others: Any) -> Sequence[DivergedError | None]:
            super().train(trainers, *others)
            return [DivergedError("lost") if trainer.settings.seed == 2 else None for trainer in trainers]

    harness.engine, harness.side_by_side = engine, _ = DivergingEngine(), 4
    outcome = harness.run(seeds(4))
    assert engine.groups == [[0, 1, 2, 3]]
    assert [(failure.task.seed, failure.reason) for failure in outcome.failures] == [(2, "lost")]
    assert harness.results == {task: whole[task] for task in whole if task.seed != 2}


def test_of_several_that_the_loop_is_given_one_may_diverge(
    harness: Harness, whole: dict[Task, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Trainer.run

    def run(self: Trainer) -> Iterator[StepMetrics]:
        if self.settings.seed == 1:
            raise self.diverged("the loss is nan")
        yield from plain(self)

    monkeypatch.setattr(Trainer, "run", run)
    harness.side_by_side = 4
    outcome = harness.run(seeds(4))
    assert [failure.task.seed for failure in outcome.failures] == [1]
    assert harness.results == {task: whole[task] for task in whole if task.seed != 1}
    assert {entry.origin.side_by_side for entry in harness.entries} == {4}


def test_what_is_too_much_at_once_is_run_in_halves(harness: Harness, whole: dict[Task, dict[str, Any]]) -> None:
    harness.engine, harness.side_by_side = engine, _ = FailingEngine((), torch.OutOfMemoryError("full"), most=2), 4
    harness.run(seeds(4))
    assert engine.groups == [[0, 1, 2, 3], [0, 1], [2, 3]]
    assert harness.results == whole
    assert {entry.origin.side_by_side for entry in harness.entries} == {2}


def test_one_that_fails_among_others_is_found_in_halves(harness: Harness, whole: dict[Task, dict[str, Any]]) -> None:
    harness.engine, harness.side_by_side = engine, _ = FailingEngine((2,), RuntimeError("lost")), 4
    harness.run(seeds(4))
    assert engine.groups == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
    assert harness.results == {task: whole[task] for task in whole if task.seed != 2}


@pytest.mark.parametrize("variant", ["memory_wrap", "standard"])
def test_weights_that_are_lost_in_the_last_step_are_a_failure_and_no_result(variant: str, harness: Harness) -> None:
    class CorruptingEngine(RecordingEngine):
        def train(self, trainers: Sequence[Trainer], *others: Any) -> Sequence[DivergedError | None]:
            failures = super().train(trainers, *others)
            for parameter in trainers[0].model.layer.parameters():
                parameter.data.fill_(torch.nan)
            return failures

    harness.engine = CorruptingEngine()
    outcome = harness.run([Task("digits", 32, "tiny", variant, 8 * (variant != "standard"), 0)])
    assert harness.results == {}
    assert re.match(f"training diverged in step {STEPS} of {STEPS} .*", outcome.failures[0].reason)


def test_a_real_divergence_is_a_failure(harness: Harness) -> None:
    def steep(task: Task) -> Settings:
        return with_changes(settings_for(task), {"lr": 1e30}, "test")

    outcome = run_missing(
        [TASK], {}, harness.open, RunConfig(Loop(), "loop", CPU, settings_for=steep), harness.entries.append
    )
    assert "training diverged in step" in outcome.failures[0].reason


def test_a_run_that_cannot_be_evaluated_is_a_failure_and_the_others_continue(
    harness: Harness, whole: dict[Task, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.score_run

    def score_run(model: Any, data: Any, splits: Any, settings: Any, *others: Any) -> dict[str, Any]:
        if settings.seed == 1:
            raise UnknownError("a kernel that does not fit")
        return real(model, data, splits, settings, *others)

    monkeypatch.setattr(runner, "score_run", score_run)
    outcome = harness.run(seeds(3))
    assert harness.results == {task: whole[task] for task in seeds(3) if task.seed != 1}
    assert [failure.reason for failure in outcome.failures] == ["UnknownError: a kernel that does not fit"]


def test_when_a_record_cannot_be_written_nothing_more_is_run(harness: Harness) -> None:
    engine = RecordingEngine()

    def full(_: object) -> None:
        raise SaveError("the disk is full")

    with pytest.raises(SaveError, match="full"):
        run_missing(seeds(3), {}, harness.open, RunConfig(engine, "recording", CPU, settings_for=settings_for), full)
    assert engine.groups == [[0]]


# Stopped


def after(steps: int) -> tuple[Callable[[], bool], Callable[[int, int], None]]:
    """A `stop` that is True after some steps, and the `steps` callback that counts them."""
    done: list[int] = []
    return lambda: len(done) >= steps, lambda step, _: done.append(step)


@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 2])
@pytest.mark.parametrize("side_by_side", [1, 3])
def test_a_stop_keeps_what_is_done(
    step: int, side_by_side: int, harness: Harness, whole: dict[Task, dict[str, Any]]
) -> None:
    stop, steps = after(step)
    harness.side_by_side = side_by_side
    assert harness.run(seeds(4), stop=stop, steps=steps).stopped
    assert [task.seed for task in harness.results] == list(range(step // STEPS))
    assert not harness.run(seeds(4)).stopped
    assert harness.results == whole


def test_a_stop_in_the_last_step_of_all_comes_too_late(harness: Harness) -> None:
    stop, steps = after(2 * STEPS)
    assert not harness.run(seeds(2), stop=stop, steps=steps).stopped
    assert len(harness.results) == 2


def test_a_stop_before_the_first_step_trains_nothing(harness: Harness) -> None:
    harness.engine = engine = RecordingEngine()
    assert harness.run(seeds(2), stop=lambda: True).stopped
    assert engine.groups == []


def test_steps_are_reported(harness: Harness) -> None:
    reports: list[tuple[int, int]] = []
    harness.run(seeds(2), steps=lambda done, of: reports.append((done, of)))
    assert reports == 2 * [(step, STEPS) for step in range(1, STEPS + 1)]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from memwrap.data import digits
from memwrap.reproduce import runner, record_files
from tests.reproduce.test_runner import seeds, settings_for

torch.set_num_threads(1)
kept = []
def sink(entry):
    record_files.append_record(Path(sys.argv[1]), entry)
    kept.append(entry)
    if len(kept) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
config = runner.RunConfig(runner.Loop(), "loop", torch.device("cpu"), settings_for=settings_for)
runner.run_missing(seeds(4), {}, lambda _: digits(), config, sink)
"""


def test_a_process_that_is_killed_between_records_is_continued(
    harness: Harness, whole: dict[Task, dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment(), cwd=Path.cwd(), check=False)
    assert killed.returncode == -signal.SIGKILL
    known = read_records([path], settings_for)
    assert [task.seed for task in known.results] == [0, 1]
    engine = RecordingEngine()
    config = RunConfig(engine, "recording", CPU, settings_for=settings_for)
    run_missing(seeds(4), known.results, harness.open, config, lambda entry: append_record(path, entry))
    assert engine.groups == [[2], [3]]
    found = read_records([path], settings_for)
    assert {task: record.metrics for task, record in found.results.items()} == whole
    assert found.problems == ()


# Real images

SVHN = Path(__file__).parents[3] / "shared" / "data" / "svhn.zip"


@pytest.mark.skipif(not SVHN.exists(), reason=f"{SVHN} is not there: real images are no part of the project")
def test_real_images_are_trained_on_and_recorded(tmp_path: Path) -> None:
    task = Task("svhn", 16, "tiny", "memory_wrap", 8, 0)

    def short(task: Task) -> Settings:
        return with_changes(task.settings(), {"epochs": 1, "batch_size": 8, "augment": "none"}, "test")

    def a_few(name: str) -> DataSet:
        data = open_data(str(SVHN))
        assert data.test is not None
        few = torch.arange(0, len(data.test), 50)
        return replace(data, train=data.train.at(torch.arange(7000)), test=data.test.at(few))

    path = tmp_path / "records.jsonl"
    config = RunConfig(Loop(), "loop", CPU, settings_for=short)
    run_missing([task], {}, a_few, config, lambda entry: append_record(path, entry))
    (record,) = read_records([path], short).results.values()
    assert record.images.source == "svhn.zip"
    assert (record.images.training, record.images.test) == (7000, 200)
    assert record.metrics["drawn"]["training_subset"]["drawn_from"] == 16
    assert record.metrics["drawn"]["whole_training_set"]["drawn_from"] == 1000, "all but the validation images"
