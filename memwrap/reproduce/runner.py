"""Trains and evaluates the missing runs, one group of seeds after another; each record is written at once.

A run is trained as by `memwrap train`, with the same draws, and evaluated as by `memwrap evaluate`, without a folder.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch

from memwrap.data import DataSet, InMemoryImages, LabelledImages
from memwrap.errors import DataError, DivergedError, MemwrapError, NonFiniteError, brief
from memwrap.models.inference import encode_all
from memwrap.nn import gpu
from memwrap.reproduce.provenance import Provenance, current_date, current_provenance
from memwrap.reproduce.records import Failure, ImageInfo, RunRecord, Seconds, source_name
from memwrap.reproduce.scores import score_run
from memwrap.reproduce.tasks import TRAINING_IMAGES, Task, split_groups
from memwrap.runs.drawn import Encode
from memwrap.runs.splits import Splits, split
from memwrap.runs.training import device_name, new_training
from memwrap.storage.fingerprint import fingerprint
from memwrap.training.settings import Settings
from memwrap.training.trainer import Trainer

MAX_SIDE_BY_SIDE = 15  # runs on one GPU: the paper's number of seeds
GIB_PER_RUN = 4  # of GPU memory, generously: a run of MobileNetV2 needs 2
ENCODE_BATCH = 2000  # images, on a GPU


class Engine(Protocol):
    """Trains models: `Loop`, or one that trains them side by side on a GPU."""

    def train(
        self, trainers: Sequence[Trainer], progress: Callable[[int, int], None], stop: Callable[[], bool]
    ) -> Sequence[DivergedError | None]:
        """Run each Trainer to its end, or until `stop`; return an error for each that diverged.

        The trainers differ in their seed alone. progress(steps done, steps) is called now and then. Other errors are
        raised; the caller then tries each half of the trainers.
        """


class Loop:
    """The plain engine: one run after the other. Stops between any two steps."""

    def train(
        self, trainers: Sequence[Trainer], progress: Callable[[int, int], None], stop: Callable[[], bool]
    ) -> list[DivergedError | None]:
        failures: list[DivergedError | None] = [None] * len(trainers)
        for number, trainer in enumerate(trainers):
            try:
                for metrics in trainer.run():
                    progress(metrics.step, metrics.steps)
                    if stop():
                        return failures
            except DivergedError as error:
                failures[number] = error
        return failures


@dataclass(frozen=True)
class RunConfig:
    """How runs are made. name: the engine's name in records."""

    engine: Engine
    name: str
    device: torch.device
    side_by_side: int = 1  # runs of a group that the engine gets at a time
    encode: Encode = encode_all
    settings_for: Callable[[Task], Settings] = Task.settings

    @classmethod
    def for_device(cls, device: torch.device, loop: bool = False) -> "RunConfig":
        """The fastest engine for a device; the plain loop, one run after the other, if that is asked for."""
        if loop or not gpu.kernels_run_on(device):
            return cls(Loop(), "loop", device)
        from memwrap.fused import FusedEngine

        fitting = torch.cuda.get_device_properties(device).total_memory // (GIB_PER_RUN << 30)
        side_by_side = max(1, min(MAX_SIDE_BY_SIDE, fitting))
        return cls(FusedEngine(), "graph", device, side_by_side, partial(encode_all, at_once=ENCODE_BATCH))


@dataclass(frozen=True)
class Status:
    """The progress of a list of runs."""

    needed: int
    done: int  # with a result, including earlier ones
    failed: int  # in this call
    news: tuple[RunRecord | Failure, ...]  # since the last status
    next: tuple[Task, ...]  # about to start
    left: tuple[Task, ...]  # not yet tried, including `next`


@dataclass(frozen=True)
class Outcome:
    """The result of `run_missing`."""

    made: tuple[RunRecord, ...]
    failures: tuple[Failure, ...]
    stopped: bool  # before the last run


