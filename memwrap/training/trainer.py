"""The steps of a run, one after the other, from wherever it stands."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from memwrap.data import InMemoryImages, LabelledImages, MemorySampler, build_sampler, check_size, derive_seed
from memwrap.errors import DivergedError, NonFiniteError, SettingsError
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import encode_all
from memwrap.models.loading import Model
from memwrap.training import augmentation
from memwrap.training.plan import Plan, PlannedStep
from memwrap.training.schedule import learning_rate
from memwrap.training.settings import ResolvedSettings, Settings
from memwrap.training.step import Batch, Encode, Outcome, in_two_passes, training_step

# For each tensor of indices (n,) in turn what `Encode` takes: pixels (n, C, H, W), or encodings (n, D).
RowsInBatches = Callable[[Iterable[Tensor]], Iterator[Tensor]]

BF16 = "bf16"


@dataclass
class Progress:
    """How far training has come: what, beside weights and optimiser, it needs to go on."""

    step: int = 0  # steps done
    loss: float = 0.0  # summed over the inputs of this epoch so far
    correct: int = 0  # likewise
    seen: int = 0


@dataclass(frozen=True)
class EpochMetrics:
    """What an epoch gave, over the inputs of all its steps. Counted from 1."""

    epoch: int
    step: int
    loss: float
    accuracy: float
    lr: float


@dataclass(frozen=True)
class Moment:
    """Training between two steps."""

    step: int  # steps done, of `steps`
    steps: int
    epoch: float  # epochs done, and the part of the one under way
    loss: float
    lr: float
    finished_epoch: EpochMetrics | None  # of the epoch that this step was the last of


class Trainer:
    """Trains a model on labelled images, by settled settings. The same seed gives the same weights.

    sampler: draws the memory of each step; None takes the one that the settings name. progress: where to begin.
    """

    def __init__(
        self,
        model: Model,
        data: LabelledImages,
        settings: ResolvedSettings,
        sampler: MemorySampler | None = None,
        progress: Progress | None = None,
    ) -> None:
        has_memory = isinstance(model, MemoryClassifier)
        if has_memory and sampler is None:
            sampler = build_sampler(settings.memory, settings.memory_size)
            if sampler is not None:
                check_size(settings.memory_size, len(data))
        if has_memory and sampler is None:
            _check_halves(settings.batch_size, normalised=not settings.freeze and _normalises_batches(model.encoder))
        self.model, self.settings, self.images = model, settings, data.images
        self.progress = progress or Progress()
        self.plan = Plan(data.labels, settings.batch_size, sampler if has_memory else None, settings.seed)
        self.steps = settings.epochs * self.plan.steps_per_epoch
        self.device = model.reference.device
        self.precision = torch.bfloat16 if precision_on(self.device, settings.precision) == BF16 else torch.float32
        if self.device.type == "cuda":
            model.to(memory_format=layout_on_gpus(model.encoder))
        if settings.freeze:
            model.encoder.requires_grad_(False)
        self.optimizer = optimizer_for(model, settings)
        self._prepare(data)

    def moments(self) -> Iterator[Moment]:
        """Run the steps that are left; whoever iterates may save or stop between any two. Sets torch's random seed."""
        set_training_mode(self.model, self.settings.freeze)
        planned: deque[PlannedStep] = deque()  # images may be asked for ahead of the step that uses them

        def indices() -> Iterator[Tensor]:
            for step in self.plan.steps(self.progress.step, self.steps):
                planned.append(step)
                yield step.indices

        for rows in self._rows(indices()):
            step = planned.popleft()
            labels = self.plan.labels[step.indices[: step.inputs]]
            yield self._advance(Batch(*(part.to(self.device) for part in (rows, step.numbers, labels))))

    def _advance(self, batch: Batch) -> Moment:
        settings, done, per_epoch = self.settings, self.progress, self.plan.steps_per_epoch
        lr = learning_rate(settings, done.step, per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # Dropout draws from torch's own generator: seeded by the step, it is the same after a stop.
        torch.manual_seed(derive_seed(settings.seed, "dropout", done.step))
        outcome = self._step(batch)
        loss, inputs = outcome.loss.item(), len(batch.labels)
        if not math.isfinite(loss):
            raise self.diverged(f"the loss is {loss}")
        done.step += 1
        done.loss, done.correct, done.seen = (
            done.loss + inputs * loss,
            done.correct + int(outcome.correct),
            done.seen + inputs,
        )
        ended = self._end_epoch(lr) if done.step % per_epoch == 0 else None
        return Moment(done.step, self.steps, done.step / per_epoch, loss, lr, ended)

    def _step(self, batch: Batch) -> Outcome:
        try:
            settings = self.settings
            return training_step(
                self.model.layer,
                self.optimizer,
                self._encode,
                batch,
                settings.label_smoothing,
                settings.clip,
                self.precision,
            )
        except NonFiniteError as error:
            raise self.diverged(str(error)) from error

    def _end_epoch(self, lr: float) -> EpochMetrics:
        done = self.progress
        ended = EpochMetrics(
            done.step // self.plan.steps_per_epoch, done.step, done.loss / done.seen, done.correct / done.seen, lr
        )
        done.loss, done.correct, done.seen = 0.0, 0, 0
        return ended

    def diverged(self, what: str, lr: float | None = None) -> DivergedError:
        """The error to end with when NaN or infinity shows in this step, or after the last.

        lr: the step's rate, if the optimiser does not have it.
        """
        step = min(self.progress.step + 1, self.steps)
        lr = self.optimizer.param_groups[0]["lr"] if lr is None else lr
        return DivergedError(
            f"training diverged in step {step} of {self.steps} (epoch {math.ceil(step / self.plan.steps_per_epoch)}) "
            f"at learning rate {lr:.3g}: {what.rstrip('.?')}. Try a lower rate (lr {self.settings.lr / 10:.2g}), "
            "a longer warm-up, precision fp32, or look for broken images"
        )

    def _prepare(self, data: LabelledImages) -> None:
        """Set where a step's rows come from and how they are encoded."""
        images, settings, transform = data.images, self.settings, self.model.transform
        if settings.freeze and not settings.augment:
            # A frozen encoder gives the same encoding every time: each image is encoded once.
            encodings = encode_all(self.model, images)
            self._rows: RowsInBatches = lambda indices: (encodings[each.to(self.device)] for each in indices)
            self._encode: Encode = lambda encodings, _, __: encodings
            return
        self._rows = (images.to(self.device) if isinstance(images, InMemoryImages) else images).batches

        def encode(pixels: Tensor, numbers: Tensor) -> Tensor:
            images = augmentation.prepared(pixels, numbers, settings.augment, transform.mean, transform.std)
            return self.model.encode(images)

        # A frozen encoder makes of each image what it makes of it alone.
        self._encode = (lambda rows, numbers, _: encode(rows, numbers)) if settings.freeze else in_two_passes(encode)


def _check_halves(batch_size: int, normalised: bool) -> None:
    """A SettingsError if a batch is too small for its halves to be each other's memory."""
    least = 4 if normalised else 2
    if batch_size < least:
        why = ", and batch normalisation has too little to go by in one image" if normalised else ""
        raise SettingsError(
            f"batch_size is {batch_size}; the halves of the batch are to be each other's memory{why}: "
            f"expected at least {least}"
        )


def _normalises_batches(encoder: nn.Module) -> bool:
    """Whether what becomes of an image in training depends on the others."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in encoder.modules())


def set_training_mode(model: Model, frozen: bool) -> None:
    """Training mode; but a frozen encoder's statistics stay, too, and it drops nothing out."""
    model.train()
    if frozen:
        model.encoder.eval()


def layout_on_gpus(encoder: nn.Module) -> torch.memory_format:
    """The layout that its convolutions are quickest in: channels_last, but for large depthwise ones.

    cuDNN's depthwise convolutions in channels_last are slow when larger than 3x3: EfficientNetB0's take 25 of the 35 ms
    that its step keeps an H200 busy for. In torch's usual layout the step takes half the time.
    """
    large = (
        isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1 and max(module.kernel_size) > 3
        for module in encoder.modules()
    )
    return torch.contiguous_format if any(large) else torch.channels_last


def precision_on(device: torch.device, asked: str) -> str:
    """What auto stands for: bf16 is quick on GPUs, and many times slower than fp32 on most CPUs."""
    if asked != "auto":
        return asked
    return BF16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def optimizer_for(model: Model, settings: Settings) -> Optimizer:
    """A new optimiser for all parameters that learn."""
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
