"""The layer against the published package, hand-worked cases, and what it refuses."""

import math
import re
from collections.abc import Callable
from random import Random

import memorywrap
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import memwrap
from memwrap import InputError, MemoryWrap, NonFiniteError
from memwrap.nn import checks
from memwrap.nn import reading as layer_module
from memwrap.nn.layer import HEADS, VARIANTS
from memwrap.nn.similarity import CosineSimilarity

PUBLISHED = {"memory_wrap": memorywrap.MemoryWrapLayer, "only_memory": memorywrap.BaselineMemory}
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


def published_twin(layer: MemoryWrap) -> nn.Module:
    """The published layer of the same variant, with the same weights."""
    twin = PUBLISHED[layer.variant](layer.in_features, layer.num_classes).to(layer.head.first.weight.dtype)
    second = layer.head.second
    twin.classifier.fc1.load_state_dict(layer.head.first.state_dict())
    twin.classifier.fc2.load_state_dict(second.state_dict())
    return twin


def gradients(layer: nn.Module, encodings: Tensor, memory: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    parameters = list(layer.parameters())
    return torch.autograd.grad(
        cross_entropy(layer(encodings, memory), labels), [encodings, memory, *parameters], allow_unused=True
    )


@pytest.mark.parametrize("size", [1, 2, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
def test_agrees_with_the_published_package(variant: str, dtype: torch.dtype, size: int) -> None:
    layer = MemoryWrap(48, 10, variant).to(dtype)
    twin = published_twin(layer)
    encodings = torch.randn(32, 48, dtype=dtype, requires_grad=True)
    memory = torch.randn(size, 48, dtype=dtype, requires_grad=True)
    labels = torch.randint(10, (32,))
    close = {"atol": TOLERANCES[dtype], "rtol": 0}

    reading = layer.read(encodings, memory)
    logits, weights = twin(encodings, memory, return_weights=True)
    assert_close(reading.logits, logits, **close)
    assert_close(reading.weights, weights, **close)
    ours, theirs = gradients(layer, encodings, memory, labels), gradients(twin, encodings, memory, labels)
    assert len(ours) == 6
    for own, published in zip(ours, theirs, strict=True):
        if published is None:  # a memory of one and only its vector: the input has no say
            assert own is None or not own.any()
        else:
            assert_close(own, published, **close)


def test_forward_gives_the_logits_of_read() -> None:
    layer, encodings, memory = MemoryWrap(6, 3), torch.randn(4, 6), torch.randn(5, 6)
    assert_close(layer(encodings, memory), layer.read(encodings, memory).logits, atol=0, rtol=0)


@pytest.mark.parametrize("project", [None, 4])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_with_the_batch_as_memory_each_half_reads_the_other(size: int, variant: str, project: int | None) -> None:
    torch.manual_seed(size)
    layer = MemoryWrap(6, 3, variant, project=project).double()
    encodings = torch.randn(size, 6, dtype=torch.float64, requires_grad=True)
    first, second = encodings.tensor_split(2)
    expected = torch.cat([layer(first, second), layer(second, first)])
    found = layer(encodings, "batch")
    weighing = torch.randn_like(expected)
    sources = [encodings, *layer.parameters()]
    for one, other in zip(
        (found, *torch.autograd.grad((found * weighing).sum(), sources)),
        (expected, *torch.autograd.grad((expected * weighing).sum(), sources)),
        strict=True,
    ):
        assert_close(one, other, atol=1e-12, rtol=1e-10)


def test_a_linear_head_worked_out_by_hand() -> None:
    layer = MemoryWrap(2, 2, head="linear")
    with torch.no_grad():
        layer.head.first.weight.copy_(torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 3.0]]))
        layer.head.first.bias.copy_(torch.tensor([0.5, -0.5]))
    # The input lies along the first axis: similarities 1, 0, -1, so the first sample alone has weight.
    reading = layer.read(torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 4.0], [-1.0, 0.0]]))
    assert_close(reading.weights, torch.tensor([[1.0, 0.0, 0.0]]))
    assert_close(reading.memory_vector, torch.tensor([[5.0, 0.0]]))
    assert_close(reading.logits, torch.tensor([[2 + 2 * 5 + 0.5, -0.5]]))


