"""Predictions without some of the memory: against a slow loop over the layer, in parts, after a change of weights."""

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import memwrap.explain.ablation
from memwrap import MemoryWrap, StaleMemoryError
from tests.worlds import asked, drawn

CLOSE = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.float64: {"atol": 1e-12, "rtol": 1e-12}}


def questions(inputs: int, samples: int, removed: int, count: int = 20) -> tuple[Tensor, Tensor]:
    """Random inputs (N,), and for each so many different samples (N, R)."""
    return torch.randint(inputs, (count,)), torch.rand(count, samples).argsort(1)[:, :removed]


def slow(
    layer: MemoryWrap, encodings: Tensor, memory: Tensor, inputs: Tensor, removed: Tensor
) -> tuple[Tensor, Tensor]:
    """One call of the layer for each question."""
    readings = []
    for row, samples in zip(inputs.tolist(), removed, strict=True):
        keep = torch.ones(len(memory), dtype=torch.bool)
        keep[samples] = False
        readings.append(layer.read(encodings[row : row + 1], memory, keep=keep))
    return torch.cat([reading.logits for reading in readings]), torch.cat([reading.weights for reading in readings])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("samples", "prepared"), [(3, True), (60, False), (1100, False)])
@pytest.mark.parametrize("project", [None, 4])
@pytest.mark.parametrize("head", ["mlp", "linear"])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
def test_answers_are_those_of_a_loop_over_the_layer(
    variant: str, head: str, project: int | None, samples: int, prepared: bool, dtype: torch.dtype
) -> None:
    layer, encodings, memory = drawn(0, 5, samples, variant, head, length=6, classes=7, project=project)
    layer, encodings, memory = layer.to(dtype), encodings.to(dtype), memory.to(dtype)
    ablation = asked(layer, encodings, memory)
    # Both ways to the hidden layer: by each sample's part in it, and by the memory vector.
    assert (ablation.memory.prepared.hidden is not None) == prepared
    for removed in (0, 1, 2):
        inputs, sets = questions(5, samples, removed)
        logits, weights = ablation.read(inputs, sets)
        expected_logits, expected_weights = slow(layer, encodings, memory, inputs, sets)
        assert_close(logits, expected_logits, **CLOSE[dtype])
        assert_close(weights, expected_weights, **CLOSE[dtype])
        assert (weights.gather(1, sets) == 0).all()
        assert_close(ablation.logits(inputs, sets), logits, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_agrees_within_its_steps(dtype: torch.dtype) -> None:
    layer, encodings, memory = drawn(0, 5, 3)
    layer, encodings, memory = layer.to(dtype), encodings.to(dtype), memory.to(dtype)
    logits, weights = asked(layer, encodings, memory).read(*(asked_for := questions(5, 3, 1)))
    expected_logits, expected_weights = slow(layer, encodings, memory, *asked_for)
    assert (logits.dtype, weights.dtype) == (dtype, torch.float32)
    assert_close(weights, expected_weights)
    steps = torch.finfo(dtype).eps * expected_logits.abs().max().item()
    assert_close(logits, expected_logits, atol=4 * steps, rtol=0)


def test_all_but_one_sample_can_be_removed() -> None:
    layer, encodings, memory = drawn(0, 2, 5)
    logits, weights = asked(layer, encodings, memory).read(torch.tensor([1]), torch.tensor([[4, 0, 3, 1]]))
    assert weights.tolist() == [[0, 0, 1, 0, 0]]
    assert_close(logits, layer(encodings[1:], memory[2:3]))


@pytest.mark.parametrize("numbers", [1, 130, 1 << 20])
def test_parts_make_the_whole(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, encodings, memory = drawn(0, 5, 20)
    ablation, asked_for = asked(layer, encodings, memory), questions(5, 20, 2)
    expected = ablation.read(*asked_for)
    monkeypatch.setattr(memwrap.explain.ablation, "NUMBERS_AT_ONCE", numbers)
    assert ablation.at_once == {1: 1, 130: 6, 1 << 20: 52428}[numbers]  # 20 samples, 12 hidden units
    for ours, theirs in zip(ablation.read(*asked_for), expected, strict=True):
        assert_close(ours, theirs)
    assert_close(ablation.logits(*asked_for), expected[0])


def test_the_wider_of_memory_and_hidden_layer_bounds_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memwrap.explain.ablation, "NUMBERS_AT_ONCE", 240)
    layer, encodings, memory = drawn(0, 5, 3)
    assert asked(layer, encodings, memory).at_once == 20


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
@pytest.mark.parametrize("project", [None, 2])
def test_a_memory_of_these_samples_only(variant: str, project: int | None) -> None:
    layer, encodings, memory = drawn(0, 4, 9, variant, project=project)
    logits = asked(layer, encodings, memory).logits_with_only(2, torch.tensor([7, 0, 3]))
    assert_close(logits, layer(encodings[2:3], memory[[7, 0, 3]])[0])


@pytest.mark.parametrize(("samples", "prepared"), [(5, True), (60, False)])
@pytest.mark.parametrize("project", [None, 4])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
def test_shares_the_own_part_and_the_bias_sum_to_the_logits(
    variant: str, project: int | None, samples: int, prepared: bool
) -> None:
    layer, encodings, memory = drawn(0, 4, samples, variant, "linear", length=6, classes=7, project=project)
    ablation, reading = asked(layer, encodings, memory), layer.read(encodings, memory)
    assert (ablation.memory.prepared.hidden is not None) == prepared
    vectors = encodings if project is None else layer.projection(encodings)
    width, weight = vectors.shape[1], layer.head.first.weight
    for row in range(4):
        used = reading.weights[row].nonzero().squeeze(1)
        shares = ablation.shares(used, reading.weights[row, used])
        assert shares.shape == (len(used), 7)
        own = weight[:, :width] @ vectors[row] if variant == "memory_wrap" else 0
        assert_close(shares.sum(0) + own + layer.head.first.bias, reading.logits[row])


def test_each_share_belongs_to_its_sample() -> None:
    layer, encodings, memory = drawn(0, 1, 5, "only_memory", "linear")
    shares = asked(layer, encodings, memory).shares(torch.tensor([3, 1]), torch.tensor([0.25, 0.5]).double())
    expected = torch.stack([0.25 * layer.head.first.weight @ memory[3], 0.5 * layer.head.first.weight @ memory[1]])
    assert_close(shares, expected)


def write_to(parameter: str) -> Callable[[MemoryWrap], object]:
    return lambda layer: nn.init.ones_(layer.get_parameter(parameter))


CHANGES = {
    "head": write_to("head.first.weight"),
    "bias": write_to("head.first.bias"),
    "projection": write_to("projection.weight"),
    "exchanged": lambda layer: setattr(layer, "head", copy.deepcopy(layer.head)),
    "cast": lambda layer: layer.float(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_has_changed_is_refused(change: str) -> None:
    layer, encodings, memory = drawn(0, 2, 5, "memory_wrap", "linear", project=2)
    ablation, one = asked(layer, encodings, memory), torch.tensor([1])
    uses = [
        lambda: ablation.read(one, one.unsqueeze(1)),
        lambda: ablation.logits(one, one.unsqueeze(1)),
        lambda: ablation.logits_with_only(0, one),
        lambda: ablation.shares(one, torch.ones(1)),
    ]
    for use in uses:
        use()
    CHANGES[change](layer)
    message = "the model has changed or moved since this explanation was made; explain the images again"
    for use in uses:
        with pytest.raises(StaleMemoryError, match=f"^{re.escape(message)}$"):
            use()


def test_what_changes_nothing_is_allowed() -> None:
    layer, encodings, memory = drawn(0, 2, 5)
    ablation = asked(layer, encodings, memory)
    layer.train().requires_grad_(False)
    layer.double()
    layer(encodings, memory)
    ablation.logits_with_only(0, torch.tensor([1]))


def test_autocast_changes_no_answer() -> None:
    layer, encodings, memory = drawn(0, 4, 30, "memory_wrap", "linear", length=40)
    layer, encodings, memory = layer.float(), encodings.float(), memory.float()
    exact, rounded = [], []
    for answers in (exact, rounded):
        ablation, inputs = asked(layer, encodings, memory), torch.arange(4)  # anew, as it keeps what it has computed
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=answers is rounded):
            answers.extend(ablation.read(inputs, inputs.unsqueeze(1)))
            answers.append(ablation.logits_with_only(1, inputs))
            answers.append(ablation.shares(inputs, torch.ones(4)))
    for ours, theirs in zip(rounded, exact, strict=True):
        assert ours.dtype == torch.float32
        assert_close(ours, theirs, atol=0, rtol=0)


def test_answers_carry_no_graph_and_leave_the_gradient_mode() -> None:
    layer, encodings, memory = drawn(0, 2, 5, "only_memory", "linear")
    ablation, one = asked(layer, encodings, memory), torch.tensor([1])
    with torch.enable_grad():
        answers = [
            *ablation.read(one, one.unsqueeze(1)),
            ablation.logits(one, one.unsqueeze(1)),
            ablation.logits_with_only(0, one),
            ablation.shares(one, torch.ones(1)),
        ]
        assert torch.is_grad_enabled()
    assert not any(answer.requires_grad for answer in answers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("project", [None, 64])
def test_tf32_changes_no_answer_on_a_gpu(project: int | None) -> None:
    layer, encodings, memory = drawn(0, 8, 50, "memory_wrap", "linear", length=256, classes=10, project=project)
    inputs = torch.arange(8)
    exact = asked(layer, encodings, memory).read(inputs, inputs.unsqueeze(1))
    layer, encodings, memory = layer.float().cuda(), encodings.float().cuda(), memory.float().cuda()
    inputs, before = inputs.cuda(), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        ablation = asked(layer, encodings, memory)
        logits, weights = ablation.read(inputs, inputs.unsqueeze(1))
        used = weights[0].nonzero().squeeze(1)
        only = ablation.logits_with_only(0, used)
    finally:
        torch.set_float32_matmul_precision(before)
    assert_close(weights.cpu().double(), exact[1], atol=1e-6, rtol=0)
    scale = float(exact[0].abs().max())
    assert_close(logits.cpu().double(), exact[0], atol=1e-5 * scale, rtol=0)
    assert_close(only, logits[0], atol=1e-5 * scale, rtol=0)
