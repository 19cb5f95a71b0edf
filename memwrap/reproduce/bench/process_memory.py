"""Free memory of a device, and the peak memory of a task."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def free_bytes(device: torch.device) -> int | None:
    """The memory that is available; None where that is unknown."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return _read_bytes(_MEMINFO, "MemAvailable")


def peak_bytes(device: torch.device, task: Callable[[], object]) -> int | None:
    """The peak memory while a task runs: on a GPU what torch allocated, else the resident set of this process.

    None where that is unknown.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        task()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:  # not Linux, or not allowed
        return None
    task()
    return _read_bytes(_STATUS, "VmHWM")


def _read_bytes(path: Path, name: str) -> int | None:
    """The value of a line such as "VmHWM:  100 kB"."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return None
