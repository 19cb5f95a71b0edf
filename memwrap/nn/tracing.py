"""Whether values may be read now. Reading one ends a trace, breaks the capture of a CUDA graph and stalls a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

_state = local()


@contextmanager
def checks_disabled() -> Iterator[None]:
    """Disable the checks of each call; the caller validates once, before and after."""
    before, _state.disabled = getattr(_state, "disabled", False), True
    try:
        yield
    finally:
        _state.disabled = before


def checks_enabled(tensor: Tensor) -> bool:
    """Whether `tensor` has values that may be read now.

    False while something is compiled, exported, traced or captured, inside torch.func's transforms, and inside
    `checks_disabled`. True for what is not a tensor, so that a check can refuse it.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    if getattr(_state, "disabled", False) or peek_interpreter_stack() is not None:
        return False
    if not isinstance(tensor, Tensor):
        return True
    if tensor.is_meta:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
