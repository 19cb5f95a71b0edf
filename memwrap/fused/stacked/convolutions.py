"""Convolutions of several runs, each with weights of its own: S runs, weights (S, O, I, k, k)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from memwrap.fused.kernels.streams import at_once
from memwrap.fused.stacked.products import linear

T = TypeVar("T")

_FEW_INPUTS = 64  # numbers that one place of a result is made of: 27 for images in colour
_LIGHTER = 4  # times: weights that are so much lighter than the maps are quicker turned around than the maps copied


def pointwise(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of kernel 1 as the product that it is: maps (S * N, I, H, W), weight (S, O, I, 1, 1)"""
    return linear(maps.permute(0, 2, 3, 1), weight.flatten(2), bias).permute(0, 3, 1, 2)


def convolution(maps: Tensor, weight: Tensor, bias: Tensor | None, like: nn.Conv2d, kernels: bool) -> Tensor:
    """Any convolution, run by run: maps (S * N, I, H, W), weight (S, O, I / groups, k, k), bias (S, O)"""
    sizes = _Sizes(_both(like.stride), _both(like.padding), _both(like.dilation), like.groups)
    if not maps.requires_grad and sizes.is_plain and weight[0, 0].numel() <= _FEW_INPUTS:
        return _convolution_of_images(maps, weight, bias, sizes.padding, kernels)
    # In the layout of the weights: else it would be changed for each run, and for each of its gradients.
    maps = maps.to(weight.dtype).contiguous(memory_format=torch.channels_last)
    out: Tensor = _Convolutions.apply(maps, weight, sizes)
    if bias is None:
        return out
    runs, outputs = bias.shape
    return (out.reshape(runs, -1, outputs, *out.shape[2:]) + bias[:, None, :, None, None]).flatten(0, 1)


def _convolution_of_images(
    maps: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int], kernels: bool
) -> Tensor:
    """A network's first convolution as one product for all runs: of the neighbourhoods of all places with the weights.

    Images have so few channels that neighbourhoods take little room, and gradients of images are not needed.
    """
    kernel = weight.shape[3:]
    # Rows that begin at multiples of 16 bytes are quicker to multiply.
    missing = -weight[0, 0].numel() % 8
    gather = _neighbourhoods
    if kernels:
        from memwrap.fused.kernels.neighbourhoods import neighbourhoods  # Triton is there where there is a GPU

        gather = neighbourhoods
    factors = functional.pad(weight.permute(0, 1, 3, 4, 2).flatten(2), (0, missing))
    return linear(gather(maps, kernel, padding, missing, weight.dtype), factors, bias).permute(0, 3, 1, 2)


def _neighbourhoods(
    maps: Tensor, kernel: Sequence[int], padding: Sequence[int], missing: int, dtype: torch.dtype
) -> Tensor:
    """As `fused.kernels.neighbourhoods` makes them: maps (N, C, H, W) -> (N, height, width, taps * C + missing)"""
    down, across = padding
    padded = functional.pad(maps.to(dtype).permute(0, 2, 3, 1), (0, 0, across, across, down, down))
    height, width = (side - length + 1 for side, length in zip(padded.shape[1:3], kernel, strict=True))
    taps = [padded[:, i : i + height, j : j + width] for i in range(kernel[0]) for j in range(kernel[1])]
    return torch.cat([*taps, padded.new_zeros(()).expand(len(maps), height, width, missing)], dim=3)


