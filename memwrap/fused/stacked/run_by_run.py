"""What kernels do for several runs on a GPU, by torch, one run after the other."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from memwrap.fused.kernels.norms import Norm

_ACTIVATED: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda maps: maps,
    "relu": functional.relu,
    "silu": functional.silu,
}


def batch_norm(maps: Tensor, norm: Norm, activation: str, first: int | None) -> Tensor:
    """Part by part: arguments as for `memwrap.fused.kernels.normalisation.batch_norm`"""
    done = []
    for run, images in enumerate(maps.chunk(len(norm.weight))):
        statistics = norm.running_mean[run], norm.running_var[run], norm.weight[run], norm.bias[run]
        for part in images.tensor_split([first] if first is not None and first < len(images) else []):
            done.append(functional.batch_norm(part, *statistics, True, norm.momentum, norm.epsilon))
    return _ACTIVATED[activation](torch.cat(done))


def dropout(values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
    """Arguments as for `memwrap.fused.kernels.dropout.dropout`; what is drawn is something else."""
    kept = [
        torch.rand(part.shape, generator=torch.Generator().manual_seed(int(seed) + number)) >= share
        for part, seed in zip(values.chunk(len(seeds)), seeds, strict=True)
    ]
    return torch.where(torch.cat(kept), values / (1 - share), 0.0)
