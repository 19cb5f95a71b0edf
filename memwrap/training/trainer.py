"""The training loop: runs the steps of a model's training, from the first or from where it was stopped."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn
from torch.optim import Optimizer

from memwrap.data import InMemoryImages, LabelledImages, MemorySampler, build_sampler, check_size, derive_seed
from memwrap.errors import DivergedError, InputError, NonFiniteError, SettingsError
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import encode_all
from memwrap.models.loading import Model
from memwrap.models.standard import StandardClassifier
from memwrap.nn.queue import Queue
from memwrap.training import augmentation
from memwrap.training.plan import BatchPlan, PlannedStep
from memwrap.training.schedule import learning_rate
from memwrap.training.settings import ResolvedSettings, Settings
from memwrap.training.step import Batch, StepOutput, training_step

BF16 = "bf16"
LOSS_LIMIT = 1e48  # more than the largest number in float32 for each image of the largest data set
STEPS_LIMIT = 2**63  # steps and images of a stored training are below

StoredCount = Annotated[int, Field(ge=0, lt=STEPS_LIMIT)]


@dataclass
class Progress:
    """Steps done and sums of the current epoch: what training needs to resume, besides weights and optimizer."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)  # it is stored

    step: StoredCount = 0
    loss: Annotated[float, Field(ge=-LOSS_LIMIT, le=LOSS_LIMIT)] = 0.0  # summed over the inputs of this epoch so far
    correct: StoredCount = 0
    seen: StoredCount = 0


@dataclass(frozen=True)
class EpochMetrics:
    """Averages over the inputs of an epoch's steps. Epochs count from 1."""

    epoch: int
    step: int
    loss: float
    accuracy: float
    lr: float


@dataclass(frozen=True)
class StepMetrics:
    """Where training is after a step."""

    step: int  # steps done, of `steps`
    steps: int
    epoch: float  # epochs done, with a fraction for the current one
    loss: float
    lr: float
    finished_epoch: EpochMetrics | None  # set after the last step of an epoch


