"""The layer whose memory votes, against a slow rewrite; large memories, heads of few classes, and what it refuses."""

import copy
import re
from typing import Any

import entmax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from memwrap import InputError, MemoryWrap, NoMemoryError, NonFiniteError, VoteLayer
from memwrap.metrics import predict_classes
from memwrap.nn import reading as reading_module
from memwrap.nn.vote_layer import SCALE

FEATURES, CLASSES = 6, 4


def drawn(samples: int, inputs: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Encodings (B, D), memory (M, D) and labels (M,)."""
    generator = torch.Generator().manual_seed(seed)
    encodings, memory = torch.randn(inputs + samples, FEATURES, generator=generator).split([inputs, samples])
    return encodings, memory, torch.randint(CLASSES, (samples,), generator=generator)


def slowly(layer: VoteLayer, encoding: Tensor, memory: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of one input (D,): weights (M,), votes (C,), memory vector and largest cosine."""
    project = nn.Identity() if layer.projection is None else copy.deepcopy(layer.projection)
    query, keys = project(encoding), project(memory)
    # A squared length has an epsilon added, as in the published code.
    lengths = [float((each.square().sum() + 1e-6).sqrt()) for each in (query, *keys)]
    cosines = torch.stack(
        [(query * key).sum() / lengths[0] / length for key, length in zip(keys, lengths[1:], strict=True)]
    )
    weights = entmax.sparsemax(layer.similarity.scale * cosines, dim=0)
    votes = torch.zeros(layer.num_classes, dtype=weights.dtype)
    for weight, label in zip(weights, labels.tolist(), strict=True):
        votes[label] += weight
    vector = sum((weight * key for weight, key in zip(weights, keys, strict=True)), start=torch.zeros_like(query))
    return weights, votes, vector, cosines.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, SCALE])
@pytest.mark.parametrize("project", [None, 3])
@pytest.mark.parametrize("samples", [1, 2, 50])
def test_reading_is_what_a_slow_rewrite_gives(
    samples: int, project: int | None, scale: float, dtype: torch.dtype
) -> None:
    layer = VoteLayer(FEATURES, CLASSES, project=project, scale=scale).to(dtype).requires_grad_(False)
    encodings, memory, labels = drawn(samples)
    encodings, memory = encodings.to(dtype), memory.to(dtype)
    prepared = layer.prepare(memory, labels)
    reading = layer.read(encodings, prepared)
    close = {"atol": 1e-5 if dtype == torch.float32 else 1e-12, "rtol": 0}
    for row, encoding in enumerate(encodings):
        weights, votes, vector, cosine = slowly(layer, encoding, memory, labels)
        assert_close(reading.weights[row], weights, **close)
        assert_close(reading.votes[row], votes, **close)
        assert_close(reading.memory_vector[row], vector, **close)
        assert_close(reading.similarity[row], cosine, **close)
        assert_close(reading.logits[row].softmax(0), votes, **close)
        assert_close(reading.head_logits[row], layer.head.weight @ encoding + layer.head.bias, **close)
    assert_close(layer(encodings, prepared), reading.logits, atol=0, rtol=0)
    assert_close(layer(encodings), reading.head_logits, atol=0, rtol=0)
    assert {each.dtype for each in vars(reading).values()} == {dtype}


def test_a_vote_by_hand() -> None:
    layer = VoteLayer(2, 3, scale=1.0)
    with torch.no_grad():
        layer.head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
        layer.head.bias.copy_(torch.tensor([0.0, 0.5, 0.0]))
    memory = torch.tensor([[4.0, 3.0], [3.0, 4.0], [4.0, -3.0], [0.0, 5.0], [-5.0, 0.0]])
    # Cosines .8, .6, .8, 0, -1; the threshold is (.8 + .8 + .6 - 1) / 3 = .4.
    reading = layer.read(torch.tensor([[5.0, 0.0]]), layer.prepare(memory, torch.tensor([2, 1, 2, 0, 0])))
    assert_close(reading.weights, torch.tensor([[0.4, 0.2, 0.4, 0.0, 0.0]]), atol=1e-6, rtol=0)
    assert_close(reading.votes, torch.tensor([[0.0, 0.2, 0.8]]), atol=1e-6, rtol=0)
    assert reading.votes[0, 0] == 0
    assert_close(reading.similarity, torch.tensor([0.8]))
    assert_close(reading.head_logits, torch.tensor([[5.0, 0.5, 5.0]]))


