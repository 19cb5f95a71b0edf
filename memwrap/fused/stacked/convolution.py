"""Convolutions of S runs, each with its own weights (S, O, I, k, k)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from memwrap.fused.kernels.streams import run_concurrently
from memwrap.fused.stacked.linear import linear

T = TypeVar("T")

_IM2COL_INPUTS = 64  # inputs per output position up to which im2col is used: 27 for RGB images and a 3x3 kernel
_FLIP_RATIO = 4  # flip the weights instead of copying the maps' gradient if the maps are that much larger


def pointwise(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A 1x1 convolution as a matrix product: maps (S * N, I, H, W), weight (S, O, I, 1, 1)"""
    return linear(maps.permute(0, 2, 3, 1), weight.flatten(2), bias).permute(0, 3, 1, 2)


def convolution(maps: Tensor, weight: Tensor, bias: Tensor | None, like: nn.Conv2d, kernels: bool) -> Tensor:
    """The convolution `like` of each run: maps (S * N, I, H, W), weight (S, O, I / groups, k, k), bias (S, O)"""
    spec = _ConvSpec(_pair(like.stride), _pair(like.padding), _pair(like.dilation), like.groups)
    if not maps.requires_grad and spec.is_dense and weight[0, 0].numel() <= _IM2COL_INPUTS:
        return _image_convolution(maps, weight, bias, spec.padding, kernels)
    # In the layout of the weights: cuDNN would otherwise convert it for each run and each gradient.
    maps = maps.to(weight.dtype).contiguous(memory_format=torch.channels_last)
    out: Tensor = _PerRunConvolution.apply(maps, weight, spec)
    if bias is None:
        return out
    runs, outputs = bias.shape
    return (out.reshape(runs, -1, outputs, *out.shape[2:]) + bias[:, None, :, None, None]).flatten(0, 1)


def _image_convolution(
    maps: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int], kernels: bool
) -> Tensor:
    """A network's first convolution as one product for all runs: im2col of the images times the weights.

    Images have so few channels that their im2col is small, and no gradient of the images is needed.
    """
    kernel = weight.shape[3:]
    # Rows that start at multiples of 16 bytes are faster to multiply.
    zero_columns = -weight[0, 0].numel() % 8
    unfold = _im2col
    if kernels:
        from memwrap.fused.kernels.im2col import im2col  # Triton may be missing

        unfold = im2col
    factors = functional.pad(weight.permute(0, 1, 3, 4, 2).flatten(2), (0, zero_columns))
    return linear(unfold(maps, kernel, padding, zero_columns, weight.dtype), factors, bias).permute(0, 3, 1, 2)


def _im2col(
    maps: Tensor, kernel: Sequence[int], padding: Sequence[int], zero_columns: int, dtype: torch.dtype
) -> Tensor:
    """The im2col of `memwrap.fused.kernels.im2col` by torch."""
    down, across = padding
    padded = functional.pad(maps.to(dtype).permute(0, 2, 3, 1), (0, 0, across, across, down, down))
    height, width = (side - length + 1 for side, length in zip(padded.shape[1:3], kernel, strict=True))
    taps = [padded[:, i : i + height, j : j + width] for i in range(kernel[0]) for j in range(kernel[1])]
    return torch.cat([*taps, padded.new_zeros(()).expand(len(maps), height, width, zero_columns)], dim=3)


