"""Our sparsemax beside entmax's."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from memwrap.nn.attention import sparsemax
from memwrap.reproduce.bench.packages import MissingPackageError, taken_from
from memwrap.reproduce.bench.record import Finding, LeftOut, row_of
from memwrap.reproduce.bench.stand import BenchContext, clear
from memwrap.reproduce.bench.timing import Candidate

PART = "attention"
PACKAGE = "entmax"
UNIT = "call"
LENGTH = 512  # of the encodings whose similarities the scores might be

Sparsemax = Callable[[Tensor], Tensor]


def measure(stand: BenchContext) -> Iterator[Finding]:
    """Forward alone, and forward with backward, for few scores and for many."""
    try:
        theirs: Sparsemax = taken_from(PACKAGE, "sparsemax")
    except MissingPackageError as error:
        yield LeftOut(PART, f"sparsemax beside {PACKAGE}'s", str(error))
        return
    for shape in stand.amounts.scores:
        scores = random_scores(shape, stand.device)
        for subject, make in (("forward", _forward), ("forward and backward", _both)):
            base, ours = (
                make(stand, name, function, scores) for name, function in ((PACKAGE, theirs), ("ours", sparsemax))
            )
            for compared in stand.stopwatch.compare(base, [ours], stand.amounts.rounds):
                yield row_of(PART, f"sparsemax of {shape[0]} x {shape[1]:,}, {subject}", None, UNIT, compared)
        clear(stand.device)


def random_scores(shape: tuple[int, int], device: torch.device) -> Tensor:
    """(B, M), spread as the cosine similarities of random directions are."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(shape, generator=generator, device=device).mul_(LENGTH**-0.5)


def _forward(stand: BenchContext, name: str, function: Sparsemax, scores: Tensor) -> Candidate:
    calls = _calls(stand, scores)

    def run() -> None:
        with torch.no_grad():
            for _ in range(calls):
                function(scores)

    return Candidate(name, run, calls, facts=_facts(scores))


def _both(stand: BenchContext, name: str, function: Sparsemax, scores: Tensor) -> Candidate:
    calls = _calls(stand, scores)
    learning, gradient = scores.clone().requires_grad_(), torch.ones_like(scores).cumsum(-1)

    def run() -> None:
        for _ in range(calls):
            learning.grad = None
            torch.autograd.backward(function(learning), gradient)

    return Candidate(name, run, calls, facts=_facts(scores))


def _calls(stand: BenchContext, scores: Tensor) -> int:
    """Many of what takes microseconds."""
    return max(1, stand.amounts.calls_of // scores.numel())


def _facts(scores: Tensor) -> dict[str, float]:
    return {"samples_used": round((sparsemax(scores[:8]) > 0).sum(dim=1).float().mean().item(), 1)}