def run_missing(
    tasks: Sequence[Task],
    known: Mapping[Task, RunRecord],
    open_data: Callable[[str], DataSet],
    config: RunConfig,
    sink: Callable[[RunRecord | Failure], None],
    progress: Callable[[Status], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    steps: Callable[[int, int], None] = lambda *_: None,
) -> Outcome:
    """Make the runs that are not known, and pass each record to the sink at once.

    open_data: opens a data set by name; each is opened once, all before the first step.
    progress: called before each group and at the end. steps: called during training.
    stop: checked between groups, and by the engine. Runs that it interrupts leave no record.
    """
    missing = [task for task in dict.fromkeys(tasks) if task not in known]
    data = {name: _move(open_data(name), config.device) for name in dict.fromkeys(task.data for task in missing)}
    check_known_images(known.values(), data)
    _check_data(missing, data, config.settings_for)
    groups = split_groups(missing, max(1, config.side_by_side))
    log = _Log(len(set(tasks)), len(set(tasks)) - len(missing))
    for number, group in enumerate(groups):
        progress(log.status(groups[number:]))
        for entry in () if stop() else _run_group(group, data[group[0].data], config, steps, stop):
            sink(entry)
            log.entries.append(entry)
        if stop() and len(log.entries) < len(missing):
            return log.outcome(stopped=True)
    progress(log.status([]))
    return log.outcome(stopped=False)


@dataclass
class _Log:
    """The entries made so far."""

    needed: int
    known: int
    entries: list[RunRecord | Failure] = field(default_factory=list)
    reported: int = 0  # of the entries

    def status(self, groups: Sequence[Sequence[Task]]) -> Status:
        news, self.reported = tuple(self.entries[self.reported :]), len(self.entries)
        outcome = self.outcome(stopped=False)
        return Status(
            needed=self.needed,
            done=self.known + len(outcome.made),
            failed=len(outcome.failures),
            news=news,
            next=tuple(groups[0]) if groups else (),
            left=tuple(task for group in groups for task in group),
        )

    def outcome(self, stopped: bool) -> Outcome:
        made = tuple(entry for entry in self.entries if isinstance(entry, RunRecord))
        failures = tuple(entry for entry in self.entries if isinstance(entry, Failure))
        return Outcome(made, failures, stopped)


def check_known_images(known: Iterable[RunRecord], data: Mapping[str, DataSet]) -> None:
    """Raise a DataError if records are of other images than the data: a table does not mix them."""
    for record in known:
        opened = data.get(record.task.data)
        if opened is not None and opened.fingerprint != record.images.fingerprint:
            raise DataError(
                f"{record.task.data}: {source_name(opened)} holds other images than the record of {record.task.name} "
                f"({record.images.source}, {record.images.training} for training). Give the same images, or write "
                "these runs to another file with --records"
            )


def _move(data: DataSet, device: torch.device) -> DataSet:
    """Put images that are held in memory on the GPU, once for all runs."""
    if device.type != "cuda":
        return data

    def move(images: LabelledImages) -> LabelledImages:
        held = images.images
        return replace(images, images=held.to(device)) if isinstance(held, InMemoryImages) else images

    return replace(data, train=move(data.train), test=None if data.test is None else move(data.test))


def _check_data(tasks: Sequence[Task], data: Mapping[str, DataSet], settings_for: Callable[[Task], Settings]) -> None:
    """Raise a DataError before the first step if there are too few images for a later run."""
    for group in split_groups(tasks, len(tasks) or 1):
        task = group[0]
        try:
            splits = split(data[task.data], settings_for(task))
        except DataError as error:
            raise DataError(
                f"{task.data}: {source_name(data[task.data])} cannot be used for {task.group}: {error}"
            ) from error
        if not len(splits.test):
            raise DataError(f"{task.data}: has no test images; name a data set that has some")


@dataclass(frozen=True)
class _Run:
    task: Task
    data: DataSet
    splits: Splits
    trainer: Trainer


@dataclass(frozen=True)
class _Trained:
    """Runs as the engine left them, each with its error if it diverged; and the seconds that each took."""

    runs: list[tuple[_Run, DivergedError | None]]
    seconds: float


def _run_group(
    group: Sequence[Task],
    data: DataSet,
    config: RunConfig,
    steps: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> Iterator[RunRecord | Failure]:
    """Yield an entry for each task as soon as it is evaluated; none for those that were stopped."""
    origin = current_provenance(device_name(config.device), config.name, len(group))
    trained = _train(group, data, config, steps, stop)
    if isinstance(trained, _Trained):
        while trained.runs:  # each is released after its evaluation
            run, failure = trained.runs.pop(0)
            if failure is not None:
                yield Failure(run.task, _reason(failure), origin, current_date())
            elif run.trainer.progress.step == run.trainer.steps:
                yield _evaluate(run, trained.seconds, config, origin)
    elif len(group) == 1:
        yield Failure(group[0], trained, origin, current_date())
    else:
        # One of them failed, or they were too many at once: halving finds out which, or how many fit.
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            if config.device.type == "cuda":
                torch.cuda.empty_cache()
            if not stop():
                yield from _run_group(half, data, config, steps, stop)


def _train(
    group: Sequence[Task],
    data: DataSet,
    config: RunConfig,
    steps: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> _Trained | str:
    """Train the runs of a group. Returns the reason of a failure as text, as an exception would keep their memory."""
    begun = time.monotonic()
    try:
        runs = []
        for task in group:
            splits, trainer = new_training(data, config.settings_for(task), config.device)
            runs.append(_Run(task, data, splits, trainer))
        failures = config.engine.train([run.trainer for run in runs], steps, stop)
        if config.device.type == "cuda":
            torch.cuda.synchronize(config.device)
    except Exception as error:  # compilers and drivers raise errors of their own kinds, and other runs continue
        return _reason(error)
    return _Trained(list(zip(runs, failures, strict=True)), (time.monotonic() - begun) / len(runs))


def _evaluate(run: _Run, seconds: float, config: RunConfig, origin: Provenance) -> RunRecord | Failure:
    begun = time.monotonic()
    data, settings = run.data, run.trainer.settings
    try:
        paper = TRAINING_IMAGES.get(run.task.data)
        metrics = score_run(run.trainer.model, data, run.splits, settings, paper, config.encode)
        images = ImageInfo(source_name(data), data.fingerprint, len(data.train), metrics["images"])
        took = Seconds(round(seconds, 3), round(time.monotonic() - begun, 3))
        subset = fingerprint({"train": run.splits.train})
        return RunRecord(run.task, settings, images, subset, origin, took, current_date(), metrics)
    except NonFiniteError as error:
        return Failure(run.task, _reason(run.trainer.diverged(str(error))), origin, current_date())
    except Exception as error:
        return Failure(run.task, _reason(error), origin, current_date())


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, MemwrapError) else brief(error)
