"""One step of training, from pixels to new weights. A loop can run it, and a captured graph."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from memwrap.layer import MemoryWrap

# Rows, such as pixels uint8 (n, C, H, W), uniform numbers (n, K) for their random changes, and how many of the rows are
# inputs -> encodings (n, D). The others, a memory, are encoded as if in a pass of their own.
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
    """What came of a step, still on the device: loss () and correct (), how many inputs were judged rightly."""

    loss: Tensor
    correct: Tensor


def training_step(
    layer: nn.Module,
    optimizer: Optimizer,
    encode: Encode,
    batch: Batch,
    label_smoothing: float = 0.0,
    clip: float = 0.0,
    precision: torch.dtype = torch.float32,
) -> Outcome:
    """Judge the batch by a model's encoder and last layer, and move its weights by what that shows.

    Reads no value back from the device, other than the layer's own checks.
    """
    with torch.autocast(batch.labels.device.type, dtype=precision, enabled=precision != torch.float32):
        logits = batch_logits(layer, encode, batch)
    loss = cross_entropy(logits.float(), batch.labels, label_smoothing=label_smoothing)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    if clip > 0:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    correct = (logits.detach().argmax(dim=1) == batch.labels).sum()
    return Outcome(loss.detach(), correct)


def in_two_passes(encode: Callable[[Tensor, Tensor], Tensor]) -> Encode:
    """What encodes rows in one pass, made to encode inputs and memory apart: batch normalisation never mixes them."""

    def encode_both(rows: Tensor, numbers: Tensor, inputs: int) -> Tensor:
        encodings = encode(rows[:inputs], numbers[:inputs])
        if len(rows) == inputs:
            return encodings
        return torch.cat([encodings, encode(rows[inputs:], numbers[inputs:])])

    return encode_both


def batch_logits(layer: nn.Module, encode: Encode, batch: Batch) -> Tensor:
    """Logits (B, C) of the inputs. Without a memory of its own, each half of the batch is the memory of the other."""
    inputs = len(batch.labels)
    encodings = encode(batch.rows, batch.numbers, inputs)
    if not isinstance(layer, MemoryWrap):
        logits: Tensor = layer(encodings)
        return logits
    if len(batch.rows) > inputs:
        return layer.forward(encodings[:inputs], encodings[inputs:])
    first, second = encodings.tensor_split(2)
    return torch.cat([layer(first, second), layer(second, first)])
