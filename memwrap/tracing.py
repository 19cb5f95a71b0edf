"""Whether a value may be looked at now. Reading one ends a trace, breaks a CUDA graph's capture and stalls a GPU."""

import torch
from torch import Tensor


def eager(tensor: Tensor) -> bool:
    """True when nothing is compiled, exported, traced or captured, and `tensor` has values to look at.

    Also for what is no tensor at all: that is to be looked at, and refused.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    if not isinstance(tensor, Tensor):
        return True
    if tensor.is_meta:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
