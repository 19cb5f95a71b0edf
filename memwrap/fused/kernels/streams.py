"""Work that does not fill a GPU by itself, or not to its end, done at the same time as other work."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def at_once(jobs: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """What each job gives. On a GPU, all but the first have a stream of their own, which begins and ends with the
    caller's; the first is done on that itself.

    So what a job allocates is used again by the next job of that stream alone, after all that the caller did with it;
    as long as all callers are on one stream, or on streams that wait for each other.
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
    finally:  # else a failed capture would complain of streams, and not say what failed
        for stream in others:
            current.wait_stream(stream)
    return results


@cache
def _streams(device: torch.device, count: int) -> list["torch.cuda.Stream"]:
    return [torch.cuda.Stream(device) for _ in range(count)]
