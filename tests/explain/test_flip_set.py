"""The smallest set whose removal changes a prediction: against all subsets, by hand, greedily, within its limits."""

from itertools import combinations

import pytest
import torch
from torch import Tensor, tensor

import memwrap.explain.ablation
import memwrap.explain.flip_set
from memwrap import MemoryWrap, StaleMemoryError
from memwrap.explain.flip_set import FlipSet, find_flip_set
from memwrap.metrics import predict_classes
from tests.worlds import asked, class_without, drawn, hand_made

SEEDS = range(150)


def found(layer: MemoryWrap, encoding: Tensor, memory: Tensor) -> FlipSet:
    """For one input (1, D)."""
    return find_flip_set(asked(layer, encoding, memory), 0, int(predict_classes(layer(encoding, memory))))


def smallest(layer: MemoryWrap, encoding: Tensor, memory: Tensor, most: int) -> tuple[tuple[int, ...], int] | None:
    """By trying all sets of up to so many samples: the first one in the documented order, and the class without it."""
    reading = layer.read(encoding, memory)
    strongest_first = reading.weights[0].argsort(descending=True, stable=True).tolist()
    for size in range(1, min(most, len(memory) - 1) + 1):
        sets = list(combinations(strongest_first, size))
        for samples, other in zip(sets, class_without(layer, encoding, memory, sets), strict=True):
            if other != int(predict_classes(reading.logits)):
                return samples, other
    return None


