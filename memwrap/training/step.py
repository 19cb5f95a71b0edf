"""One optimization step: forward pass, loss, backward pass, optimizer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from memwrap.nn.contrast import contrastive_loss
from memwrap.nn.queue import Queue


@dataclass(frozen=True)
class Batch:
    """What a training step calls the model with.

    inputs (B, ...), labels (B,); memory: (M, ...) drawn for this step, "batch" for the halves of the batch as each
    other's memory, a queue that joins them, or None for a model without a memory. queue: that inputs are contrasted
    with, next to each other.
    """

    inputs: Tensor
    labels: Tensor
    memory: Tensor | Queue | Literal["batch"] | None = None
    queue: Queue | None = None


@dataclass(frozen=True)
class StepOutput:
    """Detached results, still on the device: loss () and number of correct inputs (); (S,) for S stacked runs.

    encodings (B, D): of the inputs; None where nobody asked for them.
    """

    loss: Tensor
    correct: Tensor
    encodings: Tensor | None = None


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
    contrast: float = 0.0,
    layer: nn.Module | None = None,
) -> StepOutput:
    """Call a model, a wrapper of one or a last layer on the batch, and update its weights.

    contrast: the weight of the contrastive loss. layer: the last layer, whose inputs are contrasted, and returned.
    """
    arguments = {} if batch.memory is None else {"memory": batch.memory}
    encodings: list[Tensor] = []

    def contrast_inputs() -> Tensor:
        return contrast * contrastive_loss(layer, encodings[0], batch.labels, batch.queue)

    watch = None if layer is None else layer.register_forward_pre_hook(lambda _, given: encodings.append(given[0]))
    try:
        output = optimization_step(
            lambda: module(batch.inputs, **arguments),
            batch.labels,
            ClippingOptimizer(optimizer, clip) if clip > 0 else optimizer,
            label_smoothing,
            precision,
            contrast_inputs if contrast else None,
        )
    finally:
        if watch is not None:
            watch.remove()
    return replace(output, encodings=encodings[0].detach() if encodings else None)


def optimization_step(
    predict: Callable[[], Tensor],
    labels: Tensor,
    optimizer: StepOptimizer,
    label_smoothing: float,
    precision: torch.dtype,
    further: Callable[[], Tensor] | None = None,
) -> StepOutput:
    """Minimise the cross-entropy of predict() -> logits (B, C) for labels (B,), or (S, B, C) for (S, B).

    further: called after predict, a loss () or (S,) to be added. Reads no value back from the device, apart from the
    layer's own checks.
    """
    with torch.autocast(labels.device.type, dtype=precision, enabled=precision != torch.float32):
        logits = predict()
    losses = cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=label_smoothing
    )
    loss = losses.reshape(labels.shape).mean(-1)
    if further is not None:
        loss = loss + further()
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
