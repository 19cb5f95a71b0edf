"""SGD steps by one kernel against torch's SGD in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from memwrap import InputError
from tests.with_kernels import DEVICE, INTERPRETED, needs_triton

RUNS, STEPS = 2, 3
BLOCK = 128  # elements per program in most tests: the interpreter is slow
# Of one run.
SHAPES = [
    (8, 4, 3, 3),
    (6, 5, 1, 1),  # 30 elements: no wide loads
    (10, 12),
    (10,),
    (64,),
    (BLOCK,),
    (BLOCK + 4,),
    (2 * BLOCK + 5,),  # three programs, without wide loads
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, as only those capture graphs")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from memwrap.fused.kernels import sgd

    monkeypatch.setattr(sgd, "_BLOCK", BLOCK)
    monkeypatch.setattr(sgd, "_WARPS", 1)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@dataclass
class Weights:
    """Stacked weights in the layout of a stacked model, and for each run a copy in float64 with torch's optimizer."""

    weights: list[Tensor]
    leaves: list[Tensor]
    exact: list[list[nn.Parameter]]
    optimizers: list[torch.optim.SGD]
    rate: Tensor

    @classmethod
    def drawn(
        cls, momentum: float, weight_decay: float, rounded: bool, shapes: Sequence[tuple[int, ...]] = SHAPES
    ) -> "Weights":
        """rounded: every other weight is used in bfloat16."""
        from memwrap.fused.stacked.model import stack_value

        weights = [stack_value(numbers(*shape), RUNS) for shape in shapes]
        for number, weight in enumerate(weights):
            weight.copy_(numbers(*weight.shape, seed=number))
        leaves = [
            weight.to(torch.bfloat16) if rounded and number % 2 == 0 else weight
            for number, weight in enumerate(weights)
        ]
        exact = [[nn.Parameter(weight[run].double().cpu()) for weight in weights] for run in range(RUNS)]
        optimizers = [
            torch.optim.SGD(own, 0.0, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0)
            for own in exact
        ]
        return cls(weights, leaves, exact, optimizers, torch.zeros((), device=DEVICE))

    def gradients(self, seed: int) -> list[Tensor | None]:
        """As autograd gives them; the later a run, the longer."""
        longer = torch.arange(1, RUNS + 1, device=DEVICE)
        return [
            torch.empty_like(leaf).copy_(
                numbers(*leaf.shape, seed=100 * seed + number) * longer.reshape(-1, *[1] * (leaf.ndim - 1))
            )
            for number, leaf in enumerate(self.leaves)
        ]

    def step_exactly(self, gradients: Sequence[Tensor | None], rate: float, clip: float = 0.0) -> None:
        self.rate.fill_(rate)
        for run, (own, optimizer) in enumerate(zip(self.exact, self.optimizers, strict=True)):
            for parameter, gradient in zip(own, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient[run].double().cpu()
            if clip > 0:
                nn.utils.clip_grad_norm_(own, clip)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()

    def check(self) -> None:
        for number, (weight, leaf) in enumerate(zip(self.weights, self.leaves, strict=True)):
            exact = torch.stack([own[number].detach() for own in self.exact])
            assert_close(weight.double().cpu(), exact, rtol=1e-5, atol=2e-6)
            if leaf is not weight and INTERPRETED:  # it truncates
                assert_close(leaf.float(), weight, rtol=torch.finfo(leaf.dtype).eps, atol=0)
            elif leaf is not weight:
                assert leaf.equal(weight.to(leaf.dtype))


@needs_triton
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("momentum", "weight_decay", "clip", "rounded"),
    [(0.0, 0.0, 0.0, False), (0.0, 0.05, 45.0, True), (0.9, 0.0, 45.0, False), (0.9, 0.05, 0.0, True)],
)
def test_steps_equal_those_of_torch(momentum: float, weight_decay: float, clip: float, rounded: bool) -> None:
    from memwrap.fused.kernels.sgd import MultiTensorSGD

    drawn = Weights.drawn(momentum, weight_decay, rounded)
    update = MultiTensorSGD(drawn.weights, drawn.leaves, momentum, weight_decay)
    for step in range(STEPS):
        given = drawn.gradients(step)
        if step == 1:
            given[2] = given[5] = None  # after steps with one
        if step < 2:
            given[6] = None
        drawn.step_exactly(given, 0.1 / (step + 1), clip)
        gradients = update.collect(given)
        if clip > 0:
            scales = (clip / update.gradient_norms(gradients)).clamp(max=1.0)
            assert (scales < 1).tolist() == [False, True]
            update.step(gradients, drawn.rate, scales)
        else:
            update.step(gradients, drawn.rate)
        drawn.check()


