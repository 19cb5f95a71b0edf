"""Steps of SGD for all weights of several runs, in one kernel.

Networks have hundreds of small weights, and torch takes many kernels for them: to bring gradients to float32, to move
weights, to round them for the next pass. Here a table of addresses leads one kernel to all of them: each program takes
a part of one run's share of one weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError
from memwrap.fused.kernels.blocks import check_count
from memwrap.nn.gpu import LAUNCH_OPTIONS

_BLOCK = 2048  # numbers that a program takes: at once, or, where no wide load fits, so many at a time as it has threads
_WARPS = 4
_ALIGNMENT = 16  # bytes: of addresses, as the widest loads need it


@dataclass(frozen=True)
class Gradients:
    """What the kernels are told of one step's gradients: where each lies, or 0 where there is none."""

    addresses: Tensor  # (weights,), int64
    held: list[Tensor | None]  # their memory, which nothing else may take before the kernels have read it


class Update:
    """Moves weights by SGD with weight decay and Nesterov momentum; without a momentum of more than 0, by plain SGD.

    weights: each (S, ...), of S runs, float32, without gaps in memory and one run after the other. leaves: of each
    weight what has the gradient, the weight itself or a copy in bfloat16, which is rounded anew in every step.
    """

    def __init__(
        self, weights: Sequence[Tensor], leaves: Sequence[Tensor], momentum: float, weight_decay: float
    ) -> None:
        for weight, leaf in zip(weights, leaves, strict=True):
            _check(weight, leaf, runs=len(weights[0]))
        self._leaves, self._momentum, self._weight_decay = list(leaves), momentum, weight_decay
        # The table has their addresses, and these keep what lies there.
        self._weights = list(weights)
        self._buffers = [torch.zeros_like(weight) for weight in weights] if momentum > 0 else []
        device = weights[0].device
        self._table = torch.tensor(self._rows(), device=device)
        parts = [triton.cdiv(weight[0].numel(), _BLOCK) for weight in weights]
        own = [(number, part) for number, count in enumerate(parts) for part in range(count)]
        self._programs = torch.tensor(own, dtype=torch.int32, device=device)
        # A replayed graph reads addresses of its own, whatever steps are taken beside it. They lie outside of the
        # graph's memory, all of which its kernels may write to.
        self._addresses, self._captured = (
            torch.zeros(len(weights), dtype=torch.int64, device=device) for _ in range(2)
        )
        self._unsettled: list[int] | None = None

    def read(self, gradients: Sequence[Tensor | None]) -> Gradients:
        """Those of the leaves, each (S, ...): None leaves a weight alone. For the kernels of this step.

        While a graph is captured, they are only noted: see `settle`.
        """
        held = [
            None if gradient is None else _lying_as(leaf, gradient)
            for leaf, gradient in zip(self._leaves, gradients, strict=True)
        ]
        found = [0 if gradient is None else gradient.data_ptr() for gradient in held]
        if _capturing(self._captured):
            assert self._unsettled is None, "a graph has one step, as one table of addresses"
            self._unsettled = found
            return Gradients(self._captured, held)
        self._addresses.copy_(torch.tensor(found))
        return Gradients(self._addresses, held)

    def settle(self) -> None:
        """After a capture: tell the graph where its gradients lie, in each replay. Only the last graph is told."""
        if self._unsettled is not None:
            self._captured.copy_(torch.tensor(self._unsettled))
            self._unsettled = None

    def lengths(self, gradients: Gradients) -> Tensor:
        """How long the gradients of each run are, all together: (S,)"""
        programs, runs = self._grid
        squares = torch.empty(runs, programs, device=self._table.device)
        _square[self._grid](self._table, self._programs, gradients.addresses, squares, **_blocks())
        return squares.sum(1).sqrt()

    def move(self, gradients: Gradients, rate: Tensor, scales: Tensor | None = None) -> None:
        """One step. rate (). scales (S,): what the gradients of each run are multiplied by."""
        _move[self._grid](
            self._table,
            self._programs,
            gradients.addresses,
            rate,
            rate if scales is None else scales,
            self._momentum,
            self._weight_decay,
            SCALED=scales is not None,
            MOMENTUM=self._momentum > 0,
            **_blocks(),
        )

    def forget(self) -> None:
        """As if no step had been taken."""
        for buffer in self._buffers:
            buffer.zero_()

    @property
    def _grid(self) -> tuple[int, int]:
        return len(self._programs), len(self._weights[0])

    def _rows(self) -> list[list[int]]:
        """For each weight: its address, that of its momentum, that of its copy, and how many numbers a run has of it.
        0 for what is not there."""
        buffers = [buffer.data_ptr() for buffer in self._buffers] or [0] * len(self._weights)
        copies = [
            0 if leaf is weight else leaf.data_ptr() for weight, leaf in zip(self._weights, self._leaves, strict=True)
        ]
        return [
            [weight.data_ptr(), buffer, copy, weight[0].numel()]
            for weight, buffer, copy in zip(self._weights, buffers, copies, strict=True)
        ]


def _blocks() -> dict[str, int]:
    return {"BLOCK": _BLOCK, "NARROW": 32 * _WARPS, "num_warps": _WARPS, **LAUNCH_OPTIONS}


