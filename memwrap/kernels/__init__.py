"""Kernels for GPUs, written in Triton: what torch's own leave of the time of small encoders and memories."""

from functools import cache
from importlib.util import find_spec

import torch

_OLDEST = (8, 0)  # compute capability: what has bfloat16


@cache
def usable_on(device: torch.device) -> bool:
    """Whether they run there. Not every torch comes with Triton."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= _OLDEST