@pytest.mark.parametrize("shape", [(20,), (5, 20)])
def test_samples_that_are_removed_have_no_vote(shape: tuple[int, ...]) -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES), drawn(20)
    keep = torch.rand(shape) > 0.5
    keep[..., 0] = True
    reading = layer.read(encodings, layer.prepare(memory, labels), keep)
    for row, encoding in enumerate(encodings):
        kept = keep if keep.ndim == 1 else keep[row]
        alone = layer.read(encoding.unsqueeze(0), layer.prepare(memory[kept], labels[kept]))
        assert_close(reading.votes[row], alone.votes[0])
        assert_close(reading.logits[row], alone.logits[0])
        assert_close(reading.similarity[row], alone.similarity[0])


# Large memories


@pytest.mark.parametrize("project", [None, 3])
@pytest.mark.parametrize(("scale", "tried"), [(1.0, 2), (1.0, 64), (SCALE, 2), (SCALE, 256)])
def test_a_large_memory_votes_as_a_plain_one(
    scale: float, tried: int, project: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = VoteLayer(FEATURES, CLASSES, project=project, scale=scale)
    encodings, memory, labels = drawn(300, inputs=40)
    prepared = layer.prepare(memory, labels)
    plain = layer.read(encodings, prepared)
    used = int((plain.weights > 0).sum(1).max())
    asked: list[int] = []
    forward_top = VoteLayer._forward_top

    def noted(self: VoteLayer, encodings: Tensor, memory: Any, tried: int | None = None) -> Tensor:
        asked.append(tried or reading_module.FIRST_TRIED)
        return forward_top(self, encodings, memory, tried)

    monkeypatch.setattr(VoteLayer, "_forward_top", noted)
    monkeypatch.setattr(reading_module, "LARGE_MEMORY", 300)
    monkeypatch.setattr(reading_module, "FIRST_TRIED", tried)
    with torch.no_grad():
        logits = layer(encodings, prepared)
        assert_close(logits.exp(), plain.votes.detach(), atol=1e-6, rtol=0)
        assert_close(layer(encodings[:1], prepared), logits[:1])
    assert asked[0] == tried
    assert (len([each for each in asked if each > tried]) > 0) == (used > tried)
    asked.clear()
    assert_close(layer(encodings.requires_grad_(), prepared).exp(), plain.votes, atol=1e-6, rtol=0)
    assert asked == []  # with gradients all scores are needed


def test_a_large_memory_is_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES, scale=4.0), drawn(300)
    prepared = layer.prepare(memory, labels)
    monkeypatch.setattr(reading_module, "LARGE_MEMORY", 300)
    monkeypatch.setattr("memwrap.nn.similarity.SCORES_AT_ONCE", 5 * 70)  # five inputs, 70 samples
    with torch.no_grad():
        assert_close(layer(encodings, prepared).exp(), layer.read(encodings, prepared).votes, atol=1e-6, rtol=0)


# The head


def test_a_head_that_knows_fewer_classes_than_the_memory() -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES, head_classes=2), drawn(30)
    reading = layer.read(encodings, layer.prepare(memory, labels))
    assert (reading.head_logits.shape, reading.votes.shape, reading.logits.shape) == ((5, 2), (5, 4), (5, 4))
    assert layer(encodings).shape == (5, 2)
    layer.add_classes(3)
    labels[:10] = 6
    reading = layer.read(encodings, layer.prepare(memory, labels))
    assert reading.votes.shape == (5, 7)
    assert_close(reading.votes[:, 6], reading.weights[:, :10].sum(1))
    assert layer.settings()["num_classes"] == 7
    assert layer.settings()["head_classes"] == 2


@pytest.mark.filterwarnings("error")
def test_without_a_head_the_vote_is_all_there_is() -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES, head_classes=0), drawn(30)
    reading = layer.read(encodings, layer.prepare(memory, labels))
    assert reading.head_logits is None
    assert_close(reading.logits.softmax(1), reading.votes)
    with pytest.raises(NoMemoryError, match="no head"):
        layer(encodings)
    assert layer.double().reference.dtype == torch.float64
    assert sum(parameter.numel() for parameter in layer.parameters()) == 0