class Trainer:
    """Trains a model on labelled images. The same seed gives the same weights.

    model: what `memwrap.wrap` returns, or that in a wrapper such as DistributedDataParallel; each step calls it as
    `model(images, memory=...)`. sampler: draws the memory of each step; None uses the one that the settings name.
    progress: where to start. rank, world_size: of this process among those that train together; each takes its part of
    every batch.
    """

    def __init__(
        self,
        model: nn.Module,
        data: LabelledImages,
        settings: ResolvedSettings,
        sampler: MemorySampler | None = None,
        progress: Progress | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.module, self.model = model, _unwrap(model)
        model = self.model
        has_memory = isinstance(model, MemoryClassifier) and model.trains_with_memory
        if has_memory and sampler is None:
            sampler = build_sampler(settings.memory, settings.memory_size)
            if sampler is not None:
                check_size(settings.memory_size, len(data))
        self._batch_is_memory = has_memory and sampler is None
        if self._batch_is_memory:
            _check_halves(
                settings.batch_size // world_size,
                normalised=not settings.freeze and _normalises_batches(model.encoder),
            )
        self.settings, self.images = settings, data.images
        self.progress = progress or Progress()
        self.plan = BatchPlan(
            data.labels, settings.batch_size, sampler if has_memory else None, settings.seed, rank, world_size
        )
        self.steps = settings.epochs * self.plan.steps_per_epoch
        self.device = model.reference.device
        has_queue = settings.memory == "queue" and (has_memory or settings.contrast > 0)
        width = model.layer.in_features
        self.queue = Queue.empty(settings.memory_size, width, self.device) if has_queue else None
        self.precision = torch.bfloat16 if precision_on(self.device, settings.precision) == BF16 else torch.float32
        if self.device.type == "cuda":
            model.to(memory_format=layout_on_gpus(model.encoder))
        if settings.freeze:
            model.encoder.requires_grad_(False)
        self.optimizer = optimizer_for(model, settings)
        # A frozen encoder encodes an image the same way every time: without augmentation, once is enough.
        self._encodings = encode_all(model, data.images) if settings.freeze and not settings.augment else None

    def run(self) -> Iterator[StepMetrics]:
        """Run the remaining steps, yielding after each; the caller may save or stop there. Sets torch's random seed."""
        set_training_mode(self.model, self.settings.freeze)
        planned: deque[PlannedStep] = deque()  # images may be read ahead of the step that uses them

        def indices() -> Iterator[Tensor]:
            for step in self.plan.steps(self.progress.step, self.steps):
                planned.append(step)
                yield step.indices

        for rows in self._rows(indices()):
            yield self._advance(self._batch(rows.to(self.device), planned.popleft()))

    def _rows(self, indices: Iterator[Tensor]) -> Iterator[Tensor]:
        """For each tensor of indices (n,) pixels uint8 (n, C, H, W), or encodings (n, D) of a frozen encoder."""
        if self._encodings is not None:
            yield from (self._encodings[each.to(self.device)] for each in indices)
        else:
            images = self.images.to(self.device) if isinstance(self.images, InMemoryImages) else self.images
            yield from images.batches(indices)

    def _batch(self, rows: Tensor, step: PlannedStep) -> Batch:
        labels = self.plan.labels[step.indices[: step.inputs]].to(self.device)
        parts = rows.tensor_split([step.inputs])
        if self._encodings is None:
            numbers = step.numbers.to(self.device).tensor_split([step.inputs])
            parts = tuple(self._augment(*each) for each in zip(parts, numbers, strict=True) if len(each[0]))
        memory: Tensor | Queue | Literal["batch"] | None = parts[1] if len(rows) > step.inputs else None
        if self._batch_is_memory:
            memory = "batch" if self.queue is None else self.queue
        return Batch(parts[0], labels, memory, self.queue)

    def _augment(self, pixels: Tensor, numbers: Tensor) -> Tensor:
        transform = self.model.get_transform()
        return augmentation.prepare(pixels, numbers, self.settings.augment, transform.mean, transform.std)

    def _advance(self, batch: Batch) -> StepMetrics:
        settings, done, per_epoch = self.settings, self.progress, self.plan.steps_per_epoch
        lr = learning_rate(settings, done.step, per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # Dropout draws from torch's global generator: seeded by the step, it draws the same in a resumed run.
        torch.manual_seed(
            derive_seed(settings.seed, "dropout", done.step, *([self.plan.rank] if self.plan.rank else []))
        )
        output = self._step(batch)
        loss, inputs = output.loss.item(), len(batch.labels)
        if not math.isfinite(loss):
            raise self.diverged(f"the loss is {loss}")
        done.step += 1
        done.loss += inputs * loss
        done.correct += int(output.correct)
        done.seen += inputs
        ended = self._end_epoch(lr) if done.step % per_epoch == 0 else None
        return StepMetrics(done.step, self.steps, done.step / per_epoch, loss, lr, ended)

    def _step(self, batch: Batch) -> StepOutput:
        module, settings = self.module if self._encodings is None else self.model.layer, self.settings
        watched = {"contrast": settings.contrast, "layer": self.model.layer}
        options: dict[str, Any] = watched if settings.contrast or self.queue is not None else {}
        try:
            output = training_step(
                module, self.optimizer, batch, settings.label_smoothing, settings.clip, self.precision, **options
            )
        except NonFiniteError as error:
            raise self.diverged(str(error)) from error
        if self.queue is not None and output.encodings is not None:
            self.queue = self.queue.push(output.encodings, batch.labels)
        return output

    def _end_epoch(self, lr: float) -> EpochMetrics:
        done = self.progress
        epoch = done.step // self.plan.steps_per_epoch
        ended = EpochMetrics(epoch, done.step, done.loss / done.seen, done.correct / done.seen, lr)
        done.loss, done.correct, done.seen = 0.0, 0, 0
        return ended

    def diverged(self, what: str, lr: float | None = None) -> DivergedError:
        """The error to raise when NaN or infinity appears in this step, or after the last.

        lr: the step's learning rate, if the optimizer does not hold it.
        """
        step = min(self.progress.step + 1, self.steps)
        lr = self.optimizer.param_groups[0]["lr"] if lr is None else lr
        return DivergedError(
            f"training diverged in step {step} of {self.steps} (epoch {math.ceil(step / self.plan.steps_per_epoch)}) "
            f"at learning rate {lr:.3g}: {what.rstrip('.?')}. Try a lower rate (lr {self.settings.lr / 10:.2g}), "
            "a longer warm-up, precision fp32, or look for broken images"
        )


def _unwrap(module: nn.Module) -> Model:
    """The model inside wrappers such as DistributedDataParallel (`module`) and torch.compile (`_orig_mod`)."""
    inner: nn.Module | None = module
    while not isinstance(inner, MemoryClassifier | StandardClassifier):
        inner = getattr(inner, "module", None) or getattr(inner, "_orig_mod", None)
        if inner is None:
            raise InputError(
                f"the trainer was given a {type(module).__name__}; expected what memwrap.wrap returns, or that wrapped"
            )
    return inner


def _check_halves(batch_size: int, normalised: bool) -> None:
    """Raise a SettingsError if a batch is too small for its halves to be each other's memory."""
    least = 4 if normalised else 2
    if batch_size < least:
        why = ", and batch normalisation needs at least two images in each" if normalised else ""
        raise SettingsError(
            f"batch_size is {batch_size}, but the halves of the batch are each other's memory{why}: "
            f"expected at least {least}"
        )


def _normalises_batches(encoder: nn.Module) -> bool:
    """Whether the encoding of an image depends on its batch in training."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in encoder.modules())


def set_training_mode(model: Model, frozen: bool) -> None:
    """Training mode, except for a frozen encoder: its batch statistics stay, and it has no dropout."""
    model.train()
    if frozen:
        model.encoder.eval()


def layout_on_gpus(encoder: nn.Module) -> torch.memory_format:
    """The memory format in which the encoder's convolutions are fastest.

    cuDNN's depthwise convolutions in channels_last are slow when larger than 3x3: EfficientNetB0's take 25 of the 35 ms
    that its step keeps an H200 busy for. In the contiguous format the step takes half the time.
    """
    large = (
        isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1 and max(module.kernel_size) > 3
        for module in encoder.modules()
    )
    return torch.contiguous_format if any(large) else torch.channels_last


def precision_on(device: torch.device, asked: str) -> str:
    """Resolve "auto": bf16 is fast on GPUs, and many times slower than fp32 on most CPUs."""
    if asked != "auto":
        return asked
    return BF16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def optimizer_for(model: Model, settings: Settings) -> Optimizer:
    """A new optimizer for all parameters that require gradients."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, settings.lr, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        parameters,
        settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.momentum > 0,
    )