@dataclass(frozen=True)
class _ConvSpec:
    """The geometry of a convolution, by height and width."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @property
    def is_dense(self) -> bool:
        """Whether stride, dilation and groups are all 1."""
        return self.stride == [1, 1] and self.dilation == [1, 1] and self.groups == 1

    def output_size(self, maps: Tensor, kernel: Sequence[int]) -> tuple[int, int]:
        """Height and width of the output."""
        height, width = (
            (side + 2 * padding - dilation * (length - 1) - 1) // stride + 1
            for side, padding, dilation, length, stride in zip(
                maps.shape[2:], self.padding, self.dilation, kernel, self.stride, strict=True
            )
        )
        return height, width

    def empty_output(self, maps: Tensor, weight: Tensor) -> Tensor:
        """An uninitialised output tensor in channels_last."""
        shape = (len(maps), weight.shape[1], *self.output_size(maps, weight.shape[3:]))
        return torch.empty(shape, dtype=maps.dtype, device=maps.device, memory_format=torch.channels_last)

    def can_flip(self, maps: Tensor, weight: Tensor) -> bool:
        """Whether the gradient of the maps is computed faster by a convolution with flipped weights.

        Unlike `convolution_backward`, it writes into the output tensor, without a copy.
        """
        within = all(own < length for own, length in zip(self.padding, weight.shape[3:], strict=True))
        return self.is_dense and within and _FLIP_RATIO * weight.numel() < maps.numel()

    def flip(self, weight: Tensor) -> Tensor:
        """The weights of that convolution, (S, I, O, k, k): flipped, with inputs and outputs exchanged."""
        return weight.permute(0, 2, 3, 4, 1).flip(2, 3).contiguous().permute(0, 1, 4, 2, 3)

    def flipped(self, weight: Tensor) -> "_ConvSpec":
        """The geometry of that convolution, for the weight of one run."""
        padding = [length - 1 - own for length, own in zip(weight.shape[2:], self.padding, strict=True)]
        return replace(self, padding=padding)


class _PerRunConvolution(torch.autograd.Function):
    """One convolution per run, on concurrent streams."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, spec: _ConvSpec) -> Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.spec = spec
        out = spec.empty_output(maps, weight)
        runs = len(weight)
        run_concurrently(
            _per_run(partial(_convolve, spec=spec), maps.chunk(runs), weight, out.chunk(runs)), maps.device
        )
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        maps, weight = ctx.saved_tensors
        spec: _ConvSpec = ctx.spec
        runs = len(weight)
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        if not ctx.needs_input_grad[0]:
            of_weight = partial(_gradients, spec=spec, wanted=(False, True))
            found = run_concurrently(_per_run(of_weight, gradient.chunk(runs), maps.chunk(runs), weight), maps.device)
            return None, _stack_runs([each[1] for each in found], weight), None
        of_maps = torch.empty_like(maps)
        flipped = spec.flip(weight) if spec.can_flip(maps, weight) else [None] * runs
        backward = partial(_convolve_backward, spec=spec)
        parts = gradient.chunk(runs), maps.chunk(runs), weight, flipped, of_maps.chunk(runs)
        return of_maps, _stack_runs(run_concurrently(_per_run(backward, *parts), maps.device), weight), None


def _convolve(maps: Tensor, weight: Tensor, out: Tensor, spec: _ConvSpec) -> None:
    """Write the convolution of one run into `out`."""
    if not (maps.is_cuda and torch.backends.cudnn.enabled):
        out.copy_(torch.conv2d(maps, weight, None, spec.stride, spec.padding, spec.dilation, spec.groups))
        return
    cudnn = torch.backends.cudnn
    torch.ops.aten.cudnn_convolution.out(
        maps,
        weight,
        spec.padding,
        spec.stride,
        spec.dilation,
        spec.groups,
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.conv.fp32_precision == "tf32",  # type: ignore[attr-defined]
        out=out,
    )


def _convolve_backward(
    gradient: Tensor, maps: Tensor, weight: Tensor, flipped: Tensor | None, of_maps: Tensor, spec: _ConvSpec
) -> Tensor:
    """Write the gradient of one run's maps into `of_maps`, and return that of its weight."""
    found = _gradients(gradient, maps, weight, spec, (flipped is None, True))
    if flipped is None:
        of_maps.copy_(found[0])
    else:
        _convolve(gradient, flipped, of_maps, spec.flipped(weight))
    return found[1]


def _gradients(
    gradient: Tensor, maps: Tensor, weight: Tensor, spec: _ConvSpec, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """The gradients of one run's maps and weight, as far as they are wanted."""
    of_maps, of_weight, _ = torch.ops.aten.convolution_backward(
        gradient,
        maps,
        weight,
        None,
        spec.stride,
        spec.padding,
        spec.dilation,
        False,
        [0, 0],
        spec.groups,
        [*wanted, False],
    )
    return of_maps, of_weight


def _stack_runs(of_runs: Sequence[Tensor], like: Tensor) -> Tensor:
    """Stack the tensors of all runs in the memory layout of `like`."""
    joined = torch.empty_like(like)
    torch._foreach_copy_(list(joined.unbind()), list(of_runs))
    return joined


def _per_run(job: Callable[..., T], *parts: Iterable[Any]) -> list[Callable[[], T]]:
    """Bind the job to the arguments of each run."""
    return [partial(job, *own) for own in zip(*parts, strict=True)]


def _pair(size: int | Sequence[int] | str) -> list[int]:
    """A size as [height, width]."""
    assert not isinstance(size, str)  # `unsupported_layer` has checked it
    return [size, size] if isinstance(size, int) else list(size)
