"""Runs that are missing, one group of seeds after the other; each leaves its record as soon as it is judged.

A run is made as `memwrap train` makes it, with the same draws, and judged as `memwrap evaluate` judges it; no folder
is left of it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from memwrap.data import DataSet, InMemoryImages, LabelledImages
from memwrap.errors import DataError, DivergedError, MemwrapError, NonFiniteError, brief
from memwrap.models.inference import encode_all
from memwrap.reproduce import records
from memwrap.reproduce.grid import TRAINING_IMAGES, Task, grouped, settings_of
from memwrap.reproduce.records import Failure, Origin, Record, Seconds, origin_of, source_name
from memwrap.reproduce.scores import metrics_of
from memwrap.runs.drawn import Encode
from memwrap.runs.splits import Splits, split
from memwrap.runs.training import device_name, new_training
from memwrap.storage.fingerprint import fingerprint
from memwrap.training.settings import Settings
from memwrap.training.trainer import Trainer


class Engine(Protocol):
    """Trains models: `Loop`, or one that trains them side by side on a GPU."""

    def train(
        self, trainers: Sequence[Trainer], progress: Callable[[int, int], None], stop: Callable[[], bool]
    ) -> Sequence[DivergedError | None]:
        """Run each Trainer to its end, or until `stop`, and say which diverged; they differ in their seeds alone.

        progress(steps done, steps): now and then. What else goes wrong is raised, and then both halves are tried.
        """


class Loop:
    """The plain engine: one run after the other, which may be stopped between any two steps."""

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
    """How runs are made, whichever they are. name: what records call the engine."""

    engine: Engine
    name: str
    device: torch.device
    side_by_side: int = 1  # runs of a group that are given to the engine together
    encode: Encode = encode_all
    settings_for: Callable[[Task], Settings] = settings_of


@dataclass(frozen=True)
class Standing:
    """How far a list of runs has come."""

    needed: int
    done: int  # with a result, those of earlier days among them
    failed: int  # just now
    news: tuple[Record | Failure, ...]  # since this was told last
    next: tuple[Task, ...]  # about to be tried
    left: tuple[Task, ...]  # not yet tried, `next` among them


@dataclass(frozen=True)
class Outcome:
    """What `run_missing` has done."""

    made: tuple[Record, ...]
    failures: tuple[Failure, ...]
    stopped: bool  # before the last run


@dataclass(frozen=True)
class Prepared:
    """A run before its first step."""

    task: Task
    data: DataSet
    splits: Splits
    trainer: Trainer


def run_missing(
    tasks: Sequence[Task],
    known: Mapping[Task, Record],
    data_for: Callable[[str], DataSet],
    means: RunConfig,
    sink: Callable[[Record | Failure], None],
    progress: Callable[[Standing], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    steps: Callable[[int, int], None] = lambda *_: None,
) -> Outcome:
    """Make the runs that are not known, and give each record to the sink at once.

    data_for: opens a data set by its name; each is opened once, all before the first step. progress: is told before
    each group and at the end; steps: while one is trained. stop: is asked between groups, and by the engine; runs that
    it cuts short leave no record.
    """
    missing = [task for task in dict.fromkeys(tasks) if task not in known]
    data = _opened(missing, data_for, means.device)
    check_same_images(known.values(), data)
    _check_ahead(missing, data, means.settings_for)
    parts = grouped(missing, max(1, means.side_by_side))
    ledger = _Ledger(len(set(tasks)), len(set(tasks)) - len(missing))
    for place, part in enumerate(parts):
        progress(ledger.standing(parts[place:]))
        for entry in () if stop() else _made(part, data[part[0].data], means, steps, stop):
            sink(entry)
            ledger.entries.append(entry)
        if stop() and len(ledger.entries) < len(missing):
            return ledger.outcome(stopped=True)
    progress(ledger.standing([]))
    return ledger.outcome(stopped=False)


@dataclass
class _Ledger:
    """What has come of the runs so far."""

    needed: int
    known: int
    entries: list[Record | Failure] = field(default_factory=list)
    told: int = 0  # of the entries

    def standing(self, groups: Sequence[Sequence[Task]]) -> Standing:
        news, self.told = tuple(self.entries[self.told :]), len(self.entries)
        now = self.outcome(stopped=False)
        return Standing(
            needed=self.needed,
            done=self.known + len(now.made),
            failed=len(now.failures),
            news=news,
            next=tuple(groups[0]) if groups else (),
            left=tuple(task for group in groups for task in group),
        )

    def outcome(self, stopped: bool) -> Outcome:
        made = tuple(entry for entry in self.entries if isinstance(entry, Record))
        failures = tuple(entry for entry in self.entries if isinstance(entry, Failure))
        return Outcome(made, failures, stopped)


def prepared(task: Task, data: DataSet, settings: Settings, device: torch.device) -> Prepared:
    """The run with its new model: the same images, weights and draws as `memwrap train` with these settings."""
    splits, trainer = new_training(data, settings, device)
    return Prepared(task, data, splits, trainer)


def check_same_images(known: Iterable[Record], data: Mapping[str, DataSet]) -> None:
    """A DataError if records are of other images than those that are now to be trained on: a table mixes no two."""
    for record in known:
        opened = data.get(record.task.data)
        if opened is not None and opened.fingerprint != record.images.fingerprint:
            raise DataError(
                f"{record.task.data}: is to be read from {source_name(opened)}, but the record of {record.task.name} "
                f"is of other images ({record.images.source}, {record.images.training} for training); "
                "give the same images, or keep these runs in another file with --records"
            )


def _opened(tasks: Iterable[Task], data_for: Callable[[str], DataSet], device: torch.device) -> dict[str, DataSet]:
    names = dict.fromkeys(task.data for task in tasks)
    return {name: _on_device(data_for(name), device) for name in names}


def _on_device(data: DataSet, device: torch.device) -> DataSet:
    """With images that fit into memory lying on the GPU, once for all runs."""
    if device.type != "cuda":
        return data

    def moved(images: LabelledImages) -> LabelledImages:
        held = images.images
        return replace(images, images=held.to(device)) if isinstance(held, InMemoryImages) else images

    return replace(data, train=moved(data.train), test=None if data.test is None else moved(data.test))


def _check_ahead(tasks: Sequence[Task], data: Mapping[str, DataSet], settings_for: Callable[[Task], Settings]) -> None:
    """What would only be noticed when the run's turn comes: that there are too few images for it."""
    for group in grouped(tasks, len(tasks) or 1):
        task = group[0]
        try:
            splits = split(data[task.data], settings_for(task))
        except DataError as error:
            raise DataError(
                f"{task.data}: {source_name(data[task.data])} cannot serve for {task.group}, as {error}"
            ) from error
        if not len(splits.test):
            raise DataError(f"{task.data}: has no test images; name a data set that has some")