@dataclass(frozen=True)
class _Sizes:
    """Of a convolution, by height and width."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @property
    def is_plain(self) -> bool:
        """Whether every place has a result, from a neighbourhood without gaps and all channels."""
        return self.stride == [1, 1] and self.dilation == [1, 1] and self.groups == 1

    def result_of(self, maps: Tensor, kernel: Sequence[int]) -> tuple[int, int]:
        """Height and width of what comes out."""
        height, width = (
            (side + 2 * padding - dilation * (length - 1) - 1) // stride + 1
            for side, padding, dilation, length, stride in zip(
                maps.shape[2:], self.padding, self.dilation, kernel, self.stride, strict=True
            )
        )
        return height, width

    def empty_result(self, maps: Tensor, weight: Tensor) -> Tensor:
        """Room for what comes out, in channels_last."""
        shape = (len(maps), weight.shape[1], *self.result_of(maps, weight.shape[3:]))
        return torch.empty(shape, dtype=maps.dtype, device=maps.device, memory_format=torch.channels_last)

    def can_turn(self, maps: Tensor, weight: Tensor) -> bool:
        """Whether maps get their gradient by a convolution, too, and sooner: it needs no copy to its place."""
        within = all(own < length for own, length in zip(self.padding, weight.shape[3:], strict=True))
        return self.is_plain and within and _LIGHTER * weight.numel() < maps.numel()

    def turned(self, weight: Tensor) -> Tensor:
        """The weights of that convolution, (S, I, O, k, k): turned around, outputs and inputs exchanged."""
        turned = weight.permute(0, 2, 3, 4, 1).flip(2, 3).contiguous()
        return turned.permute(0, 1, 4, 2, 3)

    def back(self, weight: Tensor) -> "_Sizes":
        """The sizes of that convolution, for the weight of one run."""
        padding = [length - 1 - own for length, own in zip(weight.shape[2:], self.padding, strict=True)]
        return replace(self, padding=padding)


class _Convolutions(torch.autograd.Function):
    """Of each run by itself, at the same time."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, sizes: _Sizes) -> Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.sizes = sizes
        out = sizes.empty_result(maps, weight)
        runs = len(weight)
        at_once(_of_runs(partial(_convolve, sizes=sizes), maps.chunk(runs), weight, out.chunk(runs)), maps.device)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        maps, weight = ctx.saved_tensors
        sizes: _Sizes = ctx.sizes
        runs = len(weight)
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        if not ctx.needs_input_grad[0]:
            of_weight = partial(_gradients, sizes=sizes, wanted=(False, True))
            found = at_once(_of_runs(of_weight, gradient.chunk(runs), maps.chunk(runs), weight), maps.device)
            return None, _joined([each[1] for each in found], weight), None
        of_maps = torch.empty_like(maps)
        turned = sizes.turned(weight) if sizes.can_turn(maps, weight) else [None] * runs
        back = partial(_convolve_back, sizes=sizes)
        parts = gradient.chunk(runs), maps.chunk(runs), weight, turned, of_maps.chunk(runs)
        return of_maps, _joined(at_once(_of_runs(back, *parts), maps.device), weight), None


def _convolve(maps: Tensor, weight: Tensor, out: Tensor, sizes: _Sizes) -> None:
    """One run's convolution, into its place."""
    if not (maps.is_cuda and torch.backends.cudnn.enabled):
        out.copy_(torch.conv2d(maps, weight, None, sizes.stride, sizes.padding, sizes.dilation, sizes.groups))
        return
    chosen = torch.backends.cudnn
    torch.ops.aten.cudnn_convolution.out(
        maps,
        weight,
        sizes.padding,
        sizes.stride,
        sizes.dilation,
        sizes.groups,
        chosen.benchmark,
        chosen.deterministic,
        chosen.conv.fp32_precision == "tf32",  # type: ignore[attr-defined]
        out=out,
    )


def _convolve_back(
    gradient: Tensor, maps: Tensor, weight: Tensor, turned: Tensor | None, of_maps: Tensor, sizes: _Sizes
) -> Tensor:
    """The gradient of one run's maps, into its place; and that of its weight."""
    found = _gradients(gradient, maps, weight, sizes, (turned is None, True))
    if turned is None:
        of_maps.copy_(found[0])
    else:
        _convolve(gradient, turned, of_maps, sizes.back(weight))
    return found[1]


def _gradients(
    gradient: Tensor, maps: Tensor, weight: Tensor, sizes: _Sizes, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Those of one run's maps and weight that are wanted."""
    of_maps, of_weight, _ = torch.ops.aten.convolution_backward(
        gradient,
        maps,
        weight,
        None,
        sizes.stride,
        sizes.padding,
        sizes.dilation,
        False,
        [0, 0],
        sizes.groups,
        [*wanted, False],
    )
    return of_maps, of_weight


def _joined(of_runs: Sequence[Tensor], like: Tensor) -> Tensor:
    """One tensor of those of all runs, which lies in memory as another does."""
    joined = torch.empty_like(like)
    torch._foreach_copy_(list(joined.unbind()), list(of_runs))
    return joined


def _of_runs(job: Callable[..., T], *parts: Iterable[Any]) -> list[Callable[[], T]]:
    """The same job for each run, with its parts."""
    return [partial(job, *own) for own in zip(*parts, strict=True)]


def _both(size: int | Sequence[int] | str) -> list[int]:
    """A size for height and width."""
    assert not isinstance(size, str)  # as `unstackable` has seen
    return [size, size] if isinstance(size, int) else list(size)
