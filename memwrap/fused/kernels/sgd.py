"""One SGD step for all weights of several runs, in one kernel.

A network has hundreds of small weights, and torch launches many kernels for them: to convert gradients to float32, to
update weights, to round them for the next pass. Here one kernel finds all of them by a table of addresses. Each program
takes a block of one run of one weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError
from memwrap.fused.kernels.tiling import check_size
from memwrap.nn.gpu import LAUNCH_OPTIONS

_BLOCK = 2048  # elements per program: all at a time, or one per thread at a time where wide loads are not possible
_WARPS = 4
_ALIGNMENT = 16  # bytes, as the widest loads need


@dataclass(frozen=True)
class Gradients:
    """The gradients of one step, as the kernels read them."""

    addresses: Tensor  # (weights,), int64; 0 for None
    held: list[Tensor | None]  # keeps their memory until the kernels have read it


class MultiTensorSGD:
    """SGD with weight decay and, if momentum > 0, Nesterov momentum.

    weights: each (S, ...), float32, dense in memory, one run after the other. leaves: for each weight the tensor that
    has the gradient, the weight itself or its copy in bfloat16, which every step updates.
    """

    def __init__(
        self, weights: Sequence[Tensor], leaves: Sequence[Tensor], momentum: float, weight_decay: float
    ) -> None:
        for weight, leaf in zip(weights, leaves, strict=True):
            _check(weight, leaf, runs=len(weights[0]))
        self._leaves, self._momentum, self._weight_decay = list(leaves), momentum, weight_decay
        # The table has the addresses of these, so they must stay alive.
        self._weights = list(weights)
        self._buffers = [torch.zeros_like(weight) for weight in weights] if momentum > 0 else []
        device = weights[0].device
        self._table = torch.tensor(self._table_rows(), device=device)
        parts = [triton.cdiv(weight[0].numel(), _BLOCK) for weight in weights]
        own = [(number, part) for number, count in enumerate(parts) for part in range(count)]
        self._programs = torch.tensor(own, dtype=torch.int32, device=device)
        # A captured graph has its own table of addresses, independent of eager steps. It is allocated outside the
        # graph's memory pool, which the graph's kernels may overwrite.
        self._addresses, self._captured = (
            torch.zeros(len(weights), dtype=torch.int64, device=device) for _ in range(2)
        )
        self._pending: list[int] | None = None

    def collect(self, gradients: Sequence[Tensor | None]) -> Gradients:
        """Prepare the gradients of the leaves, each (S, ...), for one step. None leaves a weight unchanged.

        While a graph is captured, their addresses are only noted: see `finish_capture`.
        """
        held = [
            None if gradient is None else _match_layout(leaf, gradient)
            for leaf, gradient in zip(self._leaves, gradients, strict=True)
        ]
        found = [0 if gradient is None else gradient.data_ptr() for gradient in held]
        if _capturing(self._captured):
            assert self._pending is None, "a graph has one step: there is one table of addresses"
            self._pending = found
            return Gradients(self._captured, held)
        self._addresses.copy_(torch.tensor(found))
        return Gradients(self._addresses, held)

    def finish_capture(self) -> None:
        """Write the addresses noted during a capture into the graph's table. Only the last graph stays valid."""
        if self._pending is not None:
            self._captured.copy_(torch.tensor(self._pending))
            self._pending = None

    def gradient_norms(self, gradients: Gradients) -> Tensor:
        """The norm of all gradients of each run: (S,)"""
        programs, runs = self._grid
        squares = torch.empty(runs, programs, device=self._table.device)
        _squared_norm[self._grid](self._table, self._programs, gradients.addresses, squares, **_blocks())
        return squares.sum(1).sqrt()

    def step(self, gradients: Gradients, rate: Tensor, scales: Tensor | None = None) -> None:
        """Take one step. rate (). scales (S,): factors for the gradients of each run."""
        _sgd_step[self._grid](
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

    def reset(self) -> None:
        """Set the momentum to zero."""
        for buffer in self._buffers:
            buffer.zero_()

    @property
    def _grid(self) -> tuple[int, int]:
        return len(self._programs), len(self._weights[0])

    def _table_rows(self) -> list[list[int]]:
        """For each weight: the addresses of weight, momentum and copy (0 if missing), and the elements per run."""
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
    """Raise an InputError unless the kernels can address the weight and its leaf."""
    check_size(weight)
    expected = weight.dtype if leaf is weight else torch.bfloat16
    if weight.dtype != torch.float32 or leaf.dtype != expected:
        raise InputError(
            f"a weight in {weight.dtype}, used in {leaf.dtype}; expected float32, used in float32 or bfloat16"
        )
    if len(weight) != runs or not (_is_dense_per_run(weight) and _is_aligned(weight) and _same_layout(weight, leaf)):
        raise InputError(
            f"a weight of shape {tuple(weight.shape)} and strides {weight.stride()}, used as {tuple(leaf.shape)} with "
            f"{leaf.stride()}; expected {runs} runs in the same dense, aligned layout, one run after the other"
        )


def _is_dense_per_run(weight: Tensor) -> bool:
    """Whether the tensor is dense and its runs follow each other in memory."""
    dense = torch.empty_like(weight, device="meta")  # keeps the strides of dense tensors only
    return _strides(dense) == _strides(weight) and (len(weight) == 1 or weight.stride(0) == weight[0].numel())


def _same_layout(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and _strides(one) == _strides(other) and _is_aligned(other)


def _is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % _ALIGNMENT == 0


def _strides(tensor: Tensor) -> list[int]:
    """The strides of all dimensions larger than 1; the others are arbitrary."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _match_layout(leaf: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the leaf's layout: usually the gradient itself, as autograd returns it so."""
    if gradient.dtype == leaf.dtype and _same_layout(leaf, gradient):
        return gradient
    return torch.empty_like(leaf).copy_(gradient)


def _capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


@triton.jit
def _program_block(table, programs, addresses, BLOCK: tl.constexpr):
    """This program's row of the table, the elements per run, the program's first element, the gradient's address."""
    program = programs + 2 * tl.program_id(0)
    weight = tl.load(program)
    row = table + 4 * weight
    return row, tl.load(row + 3).to(tl.int32), tl.load(program + 1) * BLOCK, tl.load(addresses + weight)


@triton.jit
def _offsets(count, first, address, BLOCK: tl.constexpr):
    """Offsets of the elements from `first` on, and which of them exist and have a gradient.

    A thread takes four consecutive elements, in bfloat16 too, so that it has the same elements of all tensors.
    """
    place = first + tl.arange(0, BLOCK)
    return tl.max_contiguous(tl.program_id(1) * count + place, 4), tl.where(address != 0, place < count, False)


@triton.jit
def _pointer(address, DTYPE: tl.constexpr):
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def _load_gradient(address, copy, place, inside):
    """In float32. The gradient is in bfloat16 if there is a copy. A fully masked load is cheaper than a branch."""
    rounded = tl.load(_pointer(address, tl.bfloat16) + place, mask=tl.where(copy != 0, inside, False), other=0.0)
    exact = tl.load(_pointer(address, tl.float32) + place, mask=tl.where(copy != 0, False, inside), other=0.0)
    return rounded.to(tl.float32) + exact


@triton.jit
def _squared_norm_block(row, count, first, address, BLOCK: tl.constexpr):
    place, inside = _offsets(count, first, address, BLOCK)
    gradient = _load_gradient(address, tl.load(row + 2), place, inside)
    return tl.sum(gradient * gradient)


@triton.jit
def _squared_norm(table, programs, addresses, squares, BLOCK: tl.constexpr, NARROW: tl.constexpr):
    """squares (S, programs of a run)"""
    row, count, first, address = _program_block(table, programs, addresses, BLOCK)
    total = 0.0
    if count % 4 == 0:
        total += _squared_norm_block(row, count // 4 * 4, first, address, BLOCK)  # a hint for the compiler: wider loads
    else:
        for narrow in range(first, min(first + BLOCK, count), NARROW):
            total += _squared_norm_block(row, count, narrow, address, NARROW)
    tl.store(squares + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), total)


@triton.jit
def _sgd_step_block(
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
    place, inside = _offsets(count, first, address, BLOCK)
    weights, copy = _pointer(tl.load(row), tl.float32) + place, tl.load(row + 2)
    weight = tl.load(weights, mask=inside, other=0.0)
    change = _load_gradient(address, copy, place, inside) * scale + weight_decay * weight
    if MOMENTUM:
        buffers = _pointer(tl.load(row + 1), tl.float32) + place
        buffer = momentum * tl.load(buffers, mask=inside, other=0.0) + change
        tl.store(buffers, buffer, mask=inside)
        change += momentum * buffer
    weight -= rate * change
    tl.store(weights, weight, mask=inside)
    tl.store(_pointer(copy, tl.bfloat16) + place, weight, mask=tl.where(copy != 0, inside, False))


@triton.jit
def _sgd_step(
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
    row, count, first, address = _program_block(table, programs, addresses, BLOCK)
    scale = 1.0
    if SCALED:
        scale = tl.load(scales + tl.program_id(1))
    rate = tl.load(rate)
    if count % 4 == 0:
        count = count // 4 * 4  # a hint for the compiler: wider loads
        _sgd_step_block(row, count, first, address, rate, scale, momentum, weight_decay, MOMENTUM, BLOCK)
    else:
        for narrow in range(first, min(first + BLOCK, count), NARROW):
            _sgd_step_block(row, count, narrow, address, rate, scale, momentum, weight_decay, MOMENTUM, NARROW)
