"""Memory samplers: what every draw keeps to, and that the paper's favours nobody."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from memwrap.data import sampling
from memwrap.data.sampling import BalancedMemory, MemorySampler, RandomMemory, build_sampler, check_size
from memwrap.errors import SettingsError

SAMPLERS = [RandomMemory, BalancedMemory]
NOTHING = torch.arange(0)

# Labels of a few classes, some of them without an image, and a size that can be drawn.
worlds = st.lists(st.integers(0, 5), min_size=1, max_size=40).flatmap(
    lambda labels: st.tuples(st.just(torch.tensor(labels)), st.integers(1, len(labels)), st.integers(0, 10**6))
)


def drawn(sampler: MemorySampler, labels: Tensor, seed: int, batch: Tensor = NOTHING) -> Tensor:
    return sampler.draw(labels, batch, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", SAMPLERS)
@given(world=worlds)
def test_a_draw_holds_that_many_images_each_at_most_once(kind: type, world: tuple[Tensor, int, int]) -> None:
    labels, size, seed = world
    indices = drawn(kind(size), labels, seed)
    assert indices.dtype == torch.int64
    assert len(indices) == len(set(indices.tolist())) == size
    assert set(indices.tolist()) <= set(range(len(labels)))


@given(worlds)
def test_a_balanced_draw_has_as_many_of_each_class_or_all_of_a_small_one(world: tuple[Tensor, int, int]) -> None:
    labels, size, seed = world
    there = Counter(labels.tolist())
    taken = Counter(labels[drawn(BalancedMemory(size), labels, seed)].tolist())
    most = max(taken.values())
    assert all(taken[label] >= most - 1 or taken[label] == there[label] for label in there)


@given(worlds)
def test_a_balanced_draw_comes_in_rounds(world: tuple[Tensor, int, int]) -> None:
    """Slowly: of images in random order, one of each class that has any left, again and again."""
    labels, size, seed = world
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator).tolist()
    ranks = torch.randperm(int(labels.max()) + 1, generator=generator).tolist()
    classes = sorted(range(len(ranks)), key=ranks.__getitem__)
    waiting = {label: [index for index in order if labels[index] == label] for label in classes}
    expected: list[int] = []
    while len(expected) < len(labels):
        expected += [waiting[label].pop(0) for label in classes if waiting[label]]
    assert drawn(BalancedMemory(size), labels, seed).tolist() == expected[:size]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_draw_differs_and_the_same_generator_gives_the_same(kind: type) -> None:
    labels = torch.arange(1000) % 7
    one, other = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    first = [tuple(kind(10).draw(labels, NOTHING, one).tolist()) for _ in range(50)]
    assert len(set(first)) == 50
    assert first == [tuple(kind(10).draw(labels, NOTHING, other).tolist()) for _ in range(50)]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_torch_s_own_random_numbers_are_left_alone(kind: type) -> None:
    before = torch.get_rng_state()
    drawn(kind(3), torch.arange(10) % 2, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_draw_does_not_depend_on_the_images_of_the_batch(kind: type) -> None:
    labels = torch.arange(100) % 3
    assert torch.equal(drawn(kind(9), labels, 1, torch.arange(50)), drawn(kind(9), labels, 1))


def counts(sampler: MemorySampler, labels: Tensor, draws: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    taken = torch.cat([sampler.draw(labels, NOTHING, generator) for _ in range(draws)])
    return taken.bincount(minlength=len(labels)).double()


def test_the_paper_s_draw_takes_every_image_equally_often() -> None:
    # How often an image is drawn is binomial with p = 5 / 20. A deviation of five of its standard deviations has, for
    # one of 20 images, a chance of about one in 100,000; and the seed is fixed.
    draws, share = 4000, 5 / 20
    deviations = (counts(RandomMemory(5), torch.zeros(20).long(), draws) - draws * share).abs()
    assert deviations.max() < 5 * (draws * share * (1 - share)) ** 0.5


def test_the_paper_s_draw_takes_every_pair_equally_often() -> None:
    generator, draws = torch.Generator().manual_seed(0), 4000
    pairs = Counter(
        tuple(sorted(RandomMemory(2).draw(torch.zeros(6), NOTHING, generator).tolist())) for _ in range(draws)
    )
    share = 1 / 15
    assert len(pairs) == 15
    assert max(abs(count - draws * share) for count in pairs.values()) < 5 * (draws * share * (1 - share)) ** 0.5


def test_a_balanced_draw_cut_short_favours_no_class_and_no_image_of_one() -> None:
    # One image of two of the three classes: class 0 has two images, class 1 three, class 2 four.
    labels, draws = torch.tensor([0] * 2 + [1] * 3 + [2] * 4), 4000
    shares = 2 / 3 / torch.tensor([2, 2, 3, 3, 3, 4, 4, 4, 4]).double()
    deviations = (counts(BalancedMemory(2), labels, draws) - draws * shares).abs()
    assert (deviations < 5 * (draws * shares * (1 - shares)).sqrt()).all()


@pytest.mark.parametrize("kind", SAMPLERS)
def test_more_images_than_there_are_cannot_be_drawn(kind: type) -> None:
    message = "memory_size is 11, but there are 10 training images, .* at most once; expected 1 to 10$"
    with pytest.raises(SettingsError, match=message):
        drawn(kind(11), torch.zeros(10).long(), 0)


def test_the_error_names_the_setting_that_asks_for_too_many() -> None:
    with pytest.raises(SettingsError, match="remember is 3, but there are 2 training images"):
        check_size(3, 2, "remember")
    check_size(2, 2)


def test_samplers_by_name() -> None:
    assert build_sampler("random", 7) == RandomMemory(7)
    assert build_sampler("balanced", 7) == BalancedMemory(7)
    assert build_sampler("batch", 7) is None


def test_of_many_images_a_few_are_drawn_each_once_and_all_are_as_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MANY_IMAGES", 50)
    labels, generator = torch.zeros(50).long(), torch.Generator().manual_seed(0)
    drawn = torch.stack([RandomMemory(3).draw(labels, labels[:0], generator) for _ in range(4000)])
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    for column in drawn.T:  # 80 times each; five deviations are 45
        assert (column.bincount(minlength=50) - 80).abs().max() < 45
