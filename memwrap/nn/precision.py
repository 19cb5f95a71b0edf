"""Arithmetic in full precision, whatever is allowed elsewhere: autocast, TF32, bfloat16 products."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_NOTHING = nullcontext()


def to_full_precision(tensor: Tensor) -> Tensor:
    """`tensor` in float32, or as it is when it is wider."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast for the device of `tensor`, if it is on."""
    device = tensor.device.type
    if tensor.is_meta or not torch.is_autocast_enabled(device):
        return _NOTHING
    return torch.autocast(device, enabled=False)


def exact_matmul(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product of float32 or float64, not rounded to TF32 or bfloat16.

    Except in a program of torch.export: that consists of torch's own operators, and runs as its user sets it.
    """
    if torch.compiler.is_dynamo_compiling():
        product: Tensor = _opaque_matmul(left, right)
        return product
    if torch.compiler.is_compiling():
        return left @ right
    with exact_products(left):
        return left @ right


def exact_linear(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`functional.linear` in float32 at least, not rounded to TF32 or bfloat16, whatever autocast says.

    vectors (..., D), weight (K, D), bias (K,) -> (..., K)
    """
    weight = to_full_precision(weight)
    vectors, bias = vectors.to(weight.dtype), None if bias is None else bias.to(weight.dtype)
    with without_autocast(vectors):
        if torch.compiler.is_dynamo_compiling():
            product: Tensor = _opaque_matmul(vectors, weight.mT)
            return product if bias is None else product + bias
        if torch.compiler.is_compiling():
            return functional.linear(vectors, weight, bias)
        with exact_products(vectors):
            return functional.linear(vectors, weight, bias)


class _Switch:
    """One of torch's settings for float32, exact while a thread is inside this context.

    The setting belongs to the process: the first thread to enter saves it, the last one to leave restores it, and what
    other threads compute meanwhile is exact, too.
    """

    def __init__(self, place: Callable[[], Any], exact: tuple[str, ...]) -> None:
        self._place, self._exact = place, exact
        self._lock = threading.Lock()
        self._users = 0
        self._before: str | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1 and (setting := self._place().fp32_precision) not in self._exact:
                self._before, self._place().fp32_precision = setting, "ieee"

    def __exit__(self, *failure: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._before is not None:
                self._place().fp32_precision, self._before = self._before, None


# "none": nothing was set. Then products are exact, while convolutions on GPUs are not.
_PRODUCTS = {
    True: _Switch(lambda: torch.backends.cuda.matmul, exact=("ieee", "none")),
    False: _Switch(lambda: torch.backends.mkldnn.matmul, exact=("ieee", "none")),  # type: ignore[attr-defined]
}
_CONVOLUTIONS = {
    True: _Switch(lambda: torch.backends.cudnn.conv, exact=("ieee",)),  # type: ignore[attr-defined]
    False: _Switch(lambda: torch.backends.mkldnn.conv, exact=("ieee", "none")),  # type: ignore[attr-defined]
}


def exact_products(tensor: Tensor) -> AbstractContextManager[None]:
    """Compute float32 products on the device of `tensor` exactly, in all threads."""
    return _PRODUCTS[tensor.is_cuda]


def exact_convolutions(tensor: Tensor) -> AbstractContextManager[None]:
    """Compute float32 convolutions on the device of `tensor` exactly, in all threads."""
    return _CONVOLUTIONS[tensor.is_cuda]


# torch.compile cannot trace the switch, nor may it fuse the product into a kernel that uses TF32: it sees one opaque
# operator.
@torch.library.custom_op("memwrap::exact_matmul", mutates_args=())
def _opaque_matmul(left: Tensor, right: Tensor) -> Tensor:
    with exact_products(left), without_autocast(left):
        return left @ right


@_opaque_matmul.register_fake
def _matmul_shape(left: Tensor, right: Tensor) -> Tensor:
    return left @ right


def _save_operands(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _matmul_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    left, right = ctx.saved_tensors
    return gradient @ right.mT, left.mT @ gradient


_opaque_matmul.register_autograd(_matmul_gradients, setup_context=_save_operands)
