"""The plan of a run: any step can be drawn again, and no draw depends on another."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from memwrap.data import BalancedMemory, MemorySampler, RandomMemory
from memwrap.errors import SettingsError
from memwrap.training.augmentation import NUMBERS
from memwrap.training.plan import BatchPlan, PlannedStep

LABELS = torch.arange(23) % 3
SAMPLERS = {"none": None, "random": RandomMemory(4), "balanced": BalancedMemory(9)}


def planned(
    sampler: MemorySampler | None, start: int = 0, stop: int = 20, size: int = 5, seed: int = 0
) -> list[PlannedStep]:
    return list(BatchPlan(LABELS, size, sampler, seed).steps(start, stop))


def same(one: list[PlannedStep], other: list[PlannedStep]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a.indices, b.indices) and torch.equal(a.numbers, b.numbers) and a.inputs == b.inputs
        for a, b in zip(one, other, strict=True)
    )


@given(
    start=st.integers(0, 30),
    stop=st.integers(0, 30),
    size=st.integers(1, 23),
    sampler=st.sampled_from(list(SAMPLERS.values())),
    seed=st.integers(0, 100),
)
def test_steps_from_anywhere_are_the_tail_of_all_steps(
    start: int, stop: int, size: int, sampler: MemorySampler | None, seed: int
) -> None:
    everything = planned(sampler, 0, stop, size, seed)
    assert len(everything) == stop
    assert same(planned(sampler, start, stop, size, seed), everything[start:])


@pytest.mark.parametrize(("size", "per_epoch"), [(1, 23), (5, 4), (11, 2), (12, 1), (23, 1)])
def test_an_epoch_takes_each_image_at_most_once_and_drops_the_rest(size: int, per_epoch: int) -> None:
    assert BatchPlan(LABELS, size, None, 0).steps_per_epoch == per_epoch
    for start in (0, per_epoch, 2 * per_epoch):
        epoch = planned(None, start, start + per_epoch, size)
        assert {step.inputs for step in epoch} == {size}
        taken = torch.cat([step.indices for step in epoch]).tolist()
        assert len(set(taken)) == len(taken) == size * per_epoch
        assert set(taken) <= set(range(23))


def test_epochs_come_in_orders_of_their_own_and_drop_others() -> None:
    epochs = [torch.cat([step.indices for step in planned(None, 4 * n, 4 * n + 4)]) for n in range(5)]
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 5
    assert len({frozenset(epoch.tolist()) for epoch in epochs}) > 1


@pytest.mark.parametrize("sampler", ["random", "balanced"])
def test_memories_are_drawn_anew_for_each_step_and_follow_the_inputs(sampler: str) -> None:
    size = SAMPLERS[sampler].size
    memories = [tuple(step.indices[step.inputs :].tolist()) for step in planned(SAMPLERS[sampler])]
    assert {len(memory) for memory in memories} == {size}
    assert len(set(memories)) == 20
    assert all(len(set(memory)) == size for memory in memories)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_image_of_every_step_has_numbers_of_its_own(sampler: str) -> None:
    steps = planned(SAMPLERS[sampler])
    assert all(step.numbers.shape == (len(step.indices), NUMBERS) for step in steps)
    rows = torch.cat([step.numbers for step in steps])
    assert len(rows.unique(dim=0)) == len(rows)


@pytest.mark.parametrize("sampler", ["random", "balanced"])
def test_inputs_and_their_numbers_do_not_depend_on_the_memory(sampler: str) -> None:
    for plain, step in zip(planned(None), planned(SAMPLERS[sampler]), strict=True):
        assert torch.equal(step.indices[: step.inputs], plain.indices)
        assert torch.equal(step.numbers[: step.inputs], plain.numbers)


def test_inputs_and_their_numbers_do_not_depend_on_how_much_a_sampler_draws() -> None:
    class Wasteful:
        def draw(self, labels: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
            torch.rand(1000, generator=generator)
            return batch[:2]

    for plain, step in zip(planned(None), planned(Wasteful()), strict=True):
        assert torch.equal(step.indices, torch.cat([plain.indices, plain.indices[:2]]))
        assert torch.equal(step.numbers[: step.inputs], plain.numbers)


def test_seeds_give_plans_of_their_own() -> None:
    first, second = planned(RandomMemory(4), seed=1), planned(RandomMemory(4), seed=2)
    for one, other in zip(first, second, strict=True):
        assert not torch.equal(one.indices[:5], other.indices[:5])
        assert not torch.equal(one.indices[5:], other.indices[5:])
        assert not torch.equal(one.numbers, other.numbers)


def test_torch_s_own_random_numbers_neither_count_nor_change() -> None:
    before = torch.get_rng_state()
    first = planned(BalancedMemory(4))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert same(first, planned(BalancedMemory(4)))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    message = "batch_size is 24, but there are 23 training images; expected 2 to 23"
    with pytest.raises(SettingsError, match=re.escape(message)):
        BatchPlan(LABELS, 24, None, 0)
    assert BatchPlan(LABELS, 23, None, 0).steps_per_epoch == 1


@given(
    world_size=st.integers(1, 4),
    part=st.integers(1, 5),
    sampler=st.sampled_from(list(SAMPLERS.values())),
)
def test_ranks_split_each_batch_and_share_its_memory(world_size: int, part: int, sampler: MemorySampler | None) -> None:
    size = world_size * part
    plans = [BatchPlan(LABELS, size, sampler, 0, rank, world_size) for rank in range(world_size)]
    assert {plan.steps_per_epoch for plan in plans} == {len(LABELS) // size}
    for whole, *parts in zip(planned(sampler, 0, 10, size), *(plan.steps(0, 10) for plan in plans), strict=True):
        for name in ("indices", "numbers"):
            inputs = torch.stack([getattr(each, name)[: each.inputs] for each in parts], dim=1).flatten(0, 1)
            assert torch.equal(inputs, getattr(whole, name)[:size])
            assert all(torch.equal(getattr(each, name)[part:], getattr(whole, name)[size:]) for each in parts)


@pytest.mark.parametrize(("size", "rank", "world_size"), [(5, 0, 2), (4, 2, 2), (4, -1, 2), (4, 0, 0)])
def test_ranks_that_do_not_fit_are_refused(size: int, rank: int, world_size: int) -> None:
    with pytest.raises(SettingsError, match=str(world_size)):
        BatchPlan(LABELS, size, None, 0, rank, world_size)