@pytest.mark.parametrize("project", [None, 3])
def test_a_head_that_decides_does_not_read_the_memory(project: int | None) -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES, decide="head", project=project), drawn(30)
    voting = VoteLayer(FEATURES, CLASSES, project=project)
    voting.load_state_dict(layer.state_dict())
    assert (layer.decided_by, voting.decided_by) == ("classifier", "vote")
    prepared = layer.prepare(memory, labels)
    reading, expected = layer.read(encodings, prepared), voting.read(encodings, prepared)
    assert torch.equal(reading.logits, layer.head(encodings))
    assert torch.equal(reading.head_logits, layer.head(encodings))
    assert torch.equal(layer(encodings, prepared), layer.head(encodings))
    assert torch.equal(layer(encodings), layer.head(encodings))
    for name in ("votes", "weights", "memory_vector", "similarity"):
        assert_close(getattr(reading, name), getattr(expected, name), atol=0, rtol=0)
    assert (predict_classes(reading.logits) != predict_classes(reading.votes)).any(), "else nothing is tested"


def test_a_classifier_s_own_head_is_taken_as_it_is() -> None:
    linear, convolution = nn.Linear(FEATURES, CLASSES), nn.Conv2d(FEATURES, CLASSES, 1)
    with torch.no_grad():
        convolution.weight.copy_(linear.weight[..., None, None])
        convolution.bias.copy_(linear.bias)
    encodings = torch.randn(5, FEATURES)
    for head in (linear, convolution, nn.Sequential(nn.ReLU(), linear)):
        layer = VoteLayer(FEATURES, CLASSES, decide="head", head=head)
        assert layer.head is head
        assert layer.is_attached
        assert layer(encodings).shape == (5, CLASSES)
    assert torch.equal(
        VoteLayer(FEATURES, CLASSES, head=convolution)(encodings), convolution(encodings[..., None, None])[..., 0, 0]
    )
    assert_close(VoteLayer(FEATURES, CLASSES, head=convolution)(encodings), linear(encodings))


# As a layer among layers


@given(st.sampled_from([None, 3]), st.sampled_from(["vote", "head"]), st.sampled_from([None, 2, 0]), st.floats(0.1, 50))
def test_settings_build_the_same_layer(
    project: int | None, decide: str, head_classes: int | None, scale: float
) -> None:
    if decide == "head" and head_classes == 0:
        return
    layer = VoteLayer(FEATURES, CLASSES, project, scale, decide, head_classes=head_classes)
    settings = layer.settings()
    assert (settings.pop("variant"), settings.pop("attached")) == ("vote", False)
    twin = VoteLayer(**settings)
    twin.load_state_dict(layer.state_dict())
    assert twin.settings() == layer.settings()
    encodings, memory, labels = drawn(9)
    one, other = (each.read(encodings, each.prepare(memory, labels)) for each in (layer, twin))
    assert_close(one.logits, other.logits, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("project", [None, 3])
def test_in_half_precision_the_vote_is_exact_for_the_rounded_encodings(project: int | None, dtype: torch.dtype) -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES, project=project).to(dtype), drawn(40)
    exact = copy.deepcopy(layer).float()
    reading = layer.read(encodings.to(dtype), layer.prepare(memory.to(dtype), labels))
    expected = exact.read(encodings.to(dtype).float(), exact.prepare(memory.to(dtype).float(), labels))
    assert reading.head_logits.dtype == dtype
    assert reading.votes.dtype == reading.logits.dtype == torch.float32
    # A projected memory is stored in full precision, so that nothing is rounded twice.
    assert_close(reading.votes, expected.votes, atol=1e-5, rtol=0)
    assert_close(reading.similarity, expected.similarity, atol=1e-5, rtol=0)


def test_the_vote_is_exact_under_autocast() -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES, project=3), drawn(40)
    expected = layer.read(encodings, layer.prepare(memory, labels))
    with torch.autocast("cpu", torch.bfloat16):
        reading = layer.read(encodings, layer.prepare(memory, labels))
    assert_close(reading.votes, expected.votes, atol=0, rtol=0)


def test_a_head_is_trained_without_a_memory() -> None:
    layer, (encodings, _, labels) = VoteLayer(FEATURES, CLASSES), drawn(5)
    nn.functional.cross_entropy(layer(encodings), labels).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in layer.parameters())


def test_a_vote_has_a_gradient_to_the_input_and_the_projection() -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES, project=3, scale=1.0).double(), drawn(9)
    encodings = encodings.double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda each: layer.read(each, layer.prepare(memory.double(), labels)).votes, encodings
    )
    votes = layer.read(encodings, layer.prepare(memory.double(), labels)).votes
    votes.square().sum().backward()
    assert layer.projection.weight.grad.abs().sum() > 0


