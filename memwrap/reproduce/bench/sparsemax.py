"""Times our sparsemax against entmax's."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from memwrap.nn.attention import sparsemax
from memwrap.reproduce.bench.context import BenchContext, clear
from memwrap.reproduce.bench.packages import MissingPackageError, import_from
from memwrap.reproduce.bench.record import Finding, Skipped, make_measurement
from memwrap.reproduce.bench.timing import Candidate

PART = "attention"
PACKAGE = "entmax"
UNIT = "call"
LENGTH = 512  # of the encodings that the scores imitate

Sparsemax = Callable[[Tensor], Tensor]


def measure(context: BenchContext) -> Iterator[Finding]:
    """Forward alone, and forward with backward, for few scores and for many."""
    try:
        theirs: Sparsemax = import_from(PACKAGE, "sparsemax")
    except MissingPackageError as error:
        yield Skipped(PART, f"sparsemax versus {PACKAGE}'s", str(error))
        return
    for shape in context.sizes.scores:
        scores = random_scores(shape, context.device)
        for subject, make in (("forward", _forward), ("forward and backward", _forward_backward)):
            base, ours = (make(context, *each, scores) for each in ((PACKAGE, theirs), ("ours", sparsemax)))
            for timing in context.stopwatch.compare(base, [ours], context.sizes.rounds):
                yield make_measurement(PART, f"sparsemax of {shape[0]} x {shape[1]:,}, {subject}", None, UNIT, timing)
        clear(context.device)


def random_scores(shape: tuple[int, int], device: torch.device) -> Tensor:
    """(B, M), distributed as the cosine similarities of random directions."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(shape, generator=generator, device=device).mul_(LENGTH**-0.5)


def _forward(context: BenchContext, name: str, function: Sparsemax, scores: Tensor) -> Candidate:
    calls = _calls(context, scores)

    def run() -> None:
        with torch.no_grad():
            for _ in range(calls):
                function(scores)

    return Candidate(name, run, calls, facts=_facts(scores))


def _forward_backward(context: BenchContext, name: str, function: Sparsemax, scores: Tensor) -> Candidate:
    calls = _calls(context, scores)
    leaf, gradient = scores.clone().requires_grad_(), torch.ones_like(scores).cumsum(-1)

    def run() -> None:
        for _ in range(calls):
            leaf.grad = None
            torch.autograd.backward(function(leaf), gradient)

    return Candidate(name, run, calls, facts=_facts(scores))


def _calls(context: BenchContext, scores: Tensor) -> int:
    """More calls in a turn the quicker they are."""
    return max(1, context.sizes.calls_of // scores.numel())


def _facts(scores: Tensor) -> dict[str, float]:
    return {"samples_used": round((sparsemax(scores[:8]) > 0).sum(dim=1).float().mean().item(), 1)}