def test_a_linear_head_splits_each_logit_into_shares_of_the_samples() -> None:
    layer = MemoryWrap(6, 3, "only_memory", head="linear")
    encodings, memory = torch.randn(4, 6), torch.randn(9, 6)
    reading, prepared = layer.read(encodings, memory), layer.prepare(memory)
    assert prepared.hidden is not None
    shares = reading.weights.unsqueeze(-1) * prepared.hidden
    assert_close(shares.sum(1) + layer.head.first.bias, reading.logits)


@pytest.mark.parametrize(("variant", "factor"), [("memory_wrap", 2), ("only_memory", 1)])
def test_the_mlp_has_one_hidden_layer_of_twice_its_input(variant: str, factor: int) -> None:
    sizes = [parameter.shape for parameter in MemoryWrap(7, 3, variant).parameters()]
    assert sizes == [(14 * factor, 7 * factor), (14 * factor,), (3, 14 * factor), (3,)]


def test_projected_encodings_are_what_attention_and_head_see() -> None:
    layer, plain = MemoryWrap(10, 3, project=4), MemoryWrap(4, 3)
    plain.head.load_state_dict(layer.head.state_dict())
    encodings, memory = torch.randn(5, 10), torch.randn(8, 10)
    reading = layer.read(encodings, memory)
    expected = plain.read(layer.projection(encodings), layer.projection(memory))
    assert reading.memory_vector.shape == (5, 4)
    for ours, theirs in zip(vars(reading).values(), vars(expected).values(), strict=True):
        assert_close(ours, theirs)


def test_one_memory_for_each_row_is_each_row_with_its_memory() -> None:
    layer, encodings, memories = MemoryWrap(6, 3), torch.randn(4, 6), torch.randn(4, 7, 6)
    together = layer.read(encodings, memories)
    for row in range(4):
        alone = layer.read(encodings[row : row + 1], memories[row])
        assert_close(together.logits[row : row + 1], alone.logits)
        assert_close(together.weights[row : row + 1], alone.weights)


