"""One step of training, from pixels to new weights: of one run, or of several that are stacked along a first axis."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from memwrap.nn.layer import MemoryWrap, first_half

# Rows, such as pixels uint8 (n, C, H, W), uniform numbers (n, K) for their random changes, and how many of the rows are
# encoded together -> encodings (n, D). The others are encoded as if in a pass of their own.
Encode = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Batch:
    """What a step is given; the memory's rows come after the inputs'.

    rows (B + M, ...) as `Encode` takes them, numbers (B + M, K), labels (B,). Without a memory of its own, M = 0.
    """

    rows: Tensor
    numbers: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Outcome:
    """What came of a step, still on the device: loss () and correct (), how many inputs were judged rightly.

    Of stacked runs (S,), a number for each.
    """

    loss: Tensor
    correct: Tensor


class Moves(Protocol):
    """What a step needs of an optimiser."""

    def zero_grad(self) -> None: ...

    def step(self) -> object: ...


def training_step(
    layer: nn.Module,
    optimizer: Optimizer,
    encode: Encode,
    batch: Batch,
    label_smoothing: float = 0.0,
    clip: float = 0.0,
    precision: torch.dtype = torch.float32,
) -> Outcome:
    """Judge the batch by a model's encoder and last layer, and move its weights by what that shows."""
    mover = Clipping(optimizer, clip) if clip > 0 else optimizer
    return optimization_step(
        lambda: batch_logits(layer, encode, batch), batch.labels, mover, label_smoothing, precision
    )


def optimization_step(
    judge: Callable[[], Tensor], labels: Tensor, optimizer: Moves, label_smoothing: float, precision: torch.dtype
) -> Outcome:
    """judge() -> logits (B, C) for labels (B,), or (S, B, C) for labels (S, B) of runs that share no weight.

    Reads no value back from the device, other than the layer's own checks.
    """
    with torch.autocast(labels.device.type, dtype=precision, enabled=precision != torch.float32):
        logits = judge()
    losses = cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=label_smoothing
    )
    loss = losses.reshape(labels.shape).mean(-1)
    optimizer.zero_grad()
    torch.autograd.backward(loss.sum())
    optimizer.step()
    return Outcome(loss.detach(), (logits.detach().argmax(dim=-1) == labels).sum(-1))


class Clipping:
    """An optimiser that shortens gradients to this length before it takes a step."""

    def __init__(self, optimizer: Optimizer, most: float) -> None:
        self._optimizer, self._most = optimizer, most

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> None:
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        nn.utils.clip_grad_norm_(parameters, self._most)
        self._optimizer.step()


def in_two_passes(encode: Callable[[Tensor, Tensor], Tensor]) -> Encode:
    """What encodes rows in one pass, made to encode the first part of them and the others apart."""

    def encode_both(rows: Tensor, numbers: Tensor, first: int) -> Tensor:
        encodings = encode(rows[:first], numbers[:first])
        if len(rows) == first:
            return encodings
        return torch.cat([encodings, encode(rows[first:], numbers[first:])])

    return encode_both


def batch_logits(layer: nn.Module, encode: Encode, batch: Batch) -> Tensor:
    """Logits (B, C) of the inputs."""
    inputs = len(batch.labels)
    first = first_part(layer, len(batch.rows), inputs)
    return logits_of_inputs(layer, encode(batch.rows, batch.numbers, first), inputs)


def first_part(layer: nn.Module, rows: int, inputs: int) -> int:
    """How many of a step's rows are encoded together, so that batch normalisation never mixes inputs with their memory.

    Where it did, as between the halves of a batch, models predicted worse from the memories of later on.
    """
    batch_is_memory = isinstance(layer, MemoryWrap) and rows == inputs
    return first_half(inputs) if batch_is_memory else inputs


def logits_of_inputs(layer: nn.Module, encodings: Tensor, inputs: int) -> Tensor:
    """encodings (B + M, D) of inputs and memory -> logits (B, C) of the inputs

    Without a memory of its own, M = 0, each half of the batch is the memory of the other.
    """
    if not isinstance(layer, MemoryWrap):
        logits: Tensor = layer(encodings)
        return logits
    if len(encodings) > inputs:
        return layer.forward(encodings[:inputs], encodings[inputs:])
    return layer.forward_by_halves(encodings)