def small_world(seed: int) -> tuple[MemoryWrap, Tensor, Tensor]:
    """One input and six to eight samples; layers of all kinds in turn."""
    variant, head = ("memory_wrap", "only_memory")[seed % 2], ("mlp", "linear")[seed // 2 % 2]
    return drawn(seed, 1, 6 + seed % 3, variant, head)


# All subsets


def test_up_to_three_samples_it_is_the_first_of_all_subsets() -> None:
    kinds = set()
    for seed in SEEDS:
        world = small_world(seed)
        flip, expected = found(*world), smallest(*world, most=3)
        if expected is not None:
            indices, other = expected
            assert flip == FlipSet(indices, other, proven=True, tried=len(indices) - 1), seed
            kinds.add((len(indices), world[0].variant, world[0].head_kind))
        else:
            assert flip.tried == 3, seed
    assert len(kinds) == 3 * 2 * 2  # sets of one, two and three samples, for each kind of layer


def test_beyond_three_samples_it_is_a_set_that_cannot_spare_any() -> None:
    sizes = []
    for seed in SEEDS:
        layer, encoding, memory = small_world(seed)
        flip = found(layer, encoding, memory)
        if flip.tried < 3 or flip.indices is None:
            continue
        assert len(flip.indices) >= 4
        fewer = [flip.indices[:place] + flip.indices[place + 1 :] for place in range(len(flip.indices))]
        other, *kept = class_without(layer, encoding, memory, [flip.indices, *fewer])
        prediction = int(predict_classes(layer(encoding, memory)))
        assert flip.prediction == other != prediction, seed
        assert set(kept) == {prediction}, seed
        fewest = len(smallest(layer, encoding, memory, most=7)[0])
        assert len(flip.indices) >= fewest
        assert flip.proven == (len(flip.indices) == 4), seed
        assert not flip.proven or fewest == 4, seed
        sizes.append(len(flip.indices))
    assert set(sizes) >= {4, 5}


def test_where_no_set_changes_the_prediction_none_is_found() -> None:
    unchanged = [seed for seed in SEEDS if smallest(*small_world(seed), most=7) is None]
    assert len(unchanged) > 10
    for seed in unchanged:
        assert found(*small_world(seed)) == FlipSet(None, None, proven=False, tried=3)


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_of_a_small_memory_all_sets_are_tried(samples: int) -> None:
    outcomes = set()
    for seed in SEEDS:
        world = drawn(seed, 1, samples)
        flip, expected = found(*world), smallest(*world, most=samples - 1)
        assert flip.proven
        assert (flip.indices, flip.prediction) == (expected or (None, None)), seed
        if expected is None:
            assert flip.tried == samples - 1
        outcomes.add(flip.indices and len(flip.indices))
    assert outcomes == {None, *range(1, samples)}


def test_each_input_of_a_batch_has_its_own() -> None:
    layer, encodings, memory = drawn(3, 6, 7)
    ablation, predictions = asked(layer, encodings, memory), predict_classes(layer(encodings, memory)).tolist()
    together = [find_flip_set(ablation, row, predictions[row]) for row in range(6)]
    assert together == [found(layer, encodings[row : row + 1], memory) for row in range(6)]
    assert len({flip.indices for flip in together}) > 2


@pytest.mark.parametrize("numbers", [1, 30])
def test_it_is_the_same_in_small_parts(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [found(*small_world(seed)) for seed in SEEDS[:40]]
    monkeypatch.setattr(memwrap.explain.ablation, "NUMBERS_AT_ONCE", numbers)
    assert [found(*small_world(seed)) for seed in SEEDS[:40]] == expected


# Samples that enter


def test_a_sample_that_enters_when_another_is_out_by_hand() -> None:
    # Similarities 1, -.6, -.8: sample 0 has all the weight, and its logits are (5, 0): class 0.
    # Without it: t = -1.2, .6 of (5, 0) and .4 of (-4, 3) are (1.4, 1.2), still class 0.
    # Without 0 and 1, (-4, 3): class 1. Without 0 and 2, (5, 0).
    layer = hand_made([[1, 2, 0], [0, 0, 1]])
    encoding, memory = tensor([[5.0, 0, 0]]).double(), tensor([[5.0, 0, 0], [-3, 4, 0], [-4, 0, 3]]).double()
    assert layer.read(encoding, memory).weights.tolist() == [[1, 0, 0]]
    assert found(layer, encoding, memory) == FlipSet((0, 1), 1, proven=True, tried=1)


# Worlds in which the first of the smallest sets holds a sample that has a weight only once others are out.
PINNED = {42: (4, 0, 3), 48: (0, 5, 2), 71: (0, 7, 1), 73: (6, 3, 0), 101: (3, 4), 128: (7, 6), 140: (7, 0)}


@pytest.mark.parametrize("seed", PINNED)
def test_a_smallest_set_may_hold_samples_without_weight(seed: int) -> None:
    layer, encoding, memory = small_world(seed)
    flip = found(layer, encoding, memory)
    assert flip.indices == PINNED[seed] == smallest(layer, encoding, memory, most=3)[0]
    assert 0 in layer.read(encoding, memory).weights[0, list(flip.indices)]


# Order


def test_of_several_sets_the_strongest_comes_first() -> None:
    # Similarities .6, .8, .8, t = .4: .2 (3, 4) + .4 (4, 3) + .4 (4, -3) = (3.8, .8), logits (.8, .38).
    # Without 0: .5 (4, 3) + .5 (4, -3) = (4, 0), logits (0, .4): class 1.
    # Without 1: .4 (3, 4) + .6 (4, -3) = (3.6, -.2), logits (-.2, .36): class 1 as well, and 1 is stronger than 0.
    layer, memory = hand_made([[0, 1], [0.1, 0]]), tensor([[3.0, 4], [4, 3], [4, -3]]).double()
    assert found(layer, tensor([[5.0, 0]]).double(), memory) == FlipSet((1,), 1, proven=True, tried=0)


def test_of_equally_strong_sets_the_lower_indices_come_first() -> None:
    # All similarities are .8. With y as their mean second coordinate, logits are (-y, .4): all four give y = -1.5, one
    # of the last three less -1, without 0 -3, and two of the last three less 0: class 1.
    layer, memory = hand_made([[0, -1], [0.1, 0]]), tensor([[4.0, 3], [4, -3], [4, -3], [4, -3]]).double()
    assert found(layer, tensor([[5.0, 0]]).double(), memory) == FlipSet((1, 2), 1, proven=True, tried=1)


# The greedy search


def test_a_set_can_spare_no_sample_even_after_others_were_spared() -> None:
    """What was needed beside a needless sample may be needless without it; these worlds have such samples."""
    searched = 0
    for seed in range(60):
        layer, encoding, memory = drawn(seed, 1, 12)
        flip = found(layer, encoding, memory)
        if flip.indices is None or flip.tried < 3:
            continue
        searched += 1
        fewer = [flip.indices[:place] + flip.indices[place + 1 :] for place in range(len(flip.indices))]
        assert set(class_without(layer, encoding, memory, fewer)) == {int(predict_classes(layer(encoding, memory)))}, (
            seed
        )
    assert searched > 15


def test_a_greedy_set_comes_in_the_order_of_weights_and_then_of_the_memory() -> None:
    ties = 0
    for seed in range(60):
        layer, encoding, memory = drawn(seed, 1, 12)
        flip, weights = found(layer, encoding, memory), layer.read(encoding, memory).weights[0].tolist()
        if flip.indices is None or flip.tried < 3:
            continue
        assert list(flip.indices) == sorted(flip.indices, key=lambda index: (-weights[index], index)), seed
        ties += sum(weights[index] == 0 for index in flip.indices) > 1
    assert ties > 5


def greedy_steps(layer: MemoryWrap, encoding: Tensor, memory: Tensor) -> list[int] | None:
    """Samples taken out one by one, slowly, each time the used one that costs most; None if the class stays."""
    prediction, removed = int(predict_classes(layer(encoding, memory))), []
    while len(removed) < len(memory) - 1:
        keep = torch.ones(len(memory), dtype=torch.bool)
        keep[removed] = False
        costs = {}
        for index in layer.read(encoding, memory, keep).weights[0].nonzero().flatten().tolist():
            fewer = keep & (torch.arange(len(memory)) != index)
            costs[index] = layer.read(encoding, memory, fewer).logits.softmax(1)[0, prediction].item()
        removed.append(min(costs, key=costs.get))
        if class_without(layer, encoding, memory, [removed]) != [prediction]:
            return removed
    return None


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 11, 18, 23, 77, 85, 86, 95, 111])
def test_a_greedy_set_is_what_slow_steps_find_less_the_weakest_that_it_can_spare(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memwrap.explain.flip_set, "EXACT_SIZE", 0)
    world = drawn(seed, 1, 12)
    steps, reading = greedy_steps(*world), world[0].read(*world[1:])
    left = sorted(steps or [], key=lambda index: (-reading.weights[0, index].item(), index))
    while len(left) > 1:
        fewer = [[other for other in left if other != index] for index in left]
        spared = [rest for rest in fewer if class_without(*world, [rest]) != predict_classes(reading.logits).tolist()]
        if not spared:
            break
        left = spared[-1]
    assert (len(left) < len(steps or [])) == (seed > 10)  # the later worlds are chosen so
    assert found(*world).indices == (tuple(left) or None)
    assert (found(*world).proven, found(*world).tried) == (len(left) == 1, 0)


