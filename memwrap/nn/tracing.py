"""Whether a value may be looked at now. Reading one ends a trace, breaks a CUDA graph's capture and stalls a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from torch import Tensor

_switch = local()


@contextmanager
def checks_disabled() -> Iterator[None]:
    """Here nothing is looked at before all is done: whoever enters checks what goes in and what comes out, once."""
    before, _switch.off = getattr(_switch, "off", False), True
    try:
        yield
    finally:
        _switch.off = before


def checks_enabled(tensor: Tensor) -> bool:
    """Whether `tensor` has values that may be read now: nothing is compiled, exported, traced, captured or disabled.

    Also for what is no tensor at all: that is to be looked at, and refused.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    if getattr(_switch, "off", False):
        return False
    if not isinstance(tensor, Tensor):
        return True
    if tensor.is_meta:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
