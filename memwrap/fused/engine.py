"""Train several runs of one network at the same time on one GPU.

A small network leaves most of a GPU idle, and Python cannot launch its kernels as fast as they run. So the runs are
stacked: one kernel works for all of them, and their step is captured as one CUDA graph. Images lie on the device, all
random draws are made ahead, and each replay reads the draws of its step at a counter. The step is that of the training
loop, except for the values that dropout draws.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from memwrap.data import InMemoryImages, derive_seed
from memwrap.errors import DivergedError, SettingsError
from memwrap.fused.stacked.model import StackedModel
from memwrap.fused.stacked.optimizer import StackedSGD
from memwrap.fused.stacked.support import unsupported_layer
from memwrap.nn import gpu
from memwrap.nn.contrast import contrastive_loss
from memwrap.nn.layer import MemoryWrap, first_half
from memwrap.nn.queue import Queue
from memwrap.nn.tracing import checks_disabled
from memwrap.training import augmentation
from memwrap.training.schedule import learning_rate
from memwrap.training.step import optimization_step
from memwrap.training.trainer import Progress, Trainer

STEPS_PER_TRANSFER = 256  # steps whose draws are on the device at a time
FIRST_STEPS = 8  # fewer in the first transfer: the device is idle until they are drawn
WARMUP_STEPS = 3  # before the capture: kernels are compiled and chosen, and the optimizer allocates its state


class FusedEngine:
    """Trains runs that differ only in their seed and their images.

    The last graph is kept for the next runs of the same kind. Only the last: a graph holds the memory of all its runs.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], _RunGroup] | None = None

    def train(
        self,
        trainers: Sequence[Trainer],
        progress: Callable[[int, int], None] = lambda *_: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[DivergedError | None]:
        """Run all trainers from their first step to their last, or until `stop`. Returns the error of each, or None.

        progress(steps done, steps): called after every transfer of draws.
        """
        with _current_device(trainers[0].device):
            return self._train(trainers, progress, stop)

    def _train(
        self, trainers: Sequence[Trainer], progress: Callable[[int, int], None], stop: Callable[[], bool]
    ) -> list[DivergedError | None]:
        group = self._group_for(trainers)
        group.load(trainers)
        failures: list[DivergedError | None] = [None] * len(trainers)
        done, steps = 0, trainers[0].steps
        draws = _draw(trainers, range(min(FIRST_STEPS, STEPS_PER_TRANSFER, steps)))
        while done < steps and not stop():
            count = len(draws.rates)
            group.load_draws(draws)
            group.run_steps(count)
            if done + count < steps:  # drawn while the device is busy with the steps before
                draws = _draw(trainers, range(done + count, min(done + count + STEPS_PER_TRANSFER, steps)))
            for number, (trainer, losses) in enumerate(zip(trainers, group.last_losses(count), strict=True)):
                if failures[number] is None:
                    failures[number] = _divergence(trainer, done, losses)
            done += count
            progress(done, steps)
        group.unload(trainers, done)
        return failures

    def _group_for(self, trainers: Sequence[Trainer]) -> "_RunGroup":
        images = max(len(trainer.plan.labels) for trainer in trainers)
        key = (len(trainers), _common_signature(trainers))
        if self._last is not None and self._last[0] == key and self._last[1].capacity >= images:
            return self._last[1]
        self._last = None
        if trainers[0].device.type == "cuda":
            torch.cuda.empty_cache()
        group = _RunGroup(trainers, images)
        self._last = key, group
        return group


@dataclass(frozen=True)
class _Draws:
    """The random draws of T steps of S runs, with B + M images per step."""

    rates: Tensor  # (T,)
    seeds: Tensor  # (T, S)
    indices: Tensor  # (T, S, B + M)
    numbers: Tensor  # (T, S, B + M, K), K = 0 without augmentation


def _draw(trainers: Sequence[Trainer], steps: range) -> _Draws:
    settings, per_epoch = trainers[0].settings, trainers[0].plan.steps_per_epoch
    planned = [list(trainer.plan.steps(steps.start, steps.stop)) for trainer in trainers]
    width = augmentation.NUMBERS if settings.augment else 0
    return _Draws(
        torch.tensor([learning_rate(settings, step, per_epoch) for step in steps]),
        torch.tensor([[derive_seed(each.settings.seed, "dropout", step) for each in trainers] for step in steps]),
        _stack_steps([[step.indices for step in of_run] for of_run in planned]),
        _stack_steps([[step.numbers[:, :width] for step in of_run] for of_run in planned]),
    )


def _stack_steps(of_runs: Sequence[Sequence[Tensor]]) -> Tensor:
    """S runs of T tensors each -> (T, S, ...)"""
    return torch.stack([torch.stack(list(of_steps)) for of_steps in of_runs], dim=1)


class _RunGroup:
    """The stacked model of a group of runs, buffers for their images and draws, and the graph of their step."""

    def __init__(self, trainers: Sequence[Trainer], capacity: int) -> None:
        first, runs = trainers[0], len(trainers)
        settings, device = first.settings, first.device
        self.settings, self.precision, self.capacity = settings, first.precision, capacity
        self.model = StackedModel(first.model, runs, first.precision, kernels=device.type == "cuda")
        # A rate on the device can change between replays.
        self.rate = torch.zeros((), device=device)
        self.optimizer = StackedSGD(self.model, self.rate, settings.momentum, settings.weight_decay, settings.clip)
        self.images = len(next(first.plan.steps(0, 1)).indices)
        self.first = _first_part(first.model.layer, self.images, settings.batch_size)
        shape = first.model.get_transform().shape
        # Nothing can be copied to the device while a graph is captured, so mean and std (runs, channels) are there.
        self.mean, self.std = (torch.zeros(runs, shape[0], device=device) for _ in range(2))
        self.pixels = torch.zeros(runs, capacity, *shape, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(runs, capacity, dtype=torch.int64, device=device)
        self.run = torch.arange(runs, device=device).unsqueeze(1)
        self.rates = torch.zeros(STEPS_PER_TRANSFER, device=device)
        self.indices = torch.zeros(STEPS_PER_TRANSFER, runs, self.images, dtype=torch.int64, device=device)
        width = augmentation.NUMBERS if settings.augment else 0
        self.numbers = torch.zeros(STEPS_PER_TRANSFER, runs, self.images, width, device=device)
        self.seeds = torch.zeros(STEPS_PER_TRANSFER, runs, dtype=torch.int64, device=device)
        self.losses = torch.zeros(STEPS_PER_TRANSFER, runs, device=device)
        self.queue = None if first.queue is None else _stack_queues(trainers)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self.load(trainers)
            self.load_draws(_draw(trainers, range(1)))
            self._capture()

    def load(self, trainers: Sequence[Trainer]) -> None:
        """Copy the weights and images of runs that have not started."""
        self.optimizer.reset()
        self.model.load([trainer.model for trainer in trainers])
        if self.queue is not None:
            _copy_queue(self.queue, _stack_queues(trainers))
        for run, trainer in enumerate(trainers):
            transform, images = trainer.model.get_transform(), _held_images(trainer).pixels
            self.mean[run].copy_(torch.tensor(transform.mean))
            self.std[run].copy_(torch.tensor(transform.std))
            self.pixels[run, : len(images)].copy_(images)
            self.labels[run, : len(images)].copy_(trainer.plan.labels)

    def load_draws(self, draws: _Draws) -> None:
        """Copy the draws of the next steps to the device and set the counter to the first of them."""
        for target, values in (
            (self.rates, draws.rates),
            (self.seeds, draws.seeds),
            (self.indices, draws.indices),
            (self.numbers, draws.numbers),
        ):
            target[: len(values)].copy_(values.pin_memory() if target.is_cuda else values, non_blocking=True)
        self.position.zero_()

    def run_steps(self, count: int) -> None:
        for _ in range(count):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()

    def last_losses(self, count: int) -> list[list[float]]:
        """The losses of the last `count` steps, for each run."""
        losses: list[list[float]] = self.losses[:count].T.tolist()
        return losses

    def unload(self, trainers: Sequence[Trainer], done: int) -> None:
        """Copy the weights after `done` steps back to the runs' models."""
        self.model.count_batches(done if self.first == self.images else 2 * done)
        self.model.unload([trainer.model for trainer in trainers])
        for run, trainer in enumerate(trainers):
            trainer.progress = Progress(step=done)
            if self.queue is not None:
                trainer.queue = Queue(self.queue.encodings[run].clone(), self.queue.labels[run].clone())

    def _step(self) -> None:
        """Run the step that `position` points at."""
        rates, indices, numbers, seeds = (
            values.index_select(0, self.position).squeeze(0)
            for values in (self.rates, self.indices, self.numbers, self.seeds)
        )
        self.rate.copy_(rates)
        self.model.context.seeds.copy_(seeds)
        inputs = self.settings.batch_size
        labels = self.labels[self.run, indices[:, :inputs]]
        encodings: list[Tensor] = []

        def predict() -> Tensor:
            encodings.append(self._encode(self.pixels[self.run, indices].flatten(0, 1), numbers.flatten(0, 1)))
            return self._logits(encodings[0])

        outcome = optimization_step(
            predict,
            labels,
            self.optimizer,
            self.settings.label_smoothing,
            self.precision,
            (lambda: self._contrast(encodings[0][:, :inputs], labels)) if self.settings.contrast else None,
        )
        if self.queue is not None:
            push = vmap(lambda old, known, new, classes: _parts(Queue(old, known).push(new, classes)))
            _copy_queue(self.queue, Queue(*push(*_parts(self.queue), encodings[0][:, :inputs].detach(), labels)))
        self.losses.index_copy_(0, self.position, outcome.loss.unsqueeze(0))
        self.position.add_(1)

    def _encode(self, pixels: Tensor, numbers: Tensor) -> Tensor:
        """pixels (S * (B + M), C, H, W), numbers for their augmentation -> encodings (S, B + M, D)"""
        mean, std = (_per_image(values, len(pixels)) for values in (self.mean, self.std))
        images = augmentation.prepare(pixels, numbers, self.settings.augment, mean, std)
        with checks_disabled():
            return self.model.encode(images, self.first)

    def _logits(self, encodings: Tensor) -> Tensor:
        """encodings (S, B + M, D) -> logits (S, B, classes)"""
        inputs, queue = self.settings.batch_size, () if self.queue is None else _parts(self.queue)
        with checks_disabled():
            return self.model.apply_layer(
                lambda layer, own, *queue: _logits_of_inputs(layer, own, inputs, *queue), encodings, *queue
            )

    def _contrast(self, encodings: Tensor, labels: Tensor) -> Tensor:
        """encodings (S, B, D), labels (S, B) -> the weighted contrastive loss of each run, (S,)"""
        queue = () if self.queue is None else _parts(self.queue)
        with checks_disabled():
            losses = self.model.apply_layer(
                lambda layer, own, labels, *queue: contrastive_loss(
                    layer, own, labels, Queue(*queue) if queue else None
                ),
                encodings,
                labels,
                *queue,
            )
        return self.settings.contrast * losses

    def _capture(self) -> None:
        with _cudnn_benchmark():
            warm = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            warm.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm):
                for _ in range(WARMUP_STEPS):
                    self.position.zero_()
                    self._step()
            torch.cuda.current_stream().wait_stream(warm)
            self.position.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
        self.optimizer.finish_capture()
        self.graph = graph


def _first_part(layer: nn.Module, rows: int, inputs: int) -> int:
    """How many of a step's images are encoded together: batch normalisation never mixes inputs with their memory."""
    batch_is_memory = isinstance(layer, MemoryWrap) and rows == inputs
    return first_half(inputs) if batch_is_memory else inputs


def _logits_of_inputs(layer: nn.Module, encodings: Tensor, inputs: int, *queue: Tensor) -> Tensor:
    """encodings (B + M, D) of inputs and memory -> logits (B, C); M = 0: the halves of the batch are the memory

    queue: the encodings (Q, D) and labels (Q,) of one that joins the halves, if there is one.
    """
    if not isinstance(layer, MemoryWrap):
        logits: Tensor = layer(encodings)
        return logits
    if len(encodings) > inputs:
        return layer.forward(encodings[:inputs], encodings[inputs:])
    return layer.forward(encodings, Queue(*queue) if queue else "batch")


def _parts(queue: Queue) -> tuple[Tensor, Tensor]:
    return queue.encodings, queue.labels


def _stack_queues(trainers: Sequence[Trainer]) -> Queue:
    """The queues of S runs as one: encodings (S, Q, D), labels (S, Q)"""
    queues = [_parts(trainer.queue) for trainer in trainers if trainer.queue is not None]
    encodings, labels = (torch.stack(each) for each in zip(*queues, strict=True))
    return Queue(encodings, labels)


def _copy_queue(target: Queue, source: Queue) -> None:
    """In place, as a graph reads and writes the same tensors at every replay."""
    for to, values in zip(_parts(target), _parts(source), strict=True):
        to.copy_(values)


def _current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current device: streams, graphs and Triton launches use it."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _per_image(values: Tensor, images: int) -> Tensor:
    """values (S, C) of each run -> (N, C, 1, 1), one row for each of the N images of all runs"""
    runs, channels = values.shape
    return values.unsqueeze(1).expand(-1, images // runs, -1).reshape(images, channels, 1, 1)


@contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN time its algorithms for each convolution: a graph is replayed thousands of times."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def unsupported_reason(trainer: Trainer) -> str | None:
    """Why the engine cannot train a run, so that the loop has to; None if it can."""
    if trainer.progress.step:
        return "it has begun already"
    if trainer.settings.optimizer != "sgd":
        return f"its optimizer is {trainer.settings.optimizer}"
    if trainer.settings.freeze:
        return "its encoder is frozen"
    if trainer.settings.variant == "vote":
        return "its variant is vote"
    if not isinstance(trainer.images, InMemoryImages):
        return "its images are not held in memory"
    if trainer.device.type == "cuda" and not gpu.kernels_run_on(trainer.device):
        return "its GPU is not supported by the kernels, or Triton is missing"
    if layer := unsupported_layer(trainer.model.encoder):
        return f"its encoder has {layer}"
    return None


def _common_signature(trainers: Sequence[Trainer]) -> tuple[object, ...]:
    """The signature of all runs; a SettingsError if one graph cannot train them."""
    first, *others = [(_signature(trainer), trainer.steps) for trainer in trainers]
    if any(other != first for other in others):
        raise SettingsError("the runs differ in their models or settings; expected runs that differ in the seed alone")
    for trainer in trainers:
        if reason := unsupported_reason(trainer):
            raise SettingsError(f"a run cannot be trained by the fused engine: {reason}")
    return first[0]


def _signature(trainer: Trainer) -> tuple[object, ...]:
    """What runs of one graph have in common: settings, images per step, modules, and the shapes of the state."""
    settings = trainer.settings.replace(seed=0, samples=None, epochs=1)
    trainable = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    state = trainer.model.state_dict().items()
    return (
        repr(settings),
        repr(trainer.model),
        len(next(trainer.plan.steps(0, 1)).indices),
        trainer.model.get_transform().shape,
        tuple((name, tuple(value.shape), value.dtype, name in trainable) for name, value in state),
    )


def _held_images(trainer: Trainer) -> InMemoryImages:
    assert isinstance(trainer.images, InMemoryImages)  # `unsupported_reason` has checked it
    return trainer.images


def _divergence(trainer: Trainer, start: int, losses: Sequence[float]) -> DivergedError | None:
    """The error of the first loss that is not finite. start: the step of the first loss."""
    for step, loss in enumerate(losses, start):
        if not math.isfinite(loss):
            trainer.progress = Progress(step=step)
            lr = learning_rate(trainer.settings, step, trainer.plan.steps_per_epoch)
            return trainer.diverged(f"the loss is {loss}", lr)
    return None