# Limits


def unmoved(samples: int) -> tuple[MemoryWrap, Tensor, Tensor]:
    """Samples that all have a weight whichever others are out, and a head that does not look at them."""
    return (
        hand_made([[1, 0, 0, 0], [0, 1, 0, 0]], "memory_wrap"),
        tensor([[4.0, 3]]).double(),
        torch.ones(samples, 2).double(),
    )


@pytest.mark.parametrize(("most", "tried"), [(20, 3), (19, 2), (15, 2), (14, 1), (6, 1), (5, 0), (0, 0)])
def test_sizes_of_which_there_are_too_many_sets_are_not_tried(
    most: int, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_SETS", most)
    # Six samples make 6 sets of one, 15 of two, 20 of three; each is grown in as many ways as it has samples.
    assert found(*unmoved(6)) == FlipSet(None, None, proven=False, tried=tried)


@pytest.mark.parametrize(("most", "proven", "tried"), [(6, True, 3), (5, False, 1)])
def test_nothing_is_proven_of_a_small_memory_unless_all_sets_were_tried(
    most: int, proven: bool, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_SETS", most)
    assert found(*unmoved(4)) == FlipSet(None, None, proven=proven, tried=tried)


def test_sets_count_once_however_they_are_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the world by hand above, where only sample 0 has a weight: two sets of two, each grown in one way."""
    layer = hand_made([[1, 2, 0], [0, 0, 1]])
    world = layer, tensor([[5.0, 0, 0]]).double(), tensor([[5.0, 0, 0], [-3, 4, 0], [-4, 0, 3]]).double()
    searched: list[int] = []
    greedy = memwrap.explain.flip_set._greedy
    monkeypatch.setattr(memwrap.explain.flip_set, "_greedy", lambda *given: (searched.append(1), greedy(*given))[1])
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_SETS", 2)
    assert found(*world) == FlipSet((0, 1), 1, proven=True, tried=1)
    assert not searched
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_SETS", 1)
    assert found(*world) == FlipSet((0, 1), 1, proven=True, tried=1), "as no single one does"
    assert searched


def test_sets_are_no_longer_grown_once_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_SETS", 30)
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_REMOVED", 0)
    monkeypatch.setattr(memwrap.explain.ablation, "NUMBERS_AT_ONCE", 1)
    weighed: list[int] = []
    read = memwrap.explain.ablation.Ablation.read
    monkeypatch.setattr(
        memwrap.explain.ablation.Ablation,
        "read",
        lambda self, inputs, removed: (weighed.append(removed.shape[1]), read(self, inputs, removed))[1],
    )
    assert found(*unmoved(30)).tried == 1
    assert weighed.count(1) == 3  # each sample is followed by 29 others, and 60 sets of two may come twice


def test_a_search_without_tried_sets_may_find_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = [found(*small_world(seed)) for seed in SEEDS[:40]]
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_SETS", 0)
    greedy = [found(*small_world(seed)) for seed in SEEDS[:40]]
    assert {flip.tried for flip in greedy} == {0}
    assert all(flip.proven == (flip.indices is not None and len(flip.indices) == 1) for flip in greedy)
    for known, flip in zip(exact, greedy, strict=True):
        if flip.indices is not None:
            assert known.indices is not None
            assert len(flip.indices) >= len(known.indices) or not known.proven
    singles = [flip for flip, known in zip(greedy, exact, strict=True) if known.proven and len(known.indices) == 1]
    assert len(singles) > 5
    assert {len(flip.indices) for flip in singles} == {1}


def test_no_more_samples_are_removed_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    world = small_world(6)
    flip = found(*world)
    count = len(flip.indices)
    assert flip.tried == 3, "else it was not searched for greedily"
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_REMOVED", count)
    assert found(*world) == flip
    monkeypatch.setattr(memwrap.explain.flip_set, "MAX_REMOVED", count - 1)
    assert found(*world) == FlipSet(None, None, proven=False, tried=3)


def test_at_least_one_sample_is_left_where_rounding_alone_changes_the_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the input were classified otherwise with the whole memory already: then all could be spared."""
    monkeypatch.setattr(memwrap.explain.flip_set, "EXACT_SIZE", 0)
    layer, encoding, memory = small_world(0)
    prediction = int(predict_classes(layer(encoding, memory)))
    flip = find_flip_set(asked(layer, encoding, memory), 0, (prediction + 1) % 4)
    assert len(flip.indices) == 1
    assert flip.prediction != (prediction + 1) % 4


def test_a_layer_that_has_changed_is_refused() -> None:
    layer, encoding, memory = small_world(0)
    ablation = asked(layer, encoding, memory)
    torch.nn.init.ones_(layer.head.first.bias)
    with pytest.raises(StaleMemoryError):
        find_flip_set(ablation, 0, 0)
