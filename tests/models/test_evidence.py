"""Whether the memory decides: extremes whose scores are known, and one input at a time with its memory cut by hand."""

import pytest
import torch
from torch import Tensor

from memwrap.models.evidence import CURVE_INPUTS, REMOVED, evidence_scores
from memwrap.nn.layer import MemoryWrap
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.reading import MemoryLayer
from memwrap.nn.vote_layer import VoteLayer

CLASSES, LENGTH, SAMPLES = 3, 4, 12


def encodings(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def remembered(layer: MemoryLayer, count: int = SAMPLES, labels: Tensor | None = None) -> RememberedMemory:
    memory = RememberedMemory(
        torch.zeros(count, 1, 2, 2), torch.arange(count) % CLASSES if labels is None else labels, encodings(count, 1)
    )
    memory.prepare(layer)
    return memory


def new_layer(variant: str, scale: float = 4.0) -> MemoryLayer:
    torch.manual_seed(0)
    if variant in ("vote", "classifier"):
        decide = "vote" if variant == "vote" else "head"
        layer: MemoryLayer = VoteLayer(LENGTH, CLASSES, decide=decide, scale=scale)
    else:
        layer = MemoryWrap(LENGTH, CLASSES, variant, scale=scale)
    return layer.double().eval().requires_grad_(False)


def without_memory() -> MemoryWrap:
    """A layer that reads its input alone."""
    layer = new_layer("memory_wrap")
    assert isinstance(layer, MemoryWrap)
    layer.head.first.weight[:, -LENGTH:] = 0
    return layer


def test_a_layer_that_ignores_its_memory() -> None:
    layer = without_memory()
    scores = evidence_scores(layer, encodings(50), remembered(layer))
    assert (scores.survives_without_examples, scores.follows_memory, scores.follows_input) == (1, 0, 1)
    assert scores.deletion.area == pytest.approx(0, abs=1e-12)
    assert scores.deletion.strongest_first == pytest.approx(scores.deletion.random_order)


def test_an_attached_classifier_follows_its_input() -> None:
    layer = new_layer("classifier")
    scores = evidence_scores(layer, encodings(50), remembered(layer))
    assert (scores.survives_without_examples, scores.follows_memory, scores.follows_input) == (1, 0, 1)


@pytest.mark.parametrize("variant", ["only_memory", "vote"])
def test_what_reads_the_memory_alone_follows_it(variant: str) -> None:
    layer = new_layer(variant)
    scores = evidence_scores(layer, encodings(50), remembered(layer))
    assert (scores.follows_memory, scores.follows_input) == (1, 0)


def test_a_vote_does_not_survive_without_its_examples() -> None:
    layer = new_layer("vote")
    scores = evidence_scores(layer, encodings(50), remembered(layer))
    assert scores.survives_without_examples == 0
    assert scores.deletion.strongest_first[0] > 0.5
    assert scores.deletion.area > 0.1


def test_with_one_image_of_each_class_nothing_is_specific() -> None:
    layer = new_layer("vote", scale=1000.0)
    scores = evidence_scores(layer, encodings(50), remembered(layer, count=CLASSES))
    assert (scores.specificity, scores.samples_for_half) == (0, 1)


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "vote"])
def test_survival_is_that_of_inputs_one_by_one(variant: str) -> None:
    layer, inputs = new_layer(variant), encodings(40)
    memory = remembered(layer)
    classes, survived = memory.classes, 0
    assert classes is not None
    for row in inputs.split(1):
        chosen = int(layer.read(row, memory.prepared).logits.argmax())
        rest = memory.at((classes != chosen).nonzero().squeeze(1))
        rest.prepare(layer)
        survived += int(layer.read(row, rest.prepared).logits.argmax()) == chosen
    assert evidence_scores(layer, inputs, memory).survives_without_examples == survived / len(inputs)


def test_an_exchanged_memory_vector_goes_to_the_head() -> None:
    layer = new_layer("memory_wrap")
    assert isinstance(layer, MemoryWrap)
    memory, (own, other) = remembered(layer), encodings(2).split(1)
    vector = layer.read(other, memory.prepared).memory_vector
    expected = layer.head(torch.cat([own, vector], dim=1))
    torch.testing.assert_close(layer.exchange(own, layer.read(other, memory.prepared)), expected)


@pytest.mark.parametrize("variant", ["memory_wrap", "vote"])
def test_the_curve_is_that_of_smaller_memories(variant: str) -> None:
    layer, inputs = new_layer(variant), encodings(30)
    memory = remembered(layer)
    found = evidence_scores(layer, inputs, memory).deletion
    assert found.removed == list(REMOVED)
    for share, mean in zip(found.removed, found.strongest_first, strict=True):
        gone, probabilities = min(round(share * SAMPLES), SAMPLES - 1), []
        for row in inputs.split(1):
            chosen = int(layer.read(row, memory.prepared).logits.argmax())
            cosines = torch.nn.functional.cosine_similarity(row, memory.encodings)
            rest = memory.at(cosines.argsort(descending=True)[gone:])
            rest.prepare(layer)
            probabilities.append(float(layer.read(row, rest.prepared).logits.softmax(1)[0, chosen]))
        assert mean == pytest.approx(sum(probabilities) / len(probabilities))


def test_with_memory_and_predictions_of_one_class_nothing_can_be_exchanged() -> None:
    layer = new_layer("vote")
    scores = evidence_scores(layer, encodings(20), remembered(layer, labels=torch.ones(SAMPLES, dtype=torch.int64)))
    assert (scores.survives_without_examples, scores.follows_memory, scores.follows_input) == (None, None, None)


def test_a_memory_of_one_has_no_examples_to_remove() -> None:
    layer = new_layer("memory_wrap")
    scores = evidence_scores(layer, encodings(20), remembered(layer, count=1))
    assert (scores.survives_without_examples, scores.deletion.area, scores.samples_for_half) == (None, 0, 1)


def test_of_many_inputs_some_make_the_curve() -> None:
    layer, inputs = new_layer("vote"), encodings(3 * CURVE_INPUTS)
    memory = remembered(layer)
    some, every_third = (evidence_scores(layer, each, memory).deletion for each in (inputs, inputs[::3]))
    assert some.strongest_first == every_third.strongest_first
