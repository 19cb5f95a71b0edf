"""Splits: nothing twice, nothing lost, classes in proportion, and the same for the same seed."""

import re

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from memwrap.data.splits import draw_subset, hold_out
from memwrap.errors import DataError

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labels_of(sizes: list[int], seed: int = 0) -> Tensor:
    """As many labels of each class as told, in random order."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=generator(seed))]


def given_by_class(sizes: list[int], amount: int | float, seed: int = 0) -> list[int]:
    labels = labels_of(sizes)
    _, apart = hold_out(labels, amount, generator(seed), stratified=True)
    return labels[apart].bincount(minlength=len(sizes)).tolist()


@given(st.integers(0, 50), st.data(), st.integers(0, 9))
def test_drawn_indices_are_different_ascending_and_below_the_count(count: int, data: st.DataObject, seed: int) -> None:
    samples = data.draw(st.integers(0, count))
    indices = draw_subset(count, samples, generator(seed))
    assert indices.dtype == torch.int64
    assert indices.tolist() == sorted(set(indices.tolist()))
    assert len(indices) == samples
    assert all(0 <= index < count for index in indices.tolist())


def test_every_index_is_drawn_equally_often() -> None:
    source = generator()
    counts = torch.zeros(10)
    for _ in range(2000):
        counts[draw_subset(10, 3, source)] += 1
    # 600 expected, with a standard deviation of 20.
    assert (counts - 600).abs().max() < 100


@pytest.mark.parametrize("samples", [11, -1])
def test_more_samples_than_images_are_refused_with_both_numbers(samples: int) -> None:
    with pytest.raises(
        DataError, match=re.escape(f"{samples} images are asked for, but there are 10; ask for no more")
    ):
        draw_subset(10, samples, generator())


@given(SIZES, st.data(), st.booleans(), st.integers(0, 9))
def test_every_image_is_either_kept_or_apart(
    sizes: list[int], data: st.DataObject, stratified: bool, seed: int
) -> None:
    most = sum(sizes) - (sum(size > 0 for size in sizes) if stratified else 1)
    amount = data.draw(st.integers(0, most))
    kept, apart = hold_out(labels_of(sizes, seed), amount, generator(seed), stratified)
    for indices in (kept, apart):
        assert indices.dtype == torch.int64
        assert indices.tolist() == sorted(indices.tolist())
    assert sorted(kept.tolist() + apart.tolist()) == list(range(sum(sizes)))
    assert len(apart) == amount


@given(SIZES, st.data())
def test_stratified_every_class_keeps_an_image_and_gives_one_if_there_are_enough(
    sizes: list[int], data: st.DataObject
) -> None:
    amount = data.draw(st.integers(0, sum(sizes) - sum(size > 0 for size in sizes)))
    apart = given_by_class(sizes, amount)
    assert all(gives < size for gives, size in zip(apart, sizes, strict=True) if size > 0)
    if amount >= sum(size > 1 for size in sizes):
        assert all(gives >= 1 for gives, size in zip(apart, sizes, strict=True) if size > 1)


@given(st.lists(st.integers(2, 200), min_size=1, max_size=8), st.floats(0.01, 0.9))
def test_stratified_every_class_gives_its_share_to_within_one_image(sizes: list[int], share: float) -> None:
    total = round(share * sum(sizes))
    exact = [total * size / sum(sizes) for size in sizes]
    # Else the least and the most that a class gives hold against its share.
    assume(all(1 <= one <= size - 1 for one, size in zip(exact, sizes, strict=True)))
    gives = given_by_class(sizes, share)
    assert sum(gives) == total
    assert all(abs(one - wanted) < 1 for one, wanted in zip(gives, exact, strict=True))


@pytest.mark.parametrize(
    ("sizes", "amount", "gives"),
    [
        ([50, 30, 20], 10, [5, 3, 2]),  # divides evenly
        ([50, 30, 20], 0.1, [5, 3, 2]),
        ([50, 30, 20], 7, [4, 2, 1]),  # 3.5, 2.1, 1.4: the largest remainder is the first's
        ([10, 10, 10], 4, [2, 1, 1]),  # equal remainders: the first class gives
        ([97, 2, 1], 10, [9, 1, 0]),  # 9.7, 0.2, 0.1: a pair gives one, a single image stays
        ([6, 1, 1, 1, 1], 3, [3, 0, 0, 0, 0]),  # 1.8 and 0.3 each: what single images cannot give, the others do
        ([40, 40, 2, 2, 2], 3, [2, 1, 0, 0, 0]),  # 1.4, 1.4, 0.07: too few to go round
        ([90, 2, 2, 2, 2, 2], 7, [2, 1, 1, 1, 1, 1]),  # 6.3, 0.14: the large class makes room for the small ones
        ([56, 40, 2, 2], 10, [5, 3, 1, 1]),  # 5.6, 4.0, 0.2: room is made by the class that has the least left over
        ([3, 2], 3, [2, 1]),  # all but one of each
        ([4, 0, 4], 2, [1, 0, 1]),  # a class without images
        ([5, 5], 0, [0, 0]),
        ([1, 1], 0, [0, 0]),
    ],
)
def test_stratified_shares_worked_out_by_hand(sizes: list[int], amount: int | float, gives: list[int]) -> None:
    assert given_by_class(sizes, amount) == gives


def test_a_share_is_rounded_to_whole_images() -> None:
    for stratified in (True, False):
        assert len(hold_out(labels_of([20, 13]), 0.2, generator(), stratified)[1]) == 7  # 6.6


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    labels = labels_of([40, 40])
    for stratified in (True, False):
        first, again, other = (hold_out(labels, 20, generator(seed), stratified)[1] for seed in (1, 1, 2))
        assert first.equal(again)
        assert not first.equal(other)


def test_stratified_every_image_of_a_class_is_set_apart_equally_often() -> None:
    labels, source = torch.tensor([0, 1] * 5), generator()
    counts = torch.zeros(10)
    for _ in range(2000):
        counts[hold_out(labels, 4, source, stratified=True)[1]] += 1
    # 800 expected, with a standard deviation of 22.
    assert (counts - 800).abs().max() < 110


def test_unstratified_the_classes_do_not_matter() -> None:
    plain = hold_out(labels_of([30, 30]), 20, generator(3), stratified=False)[1]
    assert plain.equal(hold_out(torch.zeros(60, dtype=torch.long), 20, generator(3), stratified=False)[1])
    assert plain.equal(draw_subset(60, 20, generator(3)))


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize(
    ("amount", "message"),
    [
        (1.0, "1.0 cannot be set apart; expected a whole number of images, or a share between 0 and 1"),
        (0.0, "0.0 cannot be set apart; expected a whole number of images, or a share between 0 and 1"),
        (float("nan"), "nan cannot be set apart; expected a whole number of images, or a share between 0 and 1"),
        (-3, "-3 cannot be set apart; expected a whole number of images, or a share between 0 and 1"),
        (0.01, "a share of 0.01 of 10 images is no image at all"),
        (0.99, "10 of 10 images cannot be set apart; ask for fewer, so that one is kept"),
        (10, "10 of 10 images cannot be set apart; ask for fewer, so that one is kept"),
    ],
)
def test_amounts_that_cannot_be_are_refused(amount: int | float, message: str, stratified: bool) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        hold_out(labels_of([5, 5]), amount, generator(), stratified)


def test_an_amount_that_would_empty_a_class_is_refused_with_the_most_that_is_possible() -> None:
    message = "9 of 11 images cannot be set apart, as each of 3 classes keeps one image; ask for at most 8"
    with pytest.raises(DataError, match=re.escape(message)):
        hold_out(labels_of([5, 5, 1]), 9, generator(), stratified=True)


def test_no_images_at_all_leave_nothing_to_set_apart() -> None:
    none = torch.zeros(0, dtype=torch.long)
    for stratified in (True, False):
        kept, apart = hold_out(none, 0, generator(), stratified)
        assert len(kept) == len(apart) == 0
