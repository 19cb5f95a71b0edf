"""Work of several runs that is too small to fill a GPU, done at the same time."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def at_once(jobs: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """What each job gives. On a GPU, each has a stream of its own, which begins and ends with the caller's.

    So what a job allocates is used again by the next job of that stream alone, after all that the caller did with it;
    as long as all callers are on one stream, or on streams that wait for each other.
    """
    if device.type != "cuda" or len(jobs) == 1:
        return [job() for job in jobs]
    current, results, begun = torch.cuda.current_stream(device), [], []
    try:
        for job, stream in zip(jobs, _streams(device, len(jobs)), strict=True):
            stream.wait_stream(current)
            begun.append(stream)
            with torch.cuda.stream(stream):
                results.append(job())
    finally:  # else a failed capture would complain of streams, and not say what failed
        for stream in begun:
            current.wait_stream(stream)
    return results


@cache
def _streams(device: torch.device, count: int) -> list["torch.cuda.Stream"]:
    return [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]
