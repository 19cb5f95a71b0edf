"""Sparsemax and attention weights against a slow rewrite, entmax, closed forms and their properties."""

import copy
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import entmax
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from memwrap import InputError, MemoryWrap
from memwrap.nn import attention, similarity
from memwrap.nn.attention import memory_vector, sparsemax
from memwrap.nn.similarity import CosineSimilarity, Similarity, Vectors

COSINE = CosineSimilarity()


def slow_sparsemax(scores: list[float]) -> list[float]:
    """By the definition of Martins and Astudillo (2016, alg. 1), a loop over sorted scores."""
    ranked = sorted(scores, reverse=True)
    support = max(k for k in range(1, len(ranked) + 1) if 1 + k * ranked[k - 1] > sum(ranked[:k]))
    threshold = (sum(ranked[:support]) - 1) / support
    return [max(score - threshold, 0.0) for score in scores]


def weigh(queries: Tensor, keys: Tensor, keep: Tensor | None = None, scale: float = 1.0) -> Tensor:
    cosine = CosineSimilarity(scale)
    return cosine.attend(queries, cosine.vectors(keys), keep)[0]


def slow_weights(query: Tensor, keys: Tensor) -> Tensor:
    """The protocol's formula for one input: v / sqrt(sum(v²) + 1e-6), products, sparsemax."""

    def unit(vector: Tensor) -> Tensor:
        return vector / (vector.pow(2).sum() + 1e-6).sqrt()

    return torch.tensor(slow_sparsemax([float(unit(query) @ unit(key)) for key in keys]), dtype=query.dtype)


scores = st.lists(st.floats(-20, 20, allow_nan=False), min_size=1, max_size=30)


@given(scores)
def test_sparsemax_equals_a_loop_over_sorted_scores(values: list[float]) -> None:
    assert_close(
        sparsemax(torch.tensor(values, dtype=torch.float64)), torch.tensor(slow_sparsemax(values), dtype=torch.float64)
    )