# What it refuses


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"in_features": 0}, "in_features is 0"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"project": 0}, "project is 0"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"decide": "memory"}, "decide is 'memory'; expected 'vote' or 'head'"),
        ({"head_classes": 5}, "head_classes is 5 with 4 classes"),
        ({"head_classes": -1}, "head_classes is -1"),
        ({"head_classes": 0, "decide": "head"}, "head_classes is 0"),
        ({"head_classes": 1.5}, "head_classes is a float"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        VoteLayer(**{"in_features": FEATURES, "num_classes": CLASSES, **options})


def test_numbers_of_numpy_and_torch_become_python_s() -> None:
    layer = VoteLayer(np.int64(6), torch.tensor(4), project=np.int32(3), head_classes=np.int64(2))
    assert all(type(value) in (int, float, str, bool) for value in layer.settings().values())


@pytest.mark.parametrize("decide", ["vote", "head"])
def test_a_memory_without_labels_is_refused(decide: str) -> None:
    layer, (encodings, memory, _) = VoteLayer(FEATURES, CLASSES, decide=decide), drawn(5)
    for unlabelled in (memory, layer.prepare(memory), "batch"):
        for use in (layer, layer.read):
            with pytest.raises(InputError, match=re.escape("model.remember(images, labels)")):
                use(encodings, unlabelled)


@pytest.mark.parametrize(
    ("encodings", "words"),
    [
        (torch.randn(5, FEATURES + 1), "encodings has shape (5, 7)"),
        (torch.randn(FEATURES), "encodings has shape (6,)"),
        (torch.zeros(5, FEATURES, dtype=torch.int64), "encodings has dtype torch.int64"),
        (torch.randn(0, FEATURES), "encodings is empty"),
    ],
)
def test_encodings_that_cannot_be_compared_are_refused(
    encodings: Tensor, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, (_, memory, labels) = VoteLayer(FEATURES, CLASSES), drawn(9)
    prepared = layer.prepare(memory, labels)
    for large in (False, True):
        monkeypatch.setattr(reading_module, "LARGE_MEMORY", 9 if large else 10)
        for use in (layer, layer.read):
            with pytest.raises(InputError, match=re.escape(words)):
                use(encodings, prepared)
    with pytest.raises(InputError, match=re.escape(words)):
        layer(encodings)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1, 2], "labels are a list"),
        (torch.tensor([0, 1]), "memory holds 3 images but 2 labels"),
        (torch.tensor([0, 1, CLASSES]), "labels go from 0 to 4"),
        (torch.tensor([0, -1, 1]), "labels go from -1 to 1"),
        (torch.tensor([0.0, 1.0, 2.0]), "dtype torch.float32"),
    ],
)
def test_labels_that_name_no_class_are_refused(labels: Any, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        VoteLayer(FEATURES, CLASSES).prepare(torch.randn(3, FEATURES), labels)


def test_labels_of_a_small_type_vote_like_others() -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES), drawn(9)
    small = layer.read(encodings, layer.prepare(memory, labels.to(torch.uint8)))
    assert_close(small.votes, layer.read(encodings, layer.prepare(memory, labels)).votes, atol=0, rtol=0)


def test_numbers_that_are_not_finite_do_not_stay_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (encodings, memory, labels) = VoteLayer(FEATURES, CLASSES), drawn(9)
    prepared, bad = layer.prepare(memory, labels), encodings.clone()
    bad[3, 1] = torch.nan
    for large in (False, True):
        monkeypatch.setattr(reading_module, "LARGE_MEMORY", 9 if large else 10)
        for use in (layer, layer.read):
            with pytest.raises(NonFiniteError, match=re.escape("(the first is number 3)")):
                use(bad, prepared)
    with pytest.raises(NonFiniteError, match=re.escape("encodings: 1 of 5 vectors")):
        layer(bad)
    memory = memory.clone()
    memory[4, 0] = torch.inf
    with pytest.raises(NonFiniteError, match=re.escape("memory: 1 of 9 vectors")):
        layer.prepare(memory, labels)
    with torch.no_grad():
        layer.head.bias[0] = torch.nan
    with pytest.raises(NonFiniteError, match="logits of 5 of 5"):
        layer.read(encodings, prepared)


def test_a_head_that_reads_the_memory_gives_votes_next_to_it() -> None:
    """Of its labels, where they are known; they change nothing of what it computes."""
    layer, (encodings, memory, labels) = MemoryWrap(FEATURES, CLASSES), drawn(30)
    labelled, unlabelled = (layer.read(encodings, each) for each in (layer.prepare(memory, labels), memory))
    assert unlabelled.votes is None
    assert labelled.head_logits is None
    assert labelled.similarity is None
    for label in range(CLASSES):
        assert_close(labelled.votes[:, label], unlabelled.weights[:, labels == label].sum(1))
    assert_close(labelled.logits, unlabelled.logits)
