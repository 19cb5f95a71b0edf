"""Votes: weights summed by label, against a loop, whatever the order of the memory, and as logits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from memwrap import VoteLayer, sparsemax
from memwrap.nn.voting import sum_by_label, vote_logits

CLASSES = 5
seeds = st.integers(0, 10**6)
# Whole numbers of these parts of one are added without rounding, in any order and either precision.
PART = 2**-20


@st.composite
def ballots(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Weights (B, M), many of them zero, and labels (M,) or (B, M)."""
    inputs, samples = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    weight = st.one_of(st.just(0), st.integers(0, 2**20))
    row = st.lists(weight, min_size=samples, max_size=samples)
    label = st.lists(st.integers(0, CLASSES - 1), min_size=samples, max_size=samples)
    weights = PART * torch.tensor(draw(st.lists(row, min_size=inputs, max_size=inputs)))
    labels = draw(st.one_of(label, st.lists(label, min_size=inputs, max_size=inputs)))
    return weights.to(draw(st.sampled_from([torch.float32, torch.float64]))), torch.tensor(labels)


@given(ballots())
def test_votes_are_those_of_a_loop(ballot: tuple[Tensor, Tensor]) -> None:
    weights, labels = ballot
    expected = [[0.0] * CLASSES for _ in weights]
    for row, cast in enumerate(weights.tolist()):
        for sample, weight in enumerate(cast):
            expected[row][int(labels[sample] if labels.ndim == 1 else labels[row, sample])] += weight
    votes = sum_by_label(weights, labels, CLASSES)
    assert votes.tolist() == expected
    assert votes.dtype == weights.dtype


def weighed(seed: int, samples: int, scale: float = 3.0) -> tuple[Tensor, Tensor, torch.Generator]:
    """Weights (4, M) as a layer computes them, and labels (M,)."""
    generator = torch.Generator().manual_seed(seed)
    weights = sparsemax(torch.randn(4, samples, generator=generator) / scale)
    return weights, torch.randint(CLASSES, (samples,), generator=generator), generator


@given(seeds, st.integers(1, 300))
def test_the_order_of_the_weights_does_not_matter_at_all(seed: int, samples: int) -> None:
    """Else the winner of a tie would depend on it."""
    weights, labels, generator = weighed(seed, samples)
    order = torch.randperm(samples, generator=generator)
    assert torch.equal(sum_by_label(weights[:, order], labels[order], CLASSES), sum_by_label(weights, labels, CLASSES))


def test_equal_shares_stay_equal_however_many_samples_make_them_up() -> None:
    """In float32 ten tenths, added one by one, are less than five fifths."""
    tenths, fifths = torch.full((10,), 0.1), torch.full((5,), 0.2)
    weights = torch.cat([tenths, fifths]).unsqueeze(0) / 2
    votes = sum_by_label(weights, torch.tensor([0] * 10 + [1] * 5), 2)[0]
    assert votes[0] == votes[1] == 0.5
    assert sum(weights[0, :10], start=torch.tensor(0.0)) != sum(weights[0, 10:], start=torch.tensor(0.0))


def voting(seed: int, samples: int, **options: object) -> tuple[VoteLayer, Tensor, Tensor, Tensor]:
    """A layer, encodings (4, 6), memory (M, 6) and labels (M,)."""
    generator = torch.Generator().manual_seed(seed)
    layer = VoteLayer(6, CLASSES, **options).requires_grad_(False)
    encodings, memory = torch.randn(4 + samples, 6, generator=generator).split([4, samples])
    return layer, encodings, memory, torch.randint(CLASSES, (samples,), generator=generator)


@given(seeds, st.integers(1, 40), st.sampled_from([1.0, 16.0]))
def test_permuting_memory_and_labels_leaves_the_votes(seed: int, samples: int, scale: float) -> None:
    layer, encodings, memory, labels = voting(seed, samples, scale=scale)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    expected = layer.read(encodings, layer.prepare(memory, labels))
    found = layer.read(encodings, layer.prepare(memory[order], labels[order]))
    assert_close(found.votes, expected.votes, atol=1e-6, rtol=0)
    assert_close(found.similarity, expected.similarity, atol=1e-6, rtol=0)
    assert_close(found.head_logits, expected.head_logits, atol=0, rtol=0)


@given(seeds, st.integers(2, 40), st.integers(0, CLASSES - 1))
def test_a_class_whose_samples_are_removed_gets_no_vote(seed: int, samples: int, removed: int) -> None:
    layer, encodings, memory, labels = voting(seed, samples, scale=1.0)
    labels[0] = (removed + 1) % CLASSES
    kept = labels != removed
    smaller = layer.read(encodings, layer.prepare(memory[kept], labels[kept]))
    masked = layer.read(encodings, layer.prepare(memory, labels), kept)
    for votes in (smaller.votes, masked.votes):
        assert (votes[:, removed] == 0).all()
        assert_close(votes.sum(1), torch.ones(4))
    assert_close(masked.votes, smaller.votes, atol=1e-6, rtol=0)
    assert not (smaller.logits.argmax(1) == removed).any()


@given(seeds, st.integers(1, 40), st.sampled_from([1.0, 16.0]), st.sampled_from([torch.float32, torch.float64]))
def test_the_votes_are_the_softmax_of_the_layer_s_logits(
    seed: int, samples: int, scale: float, dtype: torch.dtype
) -> None:
    layer, encodings, memory, labels = voting(seed, samples, scale=scale)
    layer, encodings, memory = layer.to(dtype), encodings.to(dtype), memory.to(dtype)
    reading = layer.read(encodings, layer.prepare(memory, labels))
    summed = torch.stack([reading.weights[:, labels == label].sum(1) for label in range(CLASSES)], dim=1)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert_close(reading.logits.softmax(1), summed, atol=tolerance, rtol=0)
    assert_close(reading.votes, summed, atol=tolerance, rtol=0)
    assert_close(layer(encodings, layer.prepare(memory, labels)), reading.logits, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_logarithm_of_votes_by_hand(dtype: torch.dtype) -> None:
    logits = vote_logits(torch.tensor([[0.75, 0.25, 0.0], [0.0, 1.0, 0.0]], dtype=dtype))
    assert logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    least = math.log(torch.finfo(logits.dtype).tiny)
    expected = [[math.log(0.75), math.log(0.25), least], [least, 0.0, least]]
    assert_close(logits, torch.tensor(expected, dtype=logits.dtype))
    assert logits.isfinite().all()
    # A thousand classes without a vote do not take any of it away.
    assert vote_logits(torch.eye(1000, dtype=dtype)[:1]).softmax(1)[0, 0] == 1


def test_gradients_of_votes_are_those_of_the_sum() -> None:
    weights, labels = torch.rand(3, 7, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 2, 0, 0, 3, 1])
    assert torch.autograd.gradcheck(lambda each: sum_by_label(each, labels, CLASSES), weights)
    (gradient,) = torch.autograd.grad(sum_by_label(weights, labels, CLASSES)[:, 0].sum(), weights)
    assert gradient.tolist() == [[1, 0, 0, 1, 1, 0, 0]] * 3