encoded = st.builds(
    lambda seed, inputs, samples: (
        torch.randn(inputs, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        torch.randn(samples, 3, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64),
    ),
    seed=st.integers(0, 10**6),
    inputs=st.integers(1, 4),
    samples=st.integers(2, 40),
)


@given(encoded, st.randoms(use_true_random=False))
def test_permuting_the_memory_leaves_the_logits(world: tuple[Tensor, Tensor], random: Random) -> None:
    layer, (encodings, memory) = MemoryWrap(3, 4).double(), world
    order = list(range(len(memory)))
    random.shuffle(order)
    assert_close(layer(encodings, memory[order]), layer(encodings, memory))


@given(encoded)
def test_samples_without_weight_do_not_matter(world: tuple[Tensor, Tensor]) -> None:
    layer, encoding, memory = MemoryWrap(3, 4).double(), world[0][:1], world[1]
    full = layer.read(encoding, memory)
    used = full.weights[0] > 0
    assume(not used.all())
    assert_close(layer(encoding, memory[used]), full.logits)
    assert_close(layer.read(encoding, memory, keep=used).logits, full.logits)


@pytest.mark.parametrize("size", [1, 5, 500])
@pytest.mark.parametrize("project", [None, 5])
@pytest.mark.parametrize("head", ["mlp", "linear"])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
def test_a_prepared_memory_reads_the_same(variant: str, head: str, project: int | None, size: int) -> None:
    layer = MemoryWrap(12, 3, variant, head, project).double()
    encodings, memory = torch.randn(6, 12).double(), torch.randn(size, 12).double()
    prepared = layer.prepare(memory)
    keep = torch.rand(6, size) > 0.3
    keep[:, 0] = True
    for mask in (None, keep):
        expected, reading = layer.read(encodings, memory, mask), layer.read(encodings, prepared, mask)
        for ours, theirs in zip(vars(reading).values(), vars(expected).values(), strict=True):
            assert_close(ours, theirs)
    assert_close(layer(encodings, prepared), layer(encodings, memory))


def test_the_hidden_layer_is_prepared_only_where_it_saves_work() -> None:
    layer = MemoryWrap(12, 3)
    assert layer.prepare(torch.randn(16, 12)).hidden is not None
    assert layer.prepare(torch.randn(17, 12)).hidden is None  # 17 · 48 > 17 · 12 + 12 · 48


BAD = {
    "empty memory": (torch.randn(2, 6), torch.randn(0, 6), InputError, "memory is empty: its shape is (0, 6)"),
    "memory of the wrong width": (
        torch.randn(2, 6),
        torch.randn(4, 5),
        InputError,
        "memory has shape (4, 5); expected a float tensor (M, D) or (B, M, D) with D = 6",
    ),
    "encodings of the wrong width": (
        torch.randn(2, 7),
        torch.randn(4, 6),
        InputError,
        "encodings has shape (2, 7); expected a float tensor (B, D) with D = 6",
    ),
    "memories for another number of inputs": (
        torch.randn(2, 6),
        torch.randn(3, 4, 6),
        InputError,
        "holds one memory for each of 3 inputs, but there are 2 encodings",
    ),
    "integer encodings": (
        torch.ones(2, 6, dtype=torch.int64),
        torch.randn(4, 6),
        InputError,
        "encodings has dtype torch.int64; expected floating point",
    ),
    "an array": (
        torch.randn(2, 6),
        torch.randn(4, 6).numpy(),
        InputError,
        "memory is a ndarray; expected a float tensor (M, D) or (B, M, D) with D = 6",
    ),
    "no encodings": (torch.randn(0, 6), torch.randn(4, 6), InputError, "encodings is empty: its shape is (0, 6)"),
    "two dtypes": (
        torch.randn(2, 6),
        torch.randn(4, 6).double(),
        InputError,
        "memory is torch.float64 on cpu, encodings are torch.float32 on cpu; give both in one dtype on one device",
    ),
    "NaN in an encoding": (
        torch.tensor([[1.0] * 6, [torch.nan] * 6]),
        torch.randn(4, 6),
        NonFiniteError,
        "encodings: 1 of 2 vectors hold NaN, infinity or values too large to square (the first is number 1)",
    ),
    "infinity in the memory": (
        torch.randn(2, 6),
        torch.tensor([[1.0] * 6, [1.0] * 5 + [torch.inf]]),
        NonFiniteError,
        "memory: 1 of 2 vectors hold NaN, infinity",
    ),
    "values that overflow when squared": (
        torch.randn(2, 6),
        torch.full((3, 6), 1e30),
        NonFiniteError,
        "memory: 3 of 3 vectors",
    ),
}


@pytest.mark.parametrize("project", [None, 3])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_reason(case: str, project: int | None) -> None:
    encodings, memory, error, message = BAD[case]
    with pytest.raises(error, match=re.escape(message)):
        MemoryWrap(6, 3, project=project)(encodings, memory)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ([True] * 4, "keep is a list; expected a bool tensor (4,) or (2, 4)"),
        (torch.ones(4), "keep has dtype torch.float32; expected torch.bool"),
        (torch.ones(3, dtype=torch.bool), "keep has shape (3,); expected (4,) for all inputs, or (2, 4)"),
        (torch.zeros(4, dtype=torch.bool), "keep removes all 4 memory samples"),
        (torch.tensor([[True] * 4, [False] * 4]), "keep removes all 4 memory samples for input 1"),
    ],
)
def test_a_mask_that_cannot_be_used_is_refused(keep: Tensor, message: str) -> None:
    layer, encodings, memory = MemoryWrap(6, 3), torch.randn(2, 6), torch.randn(4, 6)
    with pytest.raises(InputError, match=re.escape(message)):
        layer.read(encodings, memory, keep)
    with pytest.raises(InputError, match=re.escape(message)):
        layer.read(encodings, layer.prepare(memory), keep)


