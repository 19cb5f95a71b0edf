"""The cost of a memory on this CPU, as ratios of times measured in turn in one run.

    python benchmarks/layer.py                # about four minutes on two cores
    python benchmarks/layer.py --rounds 100   # steadier

Below one is faster. Each ratio is the median over rounds of (one / other), both timed right after one another in random
order, so that a machine that slows down slows both.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import memorywrap
import torch

import memwrap

LAYER_SHAPES = ((128, 100, 1280), (64, 5000, 512))  # inputs, memory samples, length of an encoding
ENCODERS = ("resnet18", "mobilenet_v2")
BATCHES = (1, 32, 500)
CLASSES = 10
MEMORY_SIZE = 100


def ratio(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """The median of one's time over other's, and the quartiles of that."""
    seconds: dict[Callable[[], object], float] = {}
    ratios = []
    for _ in range(rounds + 1):
        for task in random.sample([one, other], 2):
            start = time.perf_counter()
            task()
            seconds[task] = time.perf_counter() - start
        ratios.append(seconds[one] / seconds[other])
    lower, median, upper = statistics.quantiles(ratios[1:], n=4)  # the first round warms up
    return median, lower, upper


def report(what: str, measured: tuple[float, float, float]) -> None:
    median, lower, upper = measured
    print(f"{what:<62} {median:6.3f}   ({lower:.3f} to {upper:.3f})", flush=True)


def layer_against_published(rounds: int) -> None:
    print("our layer / memorywrap's: median (quartiles)")
    for inputs, samples, length in LAYER_SHAPES:
        encodings = torch.randn(inputs, length, requires_grad=True)
        memory = torch.randn(samples, length, requires_grad=True)
        ours = memwrap.MemoryWrap(length, CLASSES)
        published = memorywrap.MemoryWrapLayer(length, CLASSES)

        def forward(layer: torch.nn.Module, encodings: torch.Tensor = encodings, memory: torch.Tensor = memory) -> None:
            with torch.no_grad():
                layer(encodings, memory)

        def both(layer: torch.nn.Module, encodings: torch.Tensor = encodings, memory: torch.Tensor = memory) -> None:
            layer(encodings, memory).sum().backward()

        for name, task in (("forward", forward), ("forward and backward", both)):
            measured = ratio(lambda t=task, o=ours: t(o), lambda t=task, p=published: t(p), rounds)
            report(f"  {inputs} x {samples} x {length}, {name}", measured)


def wrapped_against_plain(rounds: int) -> None:
    print(f"wrapped model with {MEMORY_SIZE} remembered samples / plain classifier, 32x32 images: median (quartiles)")
    for name in ENCODERS:
        classifier = memwrap.encoders.create(name, CLASSES).eval()
        model = memwrap.wrap(classifier).eval()
        model.remember(torch.randn(MEMORY_SIZE, 3, 32, 32), torch.arange(MEMORY_SIZE) % CLASSES)
        for batch in BATCHES:
            images = torch.randn(batch, 3, 32, 32)
            with torch.inference_mode():
                measured = ratio(
                    lambda i=images, m=model: m(i),
                    lambda i=images, c=classifier: c(i),
                    # Small batches take milliseconds and scatter more, large ones seconds.
                    rounds=max(4, int(rounds * {1: 10, 32: 1, 500: 0.2}[batch])),
                )
            report(f"  {name}, batch {batch}", measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="how often each pair is timed")
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    random.seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    layer_against_published(rounds)
    wrapped_against_plain(rounds)


if __name__ == "__main__":
    main()
