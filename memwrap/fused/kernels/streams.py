"""Run small independent operations concurrently, on several CUDA streams."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def run_concurrently(jobs: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """Call all jobs and return their results. On a GPU, each job after the first has its own stream.

    These streams start after the caller's stream and are joined to it at the end. Memory that a job allocates is reused
    only by later jobs of the same stream, which run after the caller has used it, as long as all callers share one
    stream or wait for each other's.
    """
    if device.type != "cuda" or len(jobs) == 1:
        return [job() for job in jobs]
    current, others = torch.cuda.current_stream(device), _streams(device, len(jobs) - 1)
    for stream in others:
        stream.wait_stream(current)
    try:
        results = [jobs[0]()]
        for job, stream in zip(jobs[1:], others, strict=True):
            with torch.cuda.stream(stream):
                results.append(job())
    finally:  # otherwise a failed capture reports streams that were not joined, instead of its cause
        for stream in others:
            current.wait_stream(stream)
    return results


@cache
def _streams(device: torch.device, count: int) -> list["torch.cuda.Stream"]:
    return [torch.cuda.Stream(device) for _ in range(count)]
