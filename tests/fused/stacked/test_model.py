"""Optimizer steps of stacked runs, by the kernel against torch."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from memwrap.fused.stacked.model import StackedModel
from memwrap.fused.stacked.optimizer import StackedSGD
from tests.training.toys import toy_model
from tests.with_kernels import DEVICE, INTERPRETED, needs_triton

RUNS = 2
RATES = (0.1, 0.05, 0.02)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, as only those capture graphs")


class Stepping:
    """A stacked model of different runs, and its optimizer. Losses are products, so `factors` are the gradients."""

    def __init__(self, kernels: bool, precision: torch.dtype, momentum: float = 0.9, clip: float = 0.0) -> None:
        self.stack = StackedModel(toy_model().to(DEVICE), RUNS, precision, kernels)
        self.rate = torch.zeros((), device=DEVICE)
        self.optimizer = StackedSGD(self.stack, self.rate, momentum, 0.01, clip)
        self.factors = {name: torch.zeros_like(leaf) for name, leaf in self.stack.leaves.items()}
        self.start()

    def start(self) -> None:
        self.stack.load([toy_model(seed=seed).to(DEVICE) for seed in range(RUNS)])
        self.optimizer.reset()

    def draw(self, number: int) -> None:
        """Draw rate and gradients of a step. Gradients differ in norm between runs."""
        self.rate.fill_(RATES[number])
        generator = torch.Generator().manual_seed(number)
        for factor in self.factors.values():
            drawn = torch.randn(factor.shape, generator=generator)
            factor.copy_(torch.cat([drawn[:1] / 50, drawn[1:]]))

    def step(self) -> None:
        self.optimizer.zero_grad()
        used = list(self.stack.leaves)[1:]
        products = [(self.stack.leaves[name] * self.factors[name]).sum(dtype=torch.float32) for name in used]
        torch.autograd.backward(torch.stack(products).sum())
        self.optimizer.step()


def check_same(one: StackedModel, other: StackedModel) -> None:
    for name, weight in one.weights.items():
        assert_close(weight, other.weights[name], rtol=1e-5, atol=2e-6)
        check_copy(one.leaves[name], weight)


def check_copy(leaf: Tensor, weight: Tensor) -> None:
    if INTERPRETED:  # it truncates
        assert_close(leaf.float(), weight, rtol=torch.finfo(leaf.dtype).eps, atol=0)
    else:
        assert leaf.equal(weight.to(leaf.dtype))


@needs_triton
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_kernel_steps_as_torch(momentum: float, clip: float, precision: torch.dtype) -> None:
    """Also after another run was trained."""
    by_kernel, by_torch = (Stepping(kernels, precision, momentum, clip) for kernels in (True, False))
    by_kernel.draw(2)
    by_kernel.step()
    by_kernel.start()
    for number in range(len(RATES)):
        for each in (by_kernel, by_torch):
            each.draw(number)
            each.step()
        check_same(by_kernel.stack, by_torch.stack)


@needs_gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_graph_steps_as_eager_mode(clip: float, precision: torch.dtype) -> None:
    captured, eager = (Stepping(True, precision, clip=clip) for _ in range(2))
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        captured.step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    captured.optimizer.finish_capture()
    captured.start()
    for number in range(len(RATES)):
        captured.draw(number)
        graph.replay()
        eager.draw(number)
        eager.step()
        for name, weight in eager.stack.weights.items():
            assert weight.equal(captured.stack.weights[name]), name
            assert eager.stack.leaves[name].equal(captured.stack.leaves[name]), name
