"""How much memory there is, and how much of it something takes."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


def free_bytes(device: torch.device) -> int | None:
    """What can still be taken; None where nobody says."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return _kilobytes(_MEMINFO, "MemAvailable")


def peak_bytes(device: torch.device, task: Callable[[], object]) -> int | None:
    """The most that is in use while a task runs: of a GPU what torch has given out, else this process's resident set.

    None where it cannot be had.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        task()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    try:
        _CLEAR.write_text(_FORGET_PEAK)
    except OSError:  # not Linux, or not allowed
        return None
    task()
    return _kilobytes(_STATUS, "VmHWM")


def _kilobytes(path: Path, name: str) -> int | None:
    """A line of Linux's, such as "VmHWM:  100 kB", in bytes."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return None
