"""Several runs of one kind, trained at the same time on one GPU.

Small networks leave most of a GPU idle, and Python cannot launch their kernels as fast as they run. So the runs are
stacked: one kernel does the work of all, and their step is captured as one CUDA graph. Images lie on the device, every
draw is made ahead, and a replay of the graph takes its step's draws from the place where a counter points. It is the
same step as the loop's, but for what dropout draws.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from memwrap.data import InMemoryImages, derive_seed
from memwrap.errors import DivergedError, SettingsError
from memwrap.fused.stacked.obstacles import unstackable
from memwrap.fused.stacked.stack import Stack, StackedSgd
from memwrap.nn import gpu
from memwrap.nn.layer import MemoryWrap, first_half
from memwrap.nn.tracing import checks_disabled
from memwrap.training import augmentation
from memwrap.training.schedule import learning_rate
from memwrap.training.step import optimization_step
from memwrap.training.trainer import Progress, Trainer

STEPS_AT_ONCE = 256  # whose draws lie on the device
FIRST_STEPS = 8  # so few at first, as the device has nothing to do until they are drawn
WARM_UP = 3  # steps before the capture: kernels are compiled and chosen, and optimisers make their state


class SideBySide:
    """Trains runs that differ in nothing but their seed and their images. The last graph is kept for runs of its kind.

    No more than that: a graph holds on to the memory of all its runs' steps.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], _Group] | None = None

    def train(
        self,
        trainers: Sequence[Trainer],
        progress: Callable[[int, int], None] = lambda *_: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[DivergedError | None]:
        """Run all trainers, none of which has begun, to their end, or until `stop`; what went wrong with each.

        progress(steps done, steps): after every few steps.
        """
        with _current(trainers[0].device):
            return self._train(trainers, progress, stop)

    def _train(
        self, trainers: Sequence[Trainer], progress: Callable[[int, int], None], stop: Callable[[], bool]
    ) -> list[DivergedError | None]:
        group = self._group_for(trainers)
        group.load(trainers)
        failures: list[DivergedError | None] = [None] * len(trainers)
        done, steps = 0, trainers[0].steps
        planned = _draws(trainers, range(min(FIRST_STEPS, STEPS_AT_ONCE, steps)))
        while done < steps and not stop():
            count = len(planned.rates)
            group.place(planned)
            group.run_steps(count)
            if done + count < steps:  # drawn now, while the device is busy with the steps before
                planned = _draws(trainers, range(done + count, min(done + count + STEPS_AT_ONCE, steps)))
            for number, (trainer, losses) in enumerate(zip(trainers, group.losses_of(count), strict=True)):
                if failures[number] is None:
                    failures[number] = _failure(trainer, done, losses)
            done += count
            progress(done, steps)
        group.unload(trainers, done)
        return failures

    def _group_for(self, trainers: Sequence[Trainer]) -> "_Group":
        images = max(len(trainer.plan.labels) for trainer in trainers)
        key = (len(trainers), _common_kind(trainers))
        if self._kept is not None and self._kept[0] == key and self._kept[1].capacity >= images:
            return self._kept[1]
        self._kept = None
        if trainers[0].device.type == "cuda":
            torch.cuda.empty_cache()
        group = _Group(trainers, images)
        self._kept = key, group
        return group


@dataclass(frozen=True)
class _Draws:
    """What is drawn for some steps T of each of S runs, which have B + M images a step."""

    rates: Tensor  # (T,)
    seeds: Tensor  # (T, S)
    indices: Tensor  # (T, S, B + M)
    numbers: Tensor  # (T, S, B + M, K), K = 0 if images are not changed at random


def _draws(trainers: Sequence[Trainer], steps: range) -> _Draws:
    """For these steps of all runs."""
    settings, per_epoch = trainers[0].settings, trainers[0].plan.steps_per_epoch
    planned = [list(trainer.plan.steps(steps.start, steps.stop)) for trainer in trainers]
    width = augmentation.NUMBERS if settings.augment else 0
    return _Draws(
        torch.tensor([learning_rate(settings, step, per_epoch) for step in steps]),
        torch.tensor([[derive_seed(each.settings.seed, "dropout", step) for each in trainers] for step in steps]),
        _by_step([[step.indices for step in of_run] for of_run in planned]),
        _by_step([[step.numbers[:, :width] for step in of_run] for of_run in planned]),
    )


def _by_step(of_runs: Sequence[Sequence[Tensor]]) -> Tensor:
    """What each run has for each step -> (T, S, ...)"""
    return torch.stack([torch.stack(list(of_steps)) for of_steps in of_runs], dim=1)


class _Group:
    """A stack of so many runs of one kind, with buffers for their images and draws, and the graph of their step."""

    def __init__(self, trainers: Sequence[Trainer], capacity: int) -> None:
        first, runs = trainers[0], len(trainers)
        settings, device = first.settings, first.device
        self.settings, self.precision, self.capacity = settings, first.precision, capacity
        self.stack = Stack(first.model, runs, first.precision, kernels=device.type == "cuda")
        # A rate that lies on the device can change between replays.
        self.rate = torch.zeros((), device=device)
        self.optimizer = StackedSgd(self.stack, self.rate, settings.momentum, settings.weight_decay, settings.clip)
        self.images = len(next(first.plan.steps(0, 1)).indices)
        self.first = _first_part(first.model.layer, self.images, settings.batch_size)
        shape = first.model.transform.shape
        # On the device, as nothing can be brought there while a graph is captured: of each run and channel.
        self.mean, self.std = (torch.zeros(runs, shape[0], device=device) for _ in range(2))
        self.pixels = torch.zeros(runs, capacity, *shape, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(runs, capacity, dtype=torch.int64, device=device)
        self.run = torch.arange(runs, device=device).unsqueeze(1)
        self.rates = torch.zeros(STEPS_AT_ONCE, device=device)
        self.indices = torch.zeros(STEPS_AT_ONCE, runs, self.images, dtype=torch.int64, device=device)
        width = augmentation.NUMBERS if settings.augment else 0
        self.numbers = torch.zeros(STEPS_AT_ONCE, runs, self.images, width, device=device)
        self.seeds = torch.zeros(STEPS_AT_ONCE, runs, dtype=torch.int64, device=device)
        self.losses = torch.zeros(STEPS_AT_ONCE, runs, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self.load(trainers)
            self.place(_draws(trainers, range(1)))
            self._capture()

    def load(self, trainers: Sequence[Trainer]) -> None:
        """Take over runs that have not begun."""
        self.optimizer.forget()
        self.stack.load([trainer.model for trainer in trainers])
        for run, trainer in enumerate(trainers):
            transform, images = trainer.model.transform, _held(trainer).pixels
            self.mean[run].copy_(torch.tensor(transform.mean))
            self.std[run].copy_(torch.tensor(transform.std))
            self.pixels[run, : len(images)].copy_(images)
            self.labels[run, : len(images)].copy_(trainer.plan.labels)

    def place(self, draws: "_Draws") -> None:
        """Bring the draws of the next steps to the device, and set the counter to the first of them."""
        for place, values in (
            (self.rates, draws.rates),
            (self.seeds, draws.seeds),
            (self.indices, draws.indices),
            (self.numbers, draws.numbers),
        ):
            place[: len(values)].copy_(values.pin_memory() if place.is_cuda else values, non_blocking=True)
        self.position.zero_()

    def run_steps(self, count: int) -> None:
        """So many steps, of every run."""
        for _ in range(count):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()

    def losses_of(self, count: int) -> list[list[float]]:
        """Of each run, the losses of the last so many steps."""
        losses: list[list[float]] = self.losses[:count].T.tolist()
        return losses

    def unload(self, trainers: Sequence[Trainer], done: int) -> None:
        """Give the runs back, after so many steps."""
        self.stack.count(done if self.first == self.images else 2 * done)
        self.stack.unload([trainer.model for trainer in trainers])
        for trainer in trainers:
            trainer.progress = Progress(step=done)

    def _step(self) -> None:
        """The step at which `position` points."""
        rates, indices, numbers, seeds = (
            values.index_select(0, self.position).squeeze(0)
            for values in (self.rates, self.indices, self.numbers, self.seeds)
        )
        self.rate.copy_(rates)
        self.stack.told.seeds.copy_(seeds)
        inputs = self.settings.batch_size
        outcome = optimization_step(
            lambda: self._logits(self.pixels[self.run, indices].flatten(0, 1), numbers.flatten(0, 1)),
            self.labels[self.run, indices[:, :inputs]],
            self.optimizer,
            self.settings.label_smoothing,
            self.precision,
        )
        self.losses.index_copy_(0, self.position, outcome.loss.unsqueeze(0))
        self.position.add_(1)

    def _logits(self, pixels: Tensor, numbers: Tensor) -> Tensor:
        """pixels (S * (B + M), C, H, W) and the numbers for their changes -> logits (S, B, classes)"""
        inputs = self.settings.batch_size
        mean, std = (_for_each_image(values, len(pixels)) for values in (self.mean, self.std))
        images = augmentation.prepare(pixels, numbers, self.settings.augment, mean, std)
        with checks_disabled():
            return self.stack.judge(
                lambda layer, encodings: _logits_of_inputs(layer, encodings, inputs),
                self.stack.encode(images, self.first),
            )

    def _capture(self) -> None:
        with _kernels_chosen_by_time():
            warm = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            warm.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm):
                for _ in range(WARM_UP):
                    self.position.zero_()
                    self._step()
            torch.cuda.current_stream().wait_stream(warm)
            self.position.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
        self.optimizer.settle()
        self.graph = graph


def _first_part(layer: nn.Module, rows: int, inputs: int) -> int:
    """How many of a step's images are encoded together: batch normalisation never mixes inputs with their memory."""
    batch_is_memory = isinstance(layer, MemoryWrap) and rows == inputs
    return first_half(inputs) if batch_is_memory else inputs


def _logits_of_inputs(layer: nn.Module, encodings: Tensor, inputs: int) -> Tensor:
    """encodings (B + M, D) of inputs and memory -> logits (B, C); M = 0: the halves of the batch are the memory"""
    if not isinstance(layer, MemoryWrap):
        logits: Tensor = layer(encodings)
        return logits
    if len(encodings) > inputs:
        return layer.forward(encodings[:inputs], encodings[inputs:])
    return layer.forward(encodings, "batch")


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the one that streams, graphs and Triton's kernels belong to if nobody says otherwise."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _for_each_image(values: Tensor, images: int) -> Tensor:
    """values (S, C) of each run -> (N, C, 1, 1), of each of the images of all runs"""
    runs, channels = values.shape
    return values.unsqueeze(1).expand(-1, images // runs, -1).reshape(images, channels, 1, 1)


@contextmanager
def _kernels_chosen_by_time() -> Iterator[None]:
    """cuDNN tries all that it has for each convolution, once: a graph is replayed thousands of times."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _common_kind(trainers: Sequence[Trainer]) -> tuple[object, ...]:
    """The kind of all these runs; a SettingsError if one graph cannot hold them."""
    first, *others = [(_kind(trainer), trainer.steps) for trainer in trainers]
    if any(other != first for other in others):
        raise SettingsError(
            "the runs are of different kinds; expected models and settings that differ in the seed alone"
        )
    for trainer in trainers:
        if reason := unfit(trainer):
            raise SettingsError(f"a run cannot be trained beside others: {reason}")
    return first[0]


def unfit(trainer: Trainer) -> str | None:
    """Why a run has to be trained by the loop; None if it need not."""
    if trainer.progress.step:
        return "it has begun already"
    if trainer.settings.optimizer != "sgd":
        return f"its optimizer is {trainer.settings.optimizer}"
    if trainer.settings.freeze:
        return "its encoder is frozen"
    if not isinstance(trainer.images, InMemoryImages):
        return "its images are not held in memory"
    if trainer.device.type == "cuda" and not gpu.kernels_run_on(trainer.device):
        return "its GPU is none that our kernels can be compiled for, or Triton is missing"
    if obstacle := unstackable(trainer.model.encoder):
        return f"its encoder has {obstacle}"
    return None


def _held(trainer: Trainer) -> InMemoryImages:
    assert isinstance(trainer.images, InMemoryImages)  # as `unfit` has seen
    return trainer.images


def _kind(trainer: Trainer) -> tuple[object, ...]:
    """What must be the same in runs that take the same steps: settings, images of a step, and what the model holds."""
    settings = trainer.settings.replace(seed=0, samples=None, epochs=1)
    learning = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    values = trainer.model.state_dict().items()
    return (
        repr(settings),
        len(next(trainer.plan.steps(0, 1)).indices),
        trainer.model.transform.shape,
        tuple((name, tuple(value.shape), value.dtype, name in learning) for name, value in values),
    )


def _failure(trainer: Trainer, start: int, losses: Sequence[float]) -> DivergedError | None:
    for number, loss in enumerate(losses):
        if not math.isfinite(loss):
            step = start + number
            trainer.progress = Progress(step=step)
            lr = learning_rate(trainer.settings, step, trainer.plan.steps_per_epoch)
            return trainer.diverged(f"the loss is {loss}", lr)
    return None
