"""Estimated durations of runs: from records of similar runs on the same device, or a guess where there are none."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from memwrap.reproduce.records import RunRecord
from memwrap.reproduce.tasks import BATCH, STANDARD, TRAINING_IMAGES, Task
from memwrap.training.settings import Settings

# Seconds of a training step on 128 images without a memory. On an H200: for one of several runs side by side, from
# records; and for the loop, from the published code's arithmetic for the paper's three encoders. On two server cores.
STEP_SECONDS = {
    "graph": {"efficientnet_b0": 0.0013, "mobilenet_v2": 0.0021, "resnet18": 0.0018, "googlenet": 0.017,
              "densenet": 0.010, "shufflenet_v2": 0.006},
    "cuda": {"efficientnet_b0": 0.025, "mobilenet_v2": 0.019, "resnet18": 0.010, "googlenet": 0.03, "densenet": 0.06,
             "shufflenet_v2": 0.02},
    "cpu": {"efficientnet_b0": 4.0, "mobilenet_v2": 4.0, "resnet18": 2.4, "googlenet": 15.0, "densenet": 6.0,
            "shufflenet_v2": 3.0},
}  # fmt: skip
OTHER_ENCODER = "resnet18"  # used for one that is not listed
BATCH_SIZE = 128
FORWARD = 1 / 3  # of a step's time: a prediction has no backward pass

TEST_IMAGES = {"svhn": 26_032, "cifar10": 10_000, "cinic10": 90_000}  # in the published data sets
OTHER_IMAGES = 10_000


@dataclass(frozen=True)
class Estimate:
    """The total duration of some runs."""

    seconds: float
    runs: int
    guessed: int  # runs without a similar record


def estimate_duration(
    tasks: Iterable[Task],
    records: Iterable[RunRecord],
    device: str,
    engine: str,
    settings_for: Callable[[Task], Settings] = Task.settings,
) -> Estimate:
    """Estimate the total duration of tasks on a device, by its name in records, with an engine."""
    similar = [each for each in records if (each.origin.device, each.origin.engine) == (device, engine)]
    known: dict[str, float | None] = {}
    seconds, guessed, count = 0.0, 0, 0
    for task in tasks:
        if task.group not in known:
            known[task.group] = _from_records(task, similar, settings_for)
        found = known[task.group]
        seconds += _guess(task, device, engine, settings_for) if found is None else found
        guessed += found is None
        count += 1
    return Estimate(seconds, count, guessed)


def _from_records(task: Task, records: Sequence[RunRecord], settings_for: Callable[[Task], Settings]) -> float | None:
    """The median of the same group, or an extrapolation by steps from the same model on other data; else None."""
    same = [each.seconds for each in records if each.task.group == task.group]
    if same:
        return statistics.median(each.training + each.evaluation for each in same)
    similar = [each for each in records if each.task.model[1:] == task.model[1:]]
    if not similar:
        return None
    step = statistics.median(each.seconds.training / _steps(each.task, settings_for) for each in similar)
    evaluated = [each for each in similar if each.task.data == task.data] or similar
    return step * _steps(task, settings_for) + statistics.median(each.seconds.evaluation for each in evaluated)


def _guess(task: Task, device: str, engine: str, settings_for: Callable[[Task], Settings]) -> float:
    table = STEP_SECONDS["cpu" if device == "cpu" else "graph" if engine == "graph" else "cuda"]
    per_image = table.get(task.encoder, table[OTHER_ENCODER]) / BATCH_SIZE
    second_pass = 0 if task.memory == BATCH or task.variant == STANDARD else task.memory_size
    training = _steps(task, settings_for) * (BATCH_SIZE + second_pass) * per_image
    evaluated = TEST_IMAGES.get(task.data, OTHER_IMAGES)
    if task.variant != STANDARD:
        evaluated += TRAINING_IMAGES.get(task.data, OTHER_IMAGES)
    return training + evaluated * per_image * FORWARD


def _steps(task: Task, settings_for: Callable[[Task], Settings]) -> int:
    settings = settings_for(task)
    images = task.samples or TRAINING_IMAGES.get(task.data, OTHER_IMAGES)
    return max(1, (settings.epochs or 1) * (images // (settings.batch_size or BATCH_SIZE)))