@needs_triton
@pytest.mark.parametrize("rounded", [False, True], ids=["exact", "rounded"])
def test_programs_share_large_weights(rounded: bool) -> None:
    """With the real block size."""
    from memwrap.fused.kernels.sgd import _BLOCK, MultiTensorSGD

    drawn = Weights.drawn(0.9, 0.05, rounded, [(2 * _BLOCK,), (8, _BLOCK // 8 + 1), (_BLOCK + 1,)])
    update = MultiTensorSGD(drawn.weights, drawn.leaves, 0.9, 0.05)
    assert update._grid == (2 + 2 + 2, RUNS)
    given = drawn.gradients(0)
    drawn.step_exactly(given, 0.1)
    update.step(update.collect(given), drawn.rate)
    drawn.check()


@needs_triton
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("rounded", [False, True], ids=["exact", "rounded"])
def test_norms_are_of_all_gradients_of_a_run(rounded: bool) -> None:
    from memwrap.fused.kernels.sgd import MultiTensorSGD

    drawn = Weights.drawn(0.0, 0.0, rounded)
    given = drawn.gradients(0)
    given[0] = None
    update = MultiTensorSGD(drawn.weights, drawn.leaves, 0.0, 0.0)
    exact = torch.stack([gradient.double().flatten(1).norm(dim=1) for gradient in given[1:]]).norm(dim=0)
    assert_close(update.gradient_norms(update.collect(given)).double(), exact, rtol=1e-6, atol=0)


@needs_triton
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("rounded", [False, True], ids=["exact", "rounded"])
@pytest.mark.parametrize("way", ["in another order", "at an odd address", "as one number", "in another dtype"])
def test_gradients_may_have_another_layout(way: str, rounded: bool) -> None:
    from memwrap.fused.kernels.sgd import MultiTensorSGD

    def laid(gradient: Tensor) -> Tensor:
        if way == "in another order":
            return gradient.mT.contiguous().mT if gradient.is_contiguous() else gradient.contiguous()
        if way == "at an odd address":
            beside = torch.empty(gradient.numel() + 1, dtype=gradient.dtype, device=DEVICE)
            return beside[1:].as_strided(gradient.shape, gradient.stride()).copy_(gradient)
        if way == "as one number":
            return gradient.flatten()[0].expand(gradient.shape)
        return gradient.double()

    drawn = Weights.drawn(0.9, 0.0, rounded)
    update = MultiTensorSGD(drawn.weights, drawn.leaves, 0.9, 0.0)
    for step in range(1):
        given = [laid(gradient) for gradient in drawn.gradients(step)]
        drawn.step_exactly(given, 0.1)
        gradients = update.collect(given)
        assert all(each.data_ptr() % 16 == 0 for each in gradients.held), "only a GPU needs the alignment"
        update.step(gradients, drawn.rate)
        drawn.check()


@needs_triton
def test_gradients_in_the_layout_of_their_leaves_are_not_copied() -> None:
    """Strides of dimensions of size 1 do not count."""
    from memwrap.fused.kernels.sgd import MultiTensorSGD

    pointwise = numbers(RUNS, 1, 1, 8, 4).permute(0, 3, 4, 1, 2)
    in_order, others = numbers(RUNS, 8, 4, 1, 1, seed=1), numbers(RUNS, 4, 8, seed=2)
    assert pointwise.stride() != in_order.stride()
    update = MultiTensorSGD([pointwise, others], [pointwise, others], 0.0, 0.0)
    held = update.collect([in_order, others.mT.contiguous().mT]).held
    assert held[0] is in_order
    assert held[1] is not None
    assert held[1].stride() == others.stride()


@needs_triton
@pytest.mark.parametrize("count", [4, 10, 100])
def test_nothing_outside_the_weights_is_written(count: int) -> None:
    from memwrap.fused.kernels.sgd import MultiTensorSGD

    beside = 64

    def within(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        whole = torch.ones(2 * beside + RUNS * count, dtype=dtype, device=DEVICE)
        return whole, whole[beside:-beside].view(RUNS, count)

    (all_weights, weight), (all_copies, leaf) = within(torch.float32), within(torch.bfloat16)
    update = MultiTensorSGD([weight], [leaf], 0.9, 0.0)
    update.step(update.collect([torch.ones_like(leaf)]), torch.ones((), device=DEVICE))
    for whole in (all_weights, all_copies):
        assert (whole == 1).nonzero().flatten().tolist() == [
            place for place in range(len(whole)) if not beside <= place < len(whole) - beside
        ]


@needs_triton
@pytest.mark.usefixtures("small_blocks")
def test_reset_clears_the_momentum() -> None:
    from memwrap.fused.kernels.sgd import MultiTensorSGD

    fresh, used = (Weights.drawn(0.9, 0.0, True) for _ in range(2))
    updates = [MultiTensorSGD(each.weights, each.leaves, 0.9, 0.0) for each in (fresh, used)]
    updates[1].step(updates[1].collect(used.gradients(1)), torch.ones((), device=DEVICE))
    updates[1].reset()
    for one, other in zip(fresh.weights, used.weights, strict=True):
        other.copy_(one)
    for each, update in zip((fresh, used), updates, strict=True):
        update.step(update.collect(each.gradients(0)), torch.ones((), device=DEVICE))
    for one, other in zip(fresh.weights, used.weights, strict=True):
        assert one.equal(other)


@needs_triton
@pytest.mark.parametrize(
    ("weight", "leaf", "reported"),
    [
        (torch.zeros(2, 3, 4).double(), None, "a weight in torch.float64"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4).half(), "used in torch.float16"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), "used in torch.float32"),
        (torch.zeros(3, 2, 4).transpose(0, 1), None, "expected 2 runs"),
        (torch.zeros(2, 3, 5)[:, :, :4], None, "dense"),
        (torch.zeros(2, 1, 4).expand(2, 3, 4), None, "dense"),
        (torch.zeros(25)[1:].view(2, 3, 4), None, "aligned"),
        (torch.zeros(25)[1:].view(2, 3, 4), torch.zeros(2, 3, 4).bfloat16(), "aligned"),
        (torch.zeros(2, 3, 4), torch.zeros(25).bfloat16()[1:].view(2, 3, 4), "aligned"),
        (torch.zeros(3, 4), None, "expected 2 runs"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 4, 3).bfloat16().mT, "same dense"),
    ],
)
def test_unsupported_weights_are_refused(weight: Tensor, leaf: Tensor | None, reported: str) -> None:
    from memwrap.fused.kernels.sgd import MultiTensorSGD

    good = torch.zeros(2, 3)
    with pytest.raises(InputError, match=reported):
        MultiTensorSGD([good, weight], [good, weight if leaf is None else leaf], 0.9, 0.0)


@needs_triton
@pytest.mark.usefixtures("small_blocks")
def test_a_graph_has_its_own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated capture: steps run immediately, but see no gradients before `finish_capture`."""
    from memwrap.fused.kernels import sgd

    drawn = Weights.drawn(0.9, 0.0, True)
    update = sgd.MultiTensorSGD(drawn.weights, drawn.leaves, 0.9, 0.0)
    captured, before = drawn.gradients(0), [weight.clone() for weight in drawn.weights]
    monkeypatch.setattr(sgd, "_capturing", lambda _: True)
    gradients = update.collect(captured)
    update.step(gradients, drawn.rate.fill_(0.1))
    assert all(one.equal(other) for one, other in zip(before, drawn.weights, strict=True))
    with pytest.raises(AssertionError, match="a graph has one step"):
        update.collect(captured)
    update.finish_capture()
    monkeypatch.setattr(sgd, "_capturing", lambda _: False)
    for step in range(2):
        beside = drawn.gradients(step + 1)  # an eager step between replays
        drawn.step_exactly(beside, 0.1)
        update.step(update.collect(beside), drawn.rate)
        drawn.step_exactly(captured, 0.1)
        update.step(gradients, drawn.rate)
        drawn.check()


@needs_gpu
@pytest.mark.parametrize("clip", [0.0, 45.0])
def test_a_captured_step_is_taken_in_every_replay(clip: float) -> None:
    """The graph computes the gradients in its own memory pool, where other tensors are freed."""
    from memwrap.fused.kernels.sgd import MultiTensorSGD

    drawn = Weights.drawn(0.9, 0.01, True)
    update = MultiTensorSGD(drawn.weights, drawn.leaves, 0.9, 0.01)
    sources = [gradient.clone() for gradient in drawn.gradients(0)]
    before = [tensor.clone() for tensor in (*drawn.weights, *drawn.leaves)]

    def step() -> None:
        given = [(source.float() * 2).to(source.dtype) / 2 for source in sources]
        given[0] = given[0].mT.contiguous().mT  # another layout: copied in the graph
        given[6] = None
        gradients = update.collect(given)
        update.step(
            gradients, drawn.rate, (clip / update.gradient_norms(gradients)).clamp(max=1.0) if clip > 0 else None
        )

    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    update.finish_capture()
    update.reset()
    for tensor, value in zip((*drawn.weights, *drawn.leaves), before, strict=True):
        tensor.copy_(value)
    for number in range(STEPS):
        given = drawn.gradients(number)
        for source, gradient in zip(sources, given, strict=True):
            source.copy_(gradient)
        given[6] = None
        drawn.step_exactly(given, 0.1 / (number + 1), clip)
        graph.replay()
        drawn.check()
