"""Several runs of one kind, trained at the same time on one GPU.

Small networks leave most of a GPU idle, and Python cannot launch their kernels as fast as they run. So the step of all
runs is captured as one CUDA graph, each run on a stream of its own: images lie on the device, every draw is made ahead,
and a replay of the graph takes its step's draws from the place where a counter points. It is the same `training_step`
as the loop's, around an encoder whose slow layers are swapped for kernels.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from memwrap.data.labelled import HeldImages
from memwrap.errors import DivergedError, SettingsError
from memwrap.loading import Model
from memwrap.seeds import derived
from memwrap.settings import SettledSettings
from memwrap.training import augmentation
from memwrap.training.loop import Progress, Trainer, optimizer_for
from memwrap.training.plan import PlannedStep
from memwrap.training.schedule import learning_rate
from memwrap.training.step import Batch, Encode, in_two_passes, training_step

if TYPE_CHECKING:
    from memwrap.kernels.swapping import Swapped

STEPS_AT_ONCE = 256  # whose draws lie on the device
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
        group = self._group_for(trainers)
        group.load(trainers)
        failures: list[DivergedError | None] = [None] * len(trainers)
        done, steps = 0, trainers[0].steps
        while done < steps and not stop():
            count = min(STEPS_AT_ONCE, steps - done)
            group.plan(trainers, done, count)
            group.run(count)
            for number, (trainer, losses) in enumerate(zip(trainers, group.losses(count), strict=True)):
                if failures[number] is None:
                    failures[number] = _failure(trainer, done, losses)
            done += count
            progress(done, steps)
        group.unload(trainers, done)
        return failures

    def _group_for(self, trainers: Sequence[Trainer]) -> "_Group":
        _check(trainers)
        images = max(len(trainer.plan.labels) for trainer in trainers)
        key = (len(trainers), repr(_kind(trainers[0].settings)), trainers[0].model.transform.shape)
        if self._kept is not None and self._kept[0] == key and self._kept[1].capacity >= images:
            return self._kept[1]
        self._kept = None
        if trainers[0].device.type == "cuda":
            torch.cuda.empty_cache()
        group = _Group(trainers, images)
        self._kept = key, group
        return group


class _Slot:
    """A place for one run: a model of its own, and buffers that hold the run's images and the draws of its steps."""

    def __init__(self, trainer: Trainer, capacity: int, position: Tensor, rate: Tensor) -> None:
        settings, device = trainer.settings, trainer.device
        self.model: Model = copy.deepcopy(trainer.model)
        self.model.train()
        self.optimizer = optimizer_for(self.model, settings)
        self.settings, self.precision = settings, trainer.precision
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            group["fused"], group["foreach"] = device.type == "cuda", None
        self.position = position
        rows = len(next(trainer.plan.steps(0, 1)).indices)
        self.inputs = settings.batch_size
        self.pixels = torch.zeros(capacity, *trainer.model.transform.shape, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.indices = torch.zeros(STEPS_AT_ONCE, rows, dtype=torch.int64, device=device)
        width = augmentation.NUMBERS if settings.augment else 0
        self.numbers = torch.zeros(STEPS_AT_ONCE, rows, width, device=device)
        self.seeds = torch.zeros(STEPS_AT_ONCE, dtype=torch.int64, device=device)
        self.losses = torch.zeros(STEPS_AT_ONCE, device=device)
        self.passes = 1 if rows == self.inputs else 2
        self._swapped: Swapped | None = None
        self._encode = self._encoder()

    def _encoder(self) -> Encode:
        model, changes, transform = self.model, self.settings.augment, self.model.transform
        # On the device, as nothing can be brought there while a graph is captured.
        mean, std = (torch.tensor(values, device=self.pixels.device) for values in (transform.mean, transform.std))

        def encode(pixels: Tensor, numbers: Tensor) -> Tensor:
            return model.encode(augmentation.prepared(pixels, numbers, changes, mean, std))

        if not self.pixels.is_cuda:
            return in_two_passes(encode)
        from memwrap.kernels.swapping import swap  # Triton is there where there is a GPU

        swapped = self._swapped = swap(model.encoder, self.pixels.device)

        def encode_part(pixels: Tensor, numbers: Tensor) -> Tensor:
            swapped.first = None
            return encode(pixels, numbers)

        def encode_together(pixels: Tensor, numbers: Tensor, inputs: int) -> Tensor:
            swapped.first = inputs
            return encode(pixels, numbers)

        return encode_together if swapped.in_parts else in_two_passes(encode_part)

    def step(self) -> None:
        """The step at which `position` points."""
        indices = self.indices.index_select(0, self.position).squeeze(0)
        numbers = self.numbers.index_select(0, self.position).squeeze(0)
        if self._swapped is None:
            torch.manual_seed(int(self.seeds[self.position]))
        else:
            self._swapped.seed.copy_(self.seeds.index_select(0, self.position))
        batch = Batch(self.pixels[indices], numbers, self.labels[indices[: self.inputs]])
        settings = self.settings
        outcome = training_step(
            self.model.layer,
            self.optimizer,
            self._encode,
            batch,
            settings.label_smoothing,
            settings.clip,
            self.precision,
        )
        self.losses.index_copy_(0, self.position, outcome.loss.unsqueeze(0))

    def load(self, trainer: Trainer) -> None:
        """Take over a run that has not begun."""
        _copy_state(trainer.model, self.model)
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        images = _held(trainer).pixels
        self.pixels[: len(images)].copy_(images)
        self.labels[: len(images)].copy_(trainer.plan.labels)

    def plan(self, steps: Sequence[PlannedStep], seeds: Sequence[int]) -> None:
        """Put the draws of the next steps in their places."""
        count = len(steps)
        _fill(self.indices[:count], torch.stack([step.indices for step in steps]))
        _fill(self.seeds[:count], torch.tensor(seeds))
        if self.numbers.shape[-1]:
            _fill(self.numbers[:count], torch.stack([step.numbers for step in steps]))

    def unload(self, trainer: Trainer, done: int) -> None:
        """Give the run back, after so many steps."""
        if self._swapped is not None:
            self._swapped.count(done * self.passes)
        _copy_state(self.model, trainer.model)
        trainer.progress = Progress(step=done)


class _Group:
    """Slots for so many runs of one kind, and the graph of their step."""

    def __init__(self, trainers: Sequence[Trainer], capacity: int) -> None:
        self.capacity, device = capacity, trainers[0].device
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.rates = torch.zeros(STEPS_AT_ONCE, device=device)
        # A rate that lies on the device can change between replays.
        self.rate = torch.zeros((), device=device)
        self.slots = [_Slot(trainer, capacity, self.position, self.rate) for trainer in trainers]
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self.load(trainers)
            self.plan(trainers, 0, 1)
            self._capture()

    def load(self, trainers: Sequence[Trainer]) -> None:
        for slot, trainer in zip(self.slots, trainers, strict=True):
            slot.load(trainer)

    def plan(self, trainers: Sequence[Trainer], start: int, count: int) -> None:
        """Make the draws of these steps, and set the counter to the first of them."""
        settings, per_epoch = trainers[0].settings, trainers[0].plan.steps_per_epoch
        rates = [learning_rate(settings, step, per_epoch) for step in range(start, start + count)]
        _fill(self.rates[:count], torch.tensor(rates))
        for slot, trainer in zip(self.slots, trainers, strict=True):
            steps = list(islice(trainer.plan.steps(start, start + count), count))
            seeds = [derived(trainer.settings.seed, "dropout", step) for step in range(start, start + count)]
            slot.plan(steps, seeds)
        self.position.zero_()

    def run(self, count: int) -> None:
        """So many steps, of every run."""
        for _ in range(count):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step(None)

    def losses(self, count: int) -> list[list[float]]:
        return [slot.losses[:count].tolist() for slot in self.slots]

    def unload(self, trainers: Sequence[Trainer], done: int) -> None:
        for slot, trainer in zip(self.slots, trainers, strict=True):
            slot.unload(trainer, done)

    def _step(self, streams: Sequence["torch.cuda.Stream"] | None) -> None:
        self.rate.copy_(self.rates.index_select(0, self.position).squeeze(0))
        try:
            for number, slot in enumerate(self.slots):
                with nullcontext() if streams is None else _branch(streams[number]):
                    slot.step()
        finally:  # else a failed capture would complain of streams, and not say what failed
            for stream in streams or ():
                torch.cuda.current_stream().wait_stream(stream)
        self.position.add_(1)

    def _capture(self) -> None:
        with _kernels_chosen_by_time():
            self._warm_up_and_capture()

    def _warm_up_and_capture(self) -> None:
        warm = _new_stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for _ in range(WARM_UP):
                self.position.zero_()
                self._step(None)
        torch.cuda.current_stream().wait_stream(warm)
        self.position.zero_()
        streams = [_new_stream() for _ in self.slots]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(streams)
        self.graph = graph


@contextmanager
def _kernels_chosen_by_time() -> Iterator[None]:
    """cuDNN tries all that it has for each convolution, once: a graph is replayed thousands of times."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _new_stream() -> "torch.cuda.Stream":
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _branch(stream: "torch.cuda.Stream") -> "torch.cuda.StreamContext":
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


def _check(trainers: Sequence[Trainer]) -> None:
    """What a graph can hold."""
    first = trainers[0]
    if any(repr(_kind(trainer.settings)) != repr(_kind(first.settings)) for trainer in trainers) or any(
        trainer.steps != first.steps for trainer in trainers
    ):
        raise SettingsError("the runs are of different kinds; expected settings that differ in the seed alone")
    for trainer in trainers:
        if reason := unfit(trainer):
            raise SettingsError(f"a run cannot be trained beside others: {reason}")


def unfit(trainer: Trainer) -> str | None:
    """Why a run has to be trained by the loop; None if it need not."""
    if trainer.progress.step:
        return "it has begun already"
    if trainer.settings.optimizer != "sgd":
        return f"its optimizer is {trainer.settings.optimizer}"
    if trainer.settings.freeze:
        return "its encoder is frozen"
    if not isinstance(trainer.images, HeldImages):
        return "its images are not held in memory"
    return None


def _held(trainer: Trainer) -> HeldImages:
    assert isinstance(trainer.images, HeldImages)  # as `unfit` has seen
    return trainer.images


def _kind(settings: SettledSettings) -> SettledSettings:
    """The settings without what may differ between runs that take the same steps."""
    return replace(settings, seed=0, samples=None, epochs=1)


def _failure(trainer: Trainer, start: int, losses: Sequence[float]) -> DivergedError | None:
    for number, loss in enumerate(losses):
        if not math.isfinite(loss):
            trainer.progress = Progress(step=start + number)
            return trainer.diverged(f"the loss is {loss}")
    return None


def _copy_state(source: nn.Module, target: nn.Module) -> None:
    places = target.state_dict()
    with torch.no_grad():
        for name, value in source.state_dict().items():
            places[name].copy_(value)


def _fill(place: Tensor, values: Tensor) -> None:
    """Without waiting for the device, which may still be busy with earlier steps."""
    if place.is_cuda:
        values = values.pin_memory()
    place.copy_(values, non_blocking=True)