def _check(weight: Tensor, leaf: Tensor, runs: int) -> None:
    """What a kernel that goes through memory can take."""
    check_count(weight)
    expected = weight.dtype if leaf is weight else torch.bfloat16
    if weight.dtype != torch.float32 or leaf.dtype != expected:
        raise InputError(
            f"a weight in {weight.dtype}, used in {leaf.dtype}; expected float32, used as it is or in bfloat16"
        )
    if len(weight) != runs or not (_is_run_by_run(weight) and _is_aligned(weight) and _lies_as(weight, leaf)):
        raise InputError(
            f"a weight of shape {tuple(weight.shape)} and strides {weight.stride()}, used as {tuple(leaf.shape)} with "
            f"{leaf.stride()}; expected {runs} runs, one after the other in memory, without gaps and aligned, in both"
        )


def _is_run_by_run(weight: Tensor) -> bool:
    """Whether the numbers fill their memory, each run its own part."""
    filling = torch.empty_like(weight, device="meta")  # keeps strides only of what has no gaps
    return _strides(filling) == _strides(weight) and (len(weight) == 1 or weight.stride(0) == weight[0].numel())


def _lies_as(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and _strides(one) == _strides(other) and _is_aligned(other)


def _is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % _ALIGNMENT == 0


def _strides(tensor: Tensor) -> list[int]:
    """Those that count: a dimension with one place has any."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _lying_as(leaf: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the leaf's order in memory: mostly itself, as autograd gives it so."""
    if gradient.dtype == leaf.dtype and _lies_as(leaf, gradient):
        return gradient
    return torch.empty_like(leaf).copy_(gradient)


def _capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


@triton.jit
def _own_part(table, programs, addresses, BLOCK: tl.constexpr):
    """This program's weight, as a row of the table, how many numbers each run has of it, the first that the program
    takes, and the address of the gradient."""
    program = programs + 2 * tl.program_id(0)
    weight = tl.load(program)
    row = table + 4 * weight
    return row, tl.load(row + 3).to(tl.int32), tl.load(program + 1) * BLOCK, tl.load(addresses + weight)


@triton.jit
def _places(count, first, address, BLOCK: tl.constexpr):
    """Where the numbers from the first on lie, and which of them there are, with a gradient. A thread takes four that
    follow each other, also in bfloat16, which could be eight: so it has the same numbers of all that it needs."""
    place = first + tl.arange(0, BLOCK)
    return tl.max_contiguous(tl.program_id(1) * count + place, 4), tl.where(address != 0, place < count, False)


@triton.jit
def _at(address, DTYPE: tl.constexpr):
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def _load_gradient(address, copy, place, inside):
    """In float32. It has the dtype of the copy, if there is one; a branch would cost more than a load of nothing."""
    rounded = tl.load(_at(address, tl.bfloat16) + place, mask=tl.where(copy != 0, inside, False), other=0.0)
    exact = tl.load(_at(address, tl.float32) + place, mask=tl.where(copy != 0, False, inside), other=0.0)
    return rounded.to(tl.float32) + exact


@triton.jit
def _squares_of_part(row, count, first, address, BLOCK: tl.constexpr):
    place, inside = _places(count, first, address, BLOCK)
    gradient = _load_gradient(address, tl.load(row + 2), place, inside)
    return tl.sum(gradient * gradient)


@triton.jit
def _square(table, programs, addresses, squares, BLOCK: tl.constexpr, NARROW: tl.constexpr):
    """squares (S, programs of a run)"""
    row, count, first, address = _own_part(table, programs, addresses, BLOCK)
    total = 0.0
    if count % 4 == 0:
        total += _squares_of_part(row, count // 4 * 4, first, address, BLOCK)  # so that the compiler knows
    else:
        for narrow in range(first, min(first + BLOCK, count), NARROW):
            total += _squares_of_part(row, count, narrow, address, NARROW)
    tl.store(squares + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), total)


@triton.jit
def _move_part(
    row,
    count,
    first,
    address,
    rate,
    scale,
    momentum,
    weight_decay,
    MOMENTUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place, inside = _places(count, first, address, BLOCK)
    weights, copy = _at(tl.load(row), tl.float32) + place, tl.load(row + 2)
    weight = tl.load(weights, mask=inside, other=0.0)
    change = _load_gradient(address, copy, place, inside) * scale + weight_decay * weight
    if MOMENTUM:
        buffers = _at(tl.load(row + 1), tl.float32) + place
        buffer = momentum * tl.load(buffers, mask=inside, other=0.0) + change
        tl.store(buffers, buffer, mask=inside)
        change += momentum * buffer
    weight -= rate * change
    tl.store(weights, weight, mask=inside)
    tl.store(_at(copy, tl.bfloat16) + place, weight, mask=tl.where(copy != 0, inside, False))


@triton.jit
def _move(
    table,
    programs,
    addresses,
    rate,
    scales,
    momentum,
    weight_decay,
    SCALED: tl.constexpr,
    MOMENTUM: tl.constexpr,
    BLOCK: tl.constexpr,
    NARROW: tl.constexpr,
):
    row, count, first, address = _own_part(table, programs, addresses, BLOCK)
    scale = 1.0
    if SCALED:
        scale = tl.load(scales + tl.program_id(1))
    rate = tl.load(rate)
    if count % 4 == 0:
        count = count // 4 * 4  # so that the compiler knows
        _move_part(row, count, first, address, rate, scale, momentum, weight_decay, MOMENTUM, BLOCK)
    else:
        for narrow in range(first, min(first + BLOCK, count), NARROW):
            _move_part(row, count, narrow, address, rate, scale, momentum, weight_decay, MOMENTUM, NARROW)