def test_a_head_with_nan_does_not_stay_silent() -> None:
    layer, encodings, memory = MemoryWrap(6, 3), torch.randn(2, 6), torch.randn(4, 6)
    with torch.no_grad():
        layer.head.second.bias[1] = torch.nan
    with pytest.raises(NonFiniteError, match=r"logits of . of 2 inputs are not finite"):
        layer(encodings, memory)
    with pytest.raises(NonFiniteError, match=r"logits of . of 2 inputs are not finite"):
        layer(encodings, layer.prepare(memory))


def half(layer: MemoryWrap) -> None:
    """With weights that would make small logits, had they long numbers to multiply."""
    for parameter in layer.head.parameters():
        parameter.mul_(1e-3)
    layer.head.half()


# What gives logits that are not finite, though encodings and memory are: what is done to the layer, to encodings and to
# the memory.
OVERFLOWING: dict[str, tuple[Callable[[MemoryWrap], object], float, float]] = {
    "NaN in the first weight": (lambda layer: layer.head.first.weight[0, 0].fill_(torch.nan), 1, 1),
    "NaN in the first bias": (lambda layer: layer.head.first.bias[0].fill_(torch.nan), 1, 1),
    "NaN in the last weight": (lambda layer: last(layer).weight[0, 0].fill_(torch.nan), 1, 1),
    "infinity in the last bias": (lambda layer: last(layer).bias[0].fill_(torch.inf), 1, 1),
    "large weights": (lambda layer: layer.head.first.weight.fill_(2e38), 1, 1),
    "large last weights": (lambda layer: last(layer).weight.fill_(-3e38), 1, 1),
    "large weights, long encodings": (lambda layer: layer.head.first.weight.fill_(1e25), 1e14, 1e-3),
    "large weights, a long memory": (lambda layer: layer.head.first.weight.fill_(1e25), 1e-3, 1e14),
    "small weights in half precision, long encodings": (half, 1e5, 1),
    "small weights in half precision, a long memory": (half, 1, 1e5),
}


def last(layer: MemoryWrap) -> nn.Linear:
    return layer.head.first if layer.head.second is None else layer.head.second


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("case", OVERFLOWING)
def test_logits_from_a_prepared_memory_that_are_not_finite_are_refused(
    case: str, head: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_module, "LARGE_MEMORY", 4 if large else 4096)
    change, length, memory_length = OVERFLOWING[case]
    layer = MemoryWrap(6, 3, head=head)
    encodings, memory = (torch.rand(2, 6) + 1) * length, (torch.rand(4, 6) + 1) * memory_length
    with torch.no_grad():
        change(layer)
        with pytest.raises(NonFiniteError, match=r"logits of . of 2 inputs are not finite"):
            layer(encodings, layer.prepare(memory))


@pytest.mark.parametrize("length", [1.0, 1e15])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_exceeds_its_bound(variant: str, head: str, length: float) -> None:
    """All that the head computes, in double precision, for encodings and a memory that grow as much as any can."""
    layer = MemoryWrap(6, 3, variant=variant, head=head).double()
    axis = torch.zeros(1, 6, dtype=torch.float64)
    axis[0, 0] = 1
    with torch.no_grad():
        for parameter in layer.head.parameters():
            parameter.zero_()
        layer.head.first.weight[0, 0] = 1e6  # the longest that encodings can become, and further on
        last(layer).weight[0, 0] = 1e6
    computed: list[Tensor] = []
    for part in layer.head.children():
        part.register_forward_hook(lambda _, __, out: computed.append(out))
    layer(length * axis, length * axis)
    largest = torch.cat([out.flatten() for out in computed]).abs().max().item()
    norm_bound = layer.prepare(length * axis).bound
    bound = norm_bound.slope * length + norm_bound.offset
    assert largest <= bound * (1 + 1e-6)
    assert bound < 2.1 * largest
    assert norm_bound.fits(length, torch.float32)
    assert not norm_bound.fits(length * 1e40, torch.float32)
    assert not norm_bound.fits(math.nan, torch.float32)
    assert not norm_bound.fits(length, torch.float16)


