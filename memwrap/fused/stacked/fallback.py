"""Batch normalisation and dropout by torch, one run after the other, where there are no kernels."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from memwrap.fused.kernels.norm import Norm

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda maps: maps,
    "relu": functional.relu,
    "silu": functional.silu,
}


def batch_norm(maps: Tensor, norm: Norm, activation: str, first: int | None) -> Tensor:
    """Arguments as for `memwrap.fused.kernels.batch_norm.batch_norm`."""
    out = []
    for run, images in enumerate(maps.chunk(len(norm.weight))):
        state = norm.running_mean[run], norm.running_var[run], norm.weight[run], norm.bias[run]
        for part in images.tensor_split([first] if first is not None and first < len(images) else []):
            out.append(functional.batch_norm(part, *state, True, norm.momentum, norm.epsilon))
    return _ACTIVATIONS[activation](torch.cat(out))


def dropout(values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
    """Arguments as for `memwrap.fused.kernels.dropout.dropout`. The values that it draws differ from the kernel's."""
    kept = [
        torch.rand(part.shape, generator=torch.Generator().manual_seed(int(seed) + number)) >= share
        for part, seed in zip(values.chunk(len(seeds)), seeds, strict=True)
    ]
    return torch.where(torch.cat(kept), values / (1 - share), 0.0)