def _made(
    group: Sequence[Task],
    data: DataSet,
    means: RunConfig,
    steps: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> Iterator[Record | Failure]:
    """An entry for each task, as soon as it is there; none for those that were stopped."""
    origin = origin_of(device_name(means.device), means.name, len(group))
    trained = _trained(group, data, means, steps, stop)
    if not isinstance(trained, str):
        while trained.runs:
            run, failure = trained.runs.pop(0)
            if failure is not None:
                yield Failure(run.task, _reason(failure), origin, records.now())
            elif run.trainer.progress.step == run.trainer.steps:
                yield _judged(run, trained.seconds, means, origin)
    elif len(group) == 1:
        yield Failure(group[0], trained, origin, records.now())
    else:
        # One of them has died, or they were too many at once. In halves, it shows which, or how many are not.
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            _free(means.device)
            if not stop():
                yield from _made(half, data, means, steps, stop)


@dataclass(frozen=True)
class _Trained:
    """Runs as the engine left them, each with the error that it ended in, if any; and the seconds that each took."""

    runs: list[tuple[Prepared, DivergedError | None]]
    seconds: float


def _trained(
    group: Sequence[Task],
    data: DataSet,
    means: RunConfig,
    steps: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> _Trained | str:
    """The runs of a group; or why they could not be trained, in words, as an error would keep their memory."""
    begun = time.monotonic()
    try:
        runs = [prepared(task, data, means.settings_for(task), means.device) for task in group]
        failures = means.engine.train([run.trainer for run in runs], steps, stop)
        _wait(means.device)
    except Exception as error:  # whatever it is, as compilers and drivers have errors of their own kinds: others go on
        return _reason(error)
    return _Trained(list(zip(runs, failures, strict=True)), (time.monotonic() - begun) / len(runs))


def _judged(run: Prepared, seconds: float, means: RunConfig, origin: Origin) -> Record | Failure:
    begun = time.monotonic()
    try:
        published_images = TRAINING_IMAGES.get(run.task.data)
        metrics = metrics_of(
            run.trainer.model, run.data, run.splits, run.trainer.settings, published_images, means.encode
        )
    except NonFiniteError as error:
        return Failure(run.task, _reason(run.trainer.diverged(str(error))), origin, records.now())
    except Exception as error:
        return Failure(run.task, _reason(error), origin, records.now())
    data = run.data
    images = records.Images(source_name(data), data.fingerprint, len(data.train), metrics["images"])
    took = Seconds(round(seconds, 3), round(time.monotonic() - begun, 3))
    subset = fingerprint({"train": run.splits.train})
    return Record(run.task, run.trainer.settings, images, subset, origin, took, records.now(), metrics)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, MemwrapError) else brief(error)


def _wait(device: torch.device) -> None:
    """Until the device has done what it was given, so that times are true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
