"""About how long runs take: by records of such runs on the same device, or by a guess where there are none."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from memwrap.reproduce.grid import BATCH, STANDARD, TRAINING_IMAGES, Task, settings_of
from memwrap.reproduce.records import Record
from memwrap.training.settings import Settings

# Seconds for a training step on 128 images without a memory. Of an H200: by runs side by side, each, as records have
# them; and by the loop, for which the published code's arithmetic is taken, from the paper's three encoders on to the
# others. And of two cores of a server.
STEP_SECONDS = {
    "graph": {"efficientnet_b0": 0.0013, "mobilenet_v2": 0.0021, "resnet18": 0.0018, "googlenet": 0.017,
              "densenet": 0.010, "shufflenet_v2": 0.006},
    "cuda": {"efficientnet_b0": 0.025, "mobilenet_v2": 0.019, "resnet18": 0.010, "googlenet": 0.03, "densenet": 0.06,
             "shufflenet_v2": 0.02},
    "cpu": {"efficientnet_b0": 4.0, "mobilenet_v2": 4.0, "resnet18": 2.4, "googlenet": 15.0, "densenet": 6.0,
            "shufflenet_v2": 3.0},
}  # fmt: skip
OTHER_ENCODER = "resnet18"  # taken for one that is not in the table
BATCH_SIZE = 128
FORWARD = 1 / 3  # of a step's time: judging an image has no backward pass

# In the published data sets.
TEST_IMAGES = {"svhn": 26_032, "cifar10": 10_000, "cinic10": 90_000}
OTHER_IMAGES = 10_000


@dataclass(frozen=True)
class Estimate:
    """Seconds for some runs together, and for how many of them they are a guess."""

    seconds: float
    runs: int
    guessed: int


def estimate(
    tasks: Iterable[Task],
    records: Iterable[Record],
    device: str,
    engine: str,
    settings_for: Callable[[Task], Settings] = settings_of,
) -> Estimate:
    """For tasks on a device, by its name as records have it, with an engine."""
    alike = [each for each in records if (each.origin.device, each.origin.engine) == (device, engine)]
    known: dict[str, float | None] = {}
    seconds, guessed, count = 0.0, 0, 0
    for task in tasks:
        if task.group not in known:
            known[task.group] = _by_records(task, alike, settings_for)
        found = known[task.group]
        seconds += _guess(task, device, engine, settings_for) if found is None else found
        guessed += found is None
        count += 1
    return Estimate(seconds, count, guessed)


def _by_records(task: Task, records: list[Record], settings_for: Callable[[Task], Settings]) -> float | None:
    """The median of the same group; else by steps, of the same model on other data. None if there is neither."""
    same = [each.seconds for each in records if each.task.group == task.group]
    if same:
        return statistics.median(each.training + each.evaluation for each in same)
    similar = [each for each in records if _model(each.task) == _model(task)]
    if not similar:
        return None
    a_step = statistics.median(each.seconds.training / _steps(each.task, settings_for) for each in similar)
    judged = [each for each in similar if each.task.data == task.data] or similar
    return a_step * _steps(task, settings_for) + statistics.median(each.seconds.evaluation for each in judged)


def _guess(task: Task, device: str, engine: str, settings_for: Callable[[Task], Settings]) -> float:
    table = STEP_SECONDS["cpu" if device == "cpu" else "graph" if engine == "graph" else "cuda"]
    an_image = table.get(task.encoder, table[OTHER_ENCODER]) / BATCH_SIZE
    second_pass = 0 if task.memory == BATCH or task.variant == STANDARD else task.memory_size
    training = _steps(task, settings_for) * (BATCH_SIZE + second_pass) * an_image
    judged = TEST_IMAGES.get(task.data, OTHER_IMAGES)
    if task.variant != STANDARD:
        judged += TRAINING_IMAGES.get(task.data, OTHER_IMAGES)
    return training + judged * an_image * FORWARD


def _model(task: Task) -> tuple[str, str, int, str]:
    return task.encoder, task.variant, task.memory_size, task.memory


def _steps(task: Task, settings_for: Callable[[Task], Settings]) -> int:
    settings = settings_for(task)
    images = task.samples or TRAINING_IMAGES.get(task.data, OTHER_IMAGES)
    return max(1, (settings.epochs or 1) * (images // (settings.batch_size or BATCH_SIZE)))
