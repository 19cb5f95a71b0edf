"""Encodings with a layer and a remembered memory, without images: drawn at random, or set by hand."""

from collections.abc import Sequence

import torch
from torch import Tensor

from memwrap.explain.ablation import Ablation
from memwrap.explain.explanation import Explanation, explain
from memwrap.metrics import predict_classes
from memwrap.nn.layer import MemoryWrap
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.precision import to_full_precision
from memwrap.nn.reading import MemoryLayer


def asked(layer: MemoryLayer, encodings: Tensor, memory: Tensor, labels: Sequence[int] | None = None) -> Ablation:
    """encodings (B, D), memory (M, D), remembered as a model would do it"""
    labels = torch.zeros(len(memory), dtype=torch.int64) if labels is None else torch.tensor(labels)
    remembered = RememberedMemory(torch.zeros(len(memory), 1, 1, 1), labels.to(memory.device), memory)
    remembered.prepare(layer)
    return Ablation(layer, encodings, remembered)


@torch.no_grad()
def explained(
    layer: MemoryLayer, encodings: Tensor, memory: Tensor, labels: Sequence[int] | None = None, effects: bool = True
) -> list[Explanation]:
    ablation = asked(layer, encodings, memory, labels)
    reading = layer.read(encodings, ablation.memory.prepared)
    return explain(reading, ablation, to_full_precision(reading.logits).softmax(dim=1), effects)


def drawn(
    seed: int,
    inputs: int,
    samples: int,
    *options: object,
    length: int = 3,
    classes: int = 4,
    project: int | None = None,
) -> tuple[MemoryWrap, Tensor, Tensor]:
    """A layer that changes its mind easily, encodings and memory, in float64. options: variant, head"""
    generator = torch.Generator().manual_seed(seed)
    layer = MemoryWrap(length, classes, *options, project=project).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    encodings, memory = torch.randn(inputs + samples, length, generator=generator).double().split([inputs, samples])
    return layer, encodings, memory


def hand_made(weight: list[list[float]], variant: str = "only_memory") -> MemoryWrap:
    """A linear head without bias, in float64. weight (C, D), or (C, 2 D) with the input's half first"""
    length = len(weight[0]) // (1 if variant == "only_memory" else 2)
    layer = MemoryWrap(length, len(weight), variant, head="linear").double()
    with torch.no_grad():
        layer.head.first.weight.copy_(torch.tensor(weight))
        layer.head.first.bias.zero_()
    return layer


def class_without(layer: MemoryWrap, encoding: Tensor, memory: Tensor, removed: Sequence[Sequence[int]]) -> list[int]:
    """The class of one input (1, D) without each of these sets of samples."""
    keep = torch.ones(len(removed), len(memory), dtype=torch.bool)
    for row, samples in enumerate(removed):
        keep[row, list(samples)] = False
    return predict_classes(layer.read(encoding.expand(len(removed), -1), memory, keep).logits).tolist()
