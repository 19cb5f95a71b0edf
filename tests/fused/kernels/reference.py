"""Seeded inputs and references by torch for the tests of kernels."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from tests.with_kernels import DEVICE


def maps_of(*shape: int, mean: float = 0.0) -> Tensor:
    torch.manual_seed(sum(shape))
    maps = 2 * torch.randn(*shape, device=DEVICE) + mean
    return maps.contiguous(memory_format=torch.channels_last).requires_grad_()


def twin(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_()


def with_gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The output, and the gradients of the inputs for a random gradient of the output."""
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return (out.detach(), *torch.autograd.grad(out, inputs, gradient))


IMAGES = 5  # of each run


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": functional.relu,
    "silu": functional.silu,
}


def reference_batch_norm(
    maps: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor], activation: str, first: int
) -> Tensor:
    """Batch normalisation and activation by torch, each part of each run in its own pass."""
    done = []
    for run, images in enumerate(maps.split(IMAGES)):
        own = running[0][run], running[1][run], weight[run], bias[run]
        parts = [part for part in (images[:first], images[first:]) if len(part)]
        done += [ACTIVATIONS[activation](functional.batch_norm(part, *own, True, 0.1, 1e-5)) for part in parts]
    return torch.cat(done)
