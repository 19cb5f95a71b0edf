"""One optimization step: forward pass, loss, backward pass, optimizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer


@dataclass(frozen=True)
class Batch:
    """What a training step calls the model with.

    inputs (B, ...), labels (B,); memory: (M, ...) drawn for this step, "batch" for the halves of the batch as each
    other's memory, or None for a model without a memory.
    """

    inputs: Tensor
    labels: Tensor
    memory: Tensor | Literal["batch"] | None = None


@dataclass(frozen=True)
class StepOutput:
    """Detached results, still on the device: loss () and number of correct inputs (); (S,) for S stacked runs."""

    loss: Tensor
    correct: Tensor


class StepOptimizer(Protocol):
    """The part of an optimizer that a step uses."""

    def zero_grad(self) -> None: ...

    def step(self) -> object: ...


def training_step(
    module: nn.Module,
    optimizer: Optimizer,
    batch: Batch,
    label_smoothing: float = 0.0,
    clip: float = 0.0,
    precision: torch.dtype = torch.float32,
) -> StepOutput:
    """Call a model, a wrapper of one or a last layer on the batch, and update its weights."""
    arguments = {} if batch.memory is None else {"memory": batch.memory}
    return optimization_step(
        lambda: module(batch.inputs, **arguments),
        batch.labels,
        ClippingOptimizer(optimizer, clip) if clip > 0 else optimizer,
        label_smoothing,
        precision,
    )


def optimization_step(
    predict: Callable[[], Tensor],
    labels: Tensor,
    optimizer: StepOptimizer,
    label_smoothing: float,
    precision: torch.dtype,
) -> StepOutput:
    """Minimise the cross-entropy of predict() -> logits (B, C) for labels (B,), or (S, B, C) for (S, B).

    Reads no value back from the device, apart from the layer's own checks.
    """
    with torch.autocast(labels.device.type, dtype=precision, enabled=precision != torch.float32):
        logits = predict()
    losses = cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=label_smoothing
    )
    loss = losses.reshape(labels.shape).mean(-1)
    optimizer.zero_grad()
    torch.autograd.backward(loss.sum())
    optimizer.step()
    return StepOutput(loss.detach(), (logits.detach().argmax(dim=-1) == labels).sum(-1))


class ClippingOptimizer:
    """Clips the norm of all gradients together before each optimizer step."""

    def __init__(self, optimizer: Optimizer, max_norm: float) -> None:
        self._optimizer, self._max_norm = optimizer, max_norm

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> None:
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        nn.utils.clip_grad_norm_(parameters, self._max_norm)
        self._optimizer.step()