@pytest.mark.parametrize("spread", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sparsemax_agrees_with_entmax(spread: float, dim: int) -> None:
    values = spread * torch.randn(40, 60, dtype=torch.float64)
    assert_close(sparsemax(values, dim), entmax.sparsemax(values, dim=dim), atol=1e-12, rtol=0)
    assert_close(sparsemax(values.float(), dim), entmax.sparsemax(values.float(), dim=dim), atol=1e-6, rtol=0)


@pytest.mark.parametrize("spread", [0.0, 0.001, 0.1, 3.0])
def test_sparsemax_of_many_scores_is_exact_whether_its_support_is_small_or_all(spread: float) -> None:
    many = 4 * attention.MANY_SCORES
    values = spread * torch.randn(3, many, dtype=torch.float64)
    values[1] = 0.5  # all equal, beside rows with small supports
    assert_close(sparsemax(values), entmax.sparsemax(values, dim=1), atol=1e-12, rtol=0)
    assert_close(sparsemax(values[::2]), entmax.sparsemax(values[::2], dim=1), atol=1e-12, rtol=0)


def test_sparsemax_passes_gradcheck_inside_its_support() -> None:
    values = torch.tensor([[0.9, 0.5, 0.45, -0.3], [2.0, 0.1, 0.0, -1.0], [0.1, 0.2, 0.3, 0.25]], dtype=torch.float64)
    supports = (sparsemax(values) > 0).sum(1)
    assert supports.tolist() == [3, 1, 4]
    values.requires_grad_()
    assert torch.autograd.gradcheck(sparsemax, (values,))
    assert torch.autograd.gradgradcheck(sparsemax, (values,))


def test_gradients_of_sparsemax_agree_with_entmax() -> None:
    values = torch.randn(20, 50, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(20, 50, dtype=torch.float64)
    (ours,) = torch.autograd.grad((sparsemax(values) * direction).sum(), values)
    (theirs,) = torch.autograd.grad((entmax.sparsemax(values, dim=1) * direction).sum(), values)
    assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_sparsemax_gives_nothing_to_minus_infinity_and_no_nan_to_its_gradient() -> None:
    values = torch.tensor([0.3, -torch.inf, 0.1, -torch.inf], requires_grad=True)
    weights = sparsemax(values)
    assert_close(weights, torch.tensor([0.6, 0.0, 0.4, 0.0]))
    weights[0].backward()
    assert_close(values.grad, torch.tensor([0.5, 0.0, -0.5, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sparsemax_of_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    values = torch.randn(4, 30).to(dtype)
    assert sparsemax(values).dtype == torch.float32
    assert_close(sparsemax(values), sparsemax(values.float()), atol=0, rtol=0)


def test_weights_of_a_shared_memory_follow_the_formula() -> None:
    queries, keys = torch.randn(6, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    assert_close(weigh(queries, keys), torch.stack([slow_weights(query, keys) for query in queries]))


def test_weights_of_a_memory_per_row_are_those_of_each_row_alone() -> None:
    queries, keys = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 7, 4, dtype=torch.float64)
    assert_close(
        weigh(queries, keys), torch.stack([slow_weights(query, own) for query, own in zip(queries, keys, strict=True)])
    )


def test_memory_vector_sums_samples_by_weight_for_shared_and_own_memories() -> None:
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    shared = torch.tensor([[4.0, 0.0, 8.0], [0.0, 4.0, 4.0]])
    expected = torch.tensor([[1.0, 3.0, 5.0], [4.0, 0.0, 8.0]])
    assert_close(memory_vector(weights, shared), expected)
    assert_close(memory_vector(weights, torch.stack([shared, 2 * shared])), expected * torch.tensor([[1.0], [2.0]]))


@pytest.mark.parametrize("per_row", [False, True])
def test_a_removed_sample_is_as_good_as_deleted(per_row: bool) -> None:
    queries = torch.randn(5, 6)
    keys = torch.randn(5, 9, 6) if per_row else torch.randn(9, 6)
    keep = torch.tensor([True, False, True, True, False, True, True, True, True])
    weights = weigh(queries, keys, keep)
    assert (weights[:, ~keep] == 0).all()
    assert_close(weights[:, keep], weigh(queries, keys[..., keep, :]))


def test_a_mask_may_differ_from_row_to_row() -> None:
    queries, keys = torch.randn(2, 6), torch.randn(4, 6)
    keep = torch.tensor([[True, True, False, True], [False, True, True, True]])
    weights = weigh(queries, keys, keep)
    for row in range(2):
        assert_close(weights[row, keep[row]], weigh(queries[row : row + 1], keys[keep[row]])[0])


# A world of encodings of ordinary size: two to forty samples of three to eight dimensions, several inputs.
worlds = st.builds(
    lambda seed, inputs, samples, length: (
        torch.randn(inputs, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        torch.randn(samples, length, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64),
    ),
    seed=st.integers(0, 10**6),
    inputs=st.integers(1, 4),
    samples=st.integers(2, 40),
    length=st.integers(3, 8),
)


@given(worlds)
def test_weights_are_not_negative_and_sum_to_one(world: tuple[Tensor, Tensor]) -> None:
    weights = weigh(*world)
    assert (weights >= 0).all()
    assert_close(weights.sum(1), torch.ones(len(weights), dtype=torch.float64))


@given(worlds, st.randoms(use_true_random=False))
def test_permuting_the_memory_permutes_the_weights(world: tuple[Tensor, Tensor], random: Random) -> None:
    queries, keys = world
    order = list(range(len(keys)))
    random.shuffle(order)
    assert_close(weigh(queries, keys[order]), weigh(queries, keys)[:, order])


@given(worlds, st.floats(0.3, 30))
def test_scaling_an_encoding_of_ordinary_size_leaves_the_weights(world: tuple[Tensor, Tensor], factor: float) -> None:
    queries, keys = world
    long = 3 * keys / keys.norm(dim=1, keepdim=True)
    scaled = long.clone()
    scaled[0] *= factor
    # The epsilon under the root moves a similarity by at most half of itself over the squared length: 6e-7 here.
    assert_close(weigh(queries, scaled), weigh(queries, long), atol=5e-6, rtol=0)
    queries = 3 * queries / queries.norm(dim=1, keepdim=True)
    assert_close(weigh(factor * queries, long), weigh(queries, long), atol=5e-6, rtol=0)


@given(worlds)
def test_a_memory_of_one_gets_weight_one(world: tuple[Tensor, Tensor]) -> None:
    queries, keys = world
    for dtype in (torch.float32, torch.float64):
        assert (weigh(queries.to(dtype), keys[:1].to(dtype)) == 1).all()


@given(worlds)
def test_samples_of_weight_zero_can_be_deleted(world: tuple[Tensor, Tensor]) -> None:
    queries, keys = world[0][:1], world[1]
    weights = weigh(queries, keys)[0]
    used = weights > 0
    assume(not used.all())
    assert_close(weigh(queries, keys[used])[0], weights[used])


@given(worlds, st.integers(0, 10**6))
@settings(max_examples=200)
def test_samples_no_more_similar_than_an_unused_one_can_be_added(world: tuple[Tensor, Tensor], seed: int) -> None:
    queries, keys = world[0][:1], world[1]
    weights = weigh(queries, keys)[0]
    assume(not (weights > 0).all())
    similarity = torch.cosine_similarity(queries, keys)
    limit = similarity[weights == 0].max()
    newcomers = torch.randn(20, keys.shape[1], dtype=keys.dtype, generator=torch.Generator().manual_seed(seed))
    newcomers = newcomers[torch.cosine_similarity(queries, newcomers) < limit - 1e-6]
    as_similar = keys[weights == 0]
    more = weigh(queries, torch.cat([keys, newcomers, as_similar]))[0]
    assert (more[len(keys) :] == 0).all()
    assert_close(more[: len(keys)], weights)


def test_a_zero_encoding_is_similar_to_nothing() -> None:
    assert_close(weigh(torch.zeros(1, 3), torch.randn(4, 3)), torch.full((1, 4), 0.25))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_touch_similarities(dtype: torch.dtype) -> None:
    queries, keys = torch.randn(6, 32), torch.randn(50, 32)
    expected = weigh(queries, keys)
    with torch.autocast("cpu", dtype=dtype):
        assert_close(weigh(queries, keys), expected, atol=0, rtol=0)


def test_threads_leave_the_setting_for_reduced_precision_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        allowed = torch.backends.mkldnn.matmul.fp32_precision
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: weigh(torch.randn(2, 3), torch.randn(4, 3)), range(400)))
        assert torch.backends.mkldnn.matmul.fp32_precision == allowed
    finally:
        torch.set_float32_matmul_precision(before)


def test_settings_for_reduced_precision_are_off_within_and_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)
    seen = []
    original_matmul = torch.Tensor.__matmul__

    def spying_matmul(left: Tensor, right: Tensor) -> Tensor:
        seen.append(torch.backends.mkldnn.matmul.fp32_precision)
        return original_matmul(left, right)

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        allowed = [backend.fp32_precision for backend in backends]
        monkeypatch.setattr(torch.Tensor, "__matmul__", spying_matmul)
        weigh(torch.randn(2, 3), torch.randn(4, 3))
        assert seen == ["ieee"]
        assert [backend.fp32_precision for backend in backends] == allowed
    finally:
        torch.set_float32_matmul_precision(before)


# A large memory


def slow_memory_vector(queries: Tensor, keys: Tensor) -> Tensor:
    """All scores, all weights, in float64."""
    queries, keys = queries.double(), keys.double()
    return memory_vector(weigh(queries, keys), keys)


def top(queries: Tensor, keys: Tensor, tried: int) -> tuple[Tensor, Tensor]:
    return COSINE.attend_to_top(COSINE.vectors(queries), COSINE.vectors(keys), tried)


def few_by_few(queries: Tensor, keys: Tensor) -> Tensor:
    """More and more samples, for the inputs that need them."""
    vectors, enough = torch.zeros_like(queries), torch.zeros(len(queries), dtype=torch.bool)
    for tried in (8, 64, 512, 4096):
        left = (~enough).nonzero().squeeze(1)
        if len(left):
            vectors[left], enough[left] = top(queries[left], keys, tried)
    assert enough.all()
    return vectors


@pytest.mark.parametrize("at_once", [1, 7, 300, 10**6])
@pytest.mark.parametrize("samples", [1, 5, 7, 8, 9, 700])
def test_a_large_memory_gives_the_same_vector_however_few_scores_are_held(
    samples: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "SCORES_AT_ONCE", at_once)
    torch.manual_seed(samples)
    keys = torch.randn(samples, 6)
    queries = torch.randn(9, 6)
    found = few_by_few(queries, keys)
    assert_close(found.double(), slow_memory_vector(queries, keys), atol=1e-5, rtol=1e-4)


def test_a_large_memory_of_which_all_is_used() -> None:
    """Many more samples than are tried first: all alike for some inputs, nearly so for others."""
    torch.manual_seed(0)
    # As alike as can be in direction, and of different lengths, which the mean of all shows.
    alike = (1 + torch.arange(900).unsqueeze(1) / 100) * (torch.ones(900, 3) + 1e-4 * torch.randn(900, 3))
    keys = torch.cat([alike, -torch.eye(3)])
    queries = torch.cat([torch.ones(2, 3), -torch.eye(3)])
    found = few_by_few(queries, keys)
    assert_close(found.double(), slow_memory_vector(queries, keys), atol=1e-5, rtol=1e-4)
    assert int((weigh(queries, keys)[0] > 0).sum()) > 800, "else nothing is tested"


def test_of_a_large_memory_never_all_scores_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "SCORES_AT_ONCE", 4000)
    held, plain = [], CosineSimilarity.scores

    def watched(self: CosineSimilarity, queries: Vectors, keys: Vectors) -> Tensor:
        held.append(plain(self, queries, keys))
        return held[-1]

    monkeypatch.setattr(CosineSimilarity, "scores", watched)
    keys, queries = torch.randn(5000, 4), torch.randn(10, 4)
    top(queries, keys, 64)
    assert max(each.numel() for each in held) <= 4000
    assert sum(each.shape[1] for each in held if len(each) == 10) >= 5000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_large_memory_in_half_precision_is_not_copied_whole(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity, "SCORES_AT_ONCE", 4000)
    torch.manual_seed(0)
    keys, queries = torch.randn(5000, 4).to(dtype), torch.randn(10, 4)
    rows, plain = [], torch.nn.functional.embedding_bag

    def watched(samples: Tensor, table: Tensor, **options: Any) -> Tensor:
        rows.append(len(table))
        return plain(samples, table, **options)

    monkeypatch.setattr(torch.nn.functional, "embedding_bag", watched)
    vectors, enough = top(queries, keys, 512)
    assert enough.any()
    assert max(rows) < 2500
    expected = slow_memory_vector(queries, keys.float())
    assert_close(vectors[enough].double(), expected[enough], atol=1e-5, rtol=1e-4)


# The scale


@pytest.mark.parametrize("scale", [0.5, 4.0, 64.0])
def test_the_scale_multiplies_the_cosine(scale: float) -> None:
    queries, keys = torch.randn(6, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    cosine = torch.nn.functional.cosine_similarity(queries.unsqueeze(1), keys, dim=2)
    assert_close(weigh(queries, keys, scale=scale), entmax.sparsemax(scale * cosine, dim=1), atol=1e-5, rtol=0)


def test_a_higher_scale_uses_fewer_samples() -> None:
    queries, keys = torch.randn(20, 16), torch.randn(200, 16)
    used = [float((weigh(queries, keys, scale=scale) > 0).sum(1).float().mean()) for scale in (1.0, 4.0, 64.0)]
    assert used[0] > 2 * used[1] > 4 * used[2]


@pytest.mark.parametrize("scale", [0.0, -1.0, torch.nan, torch.inf, "4", True])
def test_a_scale_that_is_no_positive_number_is_refused(scale: object) -> None:
    with pytest.raises(InputError, match="scale"):
        CosineSimilarity(scale)  # type: ignore[arg-type]


class Euclidean(Similarity):
    """Minus the distance times the scale: what another similarity takes."""

    def scores(self, queries: Vectors, keys: Vectors) -> Tensor:
        keys_of_each = keys.values if keys.values.ndim == 3 else keys.values.expand(len(queries), -1, -1)
        return -self.scale * torch.cdist(queries.values.unsqueeze(1), keys_of_each).squeeze(1)


@pytest.mark.parametrize("project", [None, 3])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_another_similarity_serves_every_path_through_the_layer(
    scale: float, project: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = MemoryWrap(6, 4, project=project).double()
    layer.similarity = Euclidean(scale)
    encodings, memory = torch.randn(6, 6).double(), torch.randn(40, 6).double()
    queries, keys = (each if project is None else layer.projection(each) for each in (encodings, memory))
    reading = layer.read(encodings, memory)
    assert_close(reading.weights, entmax.sparsemax(-scale * torch.cdist(queries, keys), dim=1))
    assert not torch.allclose(reading.weights, MemoryWrap.read(layer_with_cosine(layer), encodings, memory).weights)
    prepared = layer.prepare(memory)
    assert_close(layer(encodings, prepared), reading.logits)
    first, second = encodings.tensor_split(2)
    assert_close(layer(encodings, "batch"), torch.cat([layer(first, second), layer(second, first)]))
    monkeypatch.setattr("memwrap.nn.reading.LARGE_MEMORY", 40)
    with torch.no_grad():
        assert_close(layer(encodings, prepared), reading.logits)


def layer_with_cosine(layer: MemoryWrap) -> MemoryWrap:
    twin = copy.deepcopy(layer)
    twin.similarity = CosineSimilarity(layer.similarity.scale)
    return twin
