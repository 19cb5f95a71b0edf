"""Whether this package's Triton kernels run on a device, and how they are launched."""

from functools import cache
from importlib.util import find_spec

import torch

_LOWEST_CAPABILITY = (8, 0)  # the first with bfloat16

# For each launch: fuse products and sums, Triton's own default. Left out, Triton warns that the default may change.
LAUNCH_OPTIONS = {"enable_fp_fusion": True}


@cache
def kernels_run_on(device: torch.device) -> bool:
    """Whether the kernels run on `device`. Not every torch comes with Triton."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= _LOWEST_CAPABILITY
