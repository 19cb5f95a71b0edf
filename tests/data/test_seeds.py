"""Seeds: a stream for each purpose, and always the same one."""

import itertools

import torch

from memwrap.data.seeds import derive_seed, generator


def test_seeds_purposes_and_numbers_give_streams_of_their_own() -> None:
    keys = [
        (seed, purpose, *numbers)
        for seed, purpose in itertools.product(range(4), ("batches", "memory", "augmentation", "dropout", "weights"))
        for numbers in [(), (0,), (1,), (10,), (1, 0), (0, 1), (0, 0)]
    ]
    assert len({derive_seed(*key) for key in keys}) == len(keys)
    assert len({torch.rand((), generator=generator(*key)).item() for key in keys}) == len(keys)


def test_numbers_and_purposes_are_kept_separate() -> None:
    assert (
        len({derive_seed(1, "a", 11), derive_seed(1, "a", 1, 1), derive_seed(1, "a1", 1), derive_seed(11, "a", 1)}) == 4
    )


def test_the_derivation_stays_what_it_is() -> None:
    # Worked out with sha256sum: with other values, runs that were begun before would resume differently.
    assert derive_seed(0, "batches", 3) == 0xB6BA988AA12006
    assert derive_seed(7, "weights") == 0xA7F6E1E6A1449B


def test_a_generator_starts_from_its_seed_each_time() -> None:
    first, second = generator(3, "memory", 5), generator(3, "memory", 5)
    assert torch.equal(torch.rand(100, generator=first), torch.rand(100, generator=second))


def test_torch_s_own_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=generator(0, "memory"))
    assert torch.equal(torch.get_rng_state(), before)
