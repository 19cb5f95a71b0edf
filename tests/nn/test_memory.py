"""The remembered memory: predictions of its samples and doubts about inputs, against loops; parts and sums of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from memwrap import InputError, MemoryWrap, RememberedMemory, Transform, VoteLayer
from memwrap.nn.reading import MemoryLayer

FEATURES, CLASSES, SAMPLES = 5, 3, 14
KINDS = ("head", "vote", "vote of more classes", "vote without a head", "classifier")


def layer_of(kind: str) -> MemoryLayer:
    """In double precision, so that one by one and together agree."""
    if kind == "head":
        layer: MemoryLayer = MemoryWrap(FEATURES, CLASSES)
    elif kind == "classifier":
        layer = VoteLayer(FEATURES, CLASSES, scale=1.0, decide="head")
    else:
        known = {"vote": CLASSES, "vote of more classes": 2, "vote without a head": 0}[kind]
        layer = VoteLayer(FEATURES, CLASSES, scale=1.0, head_classes=known)
    layer = layer.double().requires_grad_(False)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def remembered(layer: MemoryLayer, samples: int = SAMPLES) -> RememberedMemory:
    encodings = torch.randn(samples, FEATURES, dtype=torch.float64)
    memory = RememberedMemory(torch.randn(samples, 1, 2, 2), torch.randint(CLASSES, (samples,)), encodings)
    memory.prepare(layer)
    return memory


def predicted_alone(layer: MemoryLayer, memory: RememberedMemory, row: int, keep: Tensor) -> int:
    """The class of one sample, by a layer that is given the others that are kept."""
    others = keep.clone()
    others[row] = False
    prepared = layer.prepare(memory.encodings[others], memory.labels[others])
    return int(layer(memory.encodings[row : row + 1], prepared).argmax())


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_a_loop_that_leaves_one_out(kind: str) -> None:
    layer = layer_of(kind)
    memory, everything = remembered(layer), torch.ones(SAMPLES, dtype=torch.bool)
    expected = [predicted_alone(layer, memory, row, everything) for row in range(SAMPLES)]
    assert len(set(expected)) > 1
    some = torch.tensor([9, 2, 9, 0])
    assert memory.predictions_of(some).tolist() == [expected[row] for row in some.tolist()]
    assert memory.predictions.tolist() == expected
    assert memory.predictions.tolist() == expected  # as they are known now
    assert_close(memory.logits_without(some).argmax(1), memory.predictions[some])


@pytest.mark.parametrize("kind", KINDS)
def test_with_part_of_the_memory_removed_predictions_are_those_of_the_rest(kind: str) -> None:
    layer = layer_of(kind)
    memory, keep = remembered(layer), torch.arange(SAMPLES) % 3 != 1
    whole = memory.predictions.clone()
    rows = torch.tensor([5, 0, 5, 11])
    expected = [predicted_alone(layer, memory, row, keep) for row in rows.tolist()]
    assert memory.predictions_of(rows, keep).tolist() == expected
    assert torch.equal(memory.predictions, whole)  # those of the whole memory stay
    only = torch.arange(SAMPLES) == 3
    assert memory.predictions_of(torch.tensor([3]), only) is None


@pytest.mark.parametrize("kind", KINDS)
def test_few_are_predicted_at_a_time_where_there_is_little_room(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = remembered(layer_of(kind))
    asked: list[int] = []
    logits_without = RememberedMemory.logits_without

    def noted(memory: RememberedMemory, rows: Tensor, keep: Tensor | None = None) -> Tensor:
        asked.append(len(rows))
        return logits_without(memory, rows, keep)

    monkeypatch.setattr(RememberedMemory, "logits_without", noted)
    expected = memory.predictions.tolist()
    twin = RememberedMemory(**memory.tensors())
    twin.prepare(memory._layer[0])
    room = 8 * max(SAMPLES, memory._layer[0].hidden_width)
    monkeypatch.setattr("memwrap.nn.memory.SCORES_AT_ONCE", 4 * room)
    asked.clear()
    assert twin.predictions.tolist() == expected
    assert asked == [4, 4, 4, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_of_one_has_classes_only_where_labels_count(kind: str) -> None:
    layer = layer_of(kind)
    memory = remembered(layer, samples=1)
    assert memory.predictions is None
    assert memory.predictions_of(torch.tensor([0, 0])) is None
    reading = layer.read(torch.randn(4, FEATURES, dtype=torch.float64), memory.prepared)
    if kind == "head":
        assert memory.classes is None
        assert memory.is_uncertain(reading) is None
    else:
        assert memory.classes.tolist() == memory.labels.tolist()
        assert memory.is_uncertain(reading).shape == (4,)


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_doubts_are_those_of_a_loop(kind: str, removed: bool) -> None:
    layer = layer_of(kind)
    memory = remembered(layer)
    keep = torch.arange(SAMPLES) % 3 != 1 if removed else None
    reading = layer.read(torch.randn(60, FEATURES, dtype=torch.float64), memory.prepared, keep)
    kept = torch.ones(SAMPLES, dtype=torch.bool) if keep is None else keep
    expected = []
    for row in range(60):
        strongest = int(reading.weights[row].argmax())
        own = predicted_alone(layer, memory, strongest, kept) if kind == "head" else int(memory.labels[strongest])
        doubt = own != int(reading.logits[row].argmax())
        if reading.head_logits is not None:
            head, vote = int(reading.head_logits[row].argmax()), int(reading.votes[row].argmax())
            doubt |= head != vote and vote < reading.head_logits.shape[1]
        expected.append(doubt)
    assert 0 < sum(expected) < 60
    assert memory.is_uncertain(reading, keep).tolist() == expected


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=20))
def test_samples_are_taken_in_any_order_and_joined_again(seed: int, rows: list[int]) -> None:
    torch.manual_seed(seed)
    memory = remembered(layer_of("vote"))
    memory.names = tuple(f"{number}.png" for number in range(SAMPLES))
    part = memory.at(torch.tensor(rows))
    assert len(part) == len(rows)
    assert part.names == tuple(f"{row}.png" for row in rows)
    whole = memory.joined(part)
    assert whole.names == (*memory.names, *part.names)
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, torch.cat([memory.tensors()[name], memory.tensors()[name][rows]]))


def test_images_of_another_kind_are_not_joined() -> None:
    memory = remembered(layer_of("vote"))
    for images in (torch.randn(2, 1, 2, 3), torch.zeros(2, 1, 2, 2, dtype=torch.uint8)):
        with pytest.raises(InputError, match="expected the same"):
            memory.joined(RememberedMemory(images, memory.labels[:2], memory.encodings[:2]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_pixels_become_inputs_by_the_transform_and_inputs_stay(dtype: torch.dtype) -> None:
    transform = Transform((3, 4, 4), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    pixels, rows = torch.randint(256, (6, 3, 4, 4), dtype=torch.uint8), torch.tensor([4, 1])
    encodings = torch.randn(6, FEATURES, dtype=dtype)
    by_pixels = RememberedMemory(pixels, torch.zeros(6, dtype=torch.int64), encodings)
    assert torch.equal(by_pixels.inputs(rows, lambda: transform), transform(pixels[rows]).to(dtype))

    def no_transform() -> Transform:
        raise AssertionError("asked for")

    by_inputs = RememberedMemory(transform(pixels), torch.zeros(6, dtype=torch.int64), encodings)
    assert torch.equal(by_inputs.inputs(rows, no_transform), transform(pixels[rows]))


def test_votes_are_the_weights_by_label() -> None:
    memory = remembered(layer_of("head"))
    weights = torch.rand(4, SAMPLES, dtype=torch.float64)
    for label in range(CLASSES):
        assert_close(memory.votes(weights)[:, label], weights[:, memory.labels == label].sum(1))