def test_logits_that_cannot_be_too_large_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def waited(logits: Tensor) -> None:
        raise AssertionError("the logits were waited for")

    monkeypatch.setattr(checks, "check_logits", waited)
    layer, memory = MemoryWrap(6, 3), torch.randn(4, 6)
    layer(torch.randn(2, 6), layer.prepare(memory))
    with torch.no_grad():
        layer.head.second.weight.fill_(1e38)
    with pytest.raises(AssertionError):
        layer(torch.randn(2, 6), layer.prepare(memory))


def test_an_encoding_with_nan_is_named_before_more_of_a_large_memory_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, encodings = MemoryWrap(6, 3), torch.randn(4, 6)
    prepared = layer.prepare(torch.randn(300, 6))
    encodings[2, 1] = torch.nan
    looks, plain = [], CosineSimilarity.attend_to_top
    monkeypatch.setattr(layer_module, "LARGE_MEMORY", 200)
    monkeypatch.setattr(CosineSimilarity, "attend_to_top", lambda *arguments: looks.append(1) or plain(*arguments))
    with pytest.raises(NonFiniteError, match=re.escape("encodings: 1 of 4 vectors hold NaN")):
        layer(encodings, prepared)
    assert looks == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "standard"}, "variant is 'standard'; expected one of 'memory_wrap', 'only_memory'"),
        ({"head": "mpl"}, "head is 'mpl'; expected one of 'mlp', 'linear'"),
        ({"project": 0}, "project is 0; expected at least 1"),
        ({"project": 64.0}, "project is a float; expected a whole number"),
        ({"scale": 0}, "scale is 0"),
        ({"scale": 10**400}, "scale is 1000"),
    ],
)
def test_options_that_do_not_exist_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        MemoryWrap(6, 3, **arguments)


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
@pytest.mark.parametrize("project", [None, 3])
def test_a_large_memory_is_read_by_its_highest_scores_alone(
    variant: str, project: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = MemoryWrap(6, 4, variant, project=project)
    encodings, memory = torch.randn(5, 6), torch.randn(200, 6)
    prepared = layer.prepare(memory)
    expected = layer.read(encodings, memory).logits
    by_few, plain = [], CosineSimilarity.attend_to_top
    monkeypatch.setattr(CosineSimilarity, "attend_to_top", lambda *arguments: by_few.append(1) or plain(*arguments))
    assert_close(layer(encodings, prepared), expected, atol=1e-5, rtol=1e-4)
    assert not by_few
    monkeypatch.setattr(layer_module, "LARGE_MEMORY", 200)
    assert_close(layer(encodings, prepared), expected, atol=1e-5, rtol=1e-4)
    assert by_few == [1]
    monkeypatch.setattr(layer_module, "FIRST_TRIED", 1)
    assert_close(layer(encodings, prepared), expected, atol=1e-5, rtol=1e-4)
    assert len(by_few) > 2, "one sample was not enough"
    del by_few[1:]
    learning = encodings.clone().requires_grad_()
    layer(learning, prepared).sum().backward()
    assert by_few == [1], "whoever asks for a gradient gets it"
    assert learning.grad.abs().sum() > 0


def test_a_batch_of_one_and_unknown_names_are_no_memory() -> None:
    layer = MemoryWrap(6, 3)
    with pytest.raises(InputError, match="batch of one"):
        layer(torch.randn(1, 6), "batch")
    with pytest.raises(InputError, match="'queue'"):
        layer(torch.randn(4, 6), "queue")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_scale_reaches_every_path_through_the_layer(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = MemoryWrap(6, 4, variant, scale=8.0).double()
    encodings, memory = torch.randn(6, 6).double(), torch.randn(40, 6).double()
    expected = layer.read(encodings, memory)
    cosine = torch.nn.functional.cosine_similarity(encodings.unsqueeze(1), memory, dim=2)
    assert_close(expected.weights, memwrap.sparsemax(8 * cosine), atol=1e-5, rtol=0)
    prepared = layer.prepare(memory)
    assert_close(layer.read(encodings, prepared).logits, expected.logits)
    assert_close(layer(encodings, prepared), expected.logits)
    first, second = encodings.tensor_split(2)
    halves = torch.cat([layer(first, second), layer(second, first)])
    assert_close(layer(encodings, "batch"), halves)
    monkeypatch.setattr(layer_module, "LARGE_MEMORY", 40)
    with torch.no_grad():
        assert_close(layer(encodings, prepared), expected.logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_touch_a_projection(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, encodings, memory = MemoryWrap(64, 5, project=16), torch.randn(240, 64), torch.randn(100, 64)
    weights, prepared = layer.read(encodings, memory).weights, layer.prepare(memory)
    with torch.autocast("cpu", dtype=dtype):
        assert_close(layer.read(encodings, memory).weights, weights, atol=0, rtol=0)
        assert_close(layer.read(encodings, prepared).weights, weights)
        assert_close(layer.prepare(memory).keys.values, prepared.keys.values, atol=0, rtol=0)


def test_a_projection_of_a_half_precision_layer_is_computed_in_full() -> None:
    torch.manual_seed(0)
    layer, encodings, memory = MemoryWrap(64, 5, project=16).bfloat16(), torch.randn(50, 64), torch.randn(60, 64)
    full = MemoryWrap(64, 5, project=16)
    full.load_state_dict(layer.state_dict())
    encodings, memory = encodings.bfloat16(), memory.bfloat16()
    assert_close(layer.read(encodings, memory).weights, full.read(encodings.float(), memory.float()).weights)


@pytest.mark.parametrize("project", [None, 3])
def test_torch_func_works_on_the_layer(project: int | None) -> None:
    layer, encodings, memory = MemoryWrap(6, 3, project=project), torch.randn(4, 6), torch.randn(9, 6)
    labels, parameters = torch.tensor([0, 2, 1, 0]), dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor], encoding: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(layer, parameters, (encoding.unsqueeze(0), memory))
        return cross_entropy(logits, label.unsqueeze(0))

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, encodings, labels)
    for row in range(4):
        one = torch.autograd.grad(
            cross_entropy(layer(encodings[row : row + 1], memory), labels[row : row + 1]), list(parameters.values())
        )
        for name, expected in zip(parameters, one, strict=True):
            assert_close(found[name][row], expected, atol=1e-6, rtol=1e-5)
    assert_close(
        torch.func.vmap(lambda each: layer(each, memory))(encodings.unsqueeze(1)).squeeze(1), layer(encodings, memory)
    )


def test_encodings_beyond_float32_are_no_error() -> None:
    layer = MemoryWrap(8, 3).double()
    encodings, memory = torch.randn(2, 8).double() * 1e60, torch.randn(5, 8).double()
    assert_close(layer(encodings, layer.prepare(memory)), layer(encodings, memory))


@pytest.mark.parametrize("scale", [np.float32(2), np.int64(2), torch.tensor(2.0), 2])
def test_a_scale_of_another_library_becomes_a_float(scale: float) -> None:
    found = MemoryWrap(6, 3, scale=scale).settings()["scale"]
    assert (found, type(found)) == (2.0, float)
