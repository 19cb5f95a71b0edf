"""Times and ratios, by a clock that the tests move."""

import random
from collections.abc import Callable

import pytest
import torch

from memwrap.reproduce.bench.timing import Candidate, Cudnn, Spread, Stopwatch, spread


class FakeClock:
    """A clock that moves only with its tasks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[str] = []

    def __call__(self) -> float:
        return self.now

    def task(self, name: str, *seconds: float) -> Callable[[], None]:
        """A task that takes the given seconds, one turn after another."""
        left = iter(seconds)

        def run() -> None:
            self.turns.append(name)
            self.now += next(left)

        return run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def watch(clock: FakeClock) -> Stopwatch:
    return Stopwatch(clock, random.Random(3))


def test_a_ratio_is_of_seconds_a_unit_within_a_round(clock: FakeClock, watch: Stopwatch) -> None:
    base = Candidate("base", clock.task("base", 9, 4, 8, 40), units=4)
    one = Candidate("one", clock.task("one", 9, 1, 4, 30), units=2)
    (compared,) = watch.compare(base, [one], rounds=3)
    # Seconds a unit: 1, 2, 10 and 0.5, 2, 15.
    assert compared.base_seconds == Spread(2, 1.5, 6)
    assert compared.seconds == Spread(2, 1.25, 8.5)
    assert compared.ratio == Spread(1, 0.75, 1.25)
    assert (compared.candidate, compared.base, compared.rounds) == (one, base, 3)


def test_a_machine_that_slows_down_changes_no_ratio(clock: FakeClock, watch: Stopwatch) -> None:
    slower = [2.0**turn for turn in range(6)]
    base = Candidate("base", clock.task("base", *(4 * each for each in slower)))
    one = Candidate("one", clock.task("one", *slower))
    (compared,) = watch.compare(base, [one], rounds=5)
    assert compared.ratio == Spread(0.25, 0.25, 0.25)


def test_each_has_its_turn_in_every_round_and_the_order_changes(clock: FakeClock, watch: Stopwatch) -> None:
    names = ["a", "b", "c"]
    watch.times([Candidate(name, clock.task(name, *[1.0] * 9)) for name in names], rounds=8)
    rounds = [tuple(clock.turns[start : start + 3]) for start in range(0, 27, 3)]
    assert all(sorted(each) == names for each in rounds)
    assert len(set(rounds)) > 1


def test_what_warms_up_sooner_takes_the_place_of_the_run(clock: FakeClock, watch: Stopwatch) -> None:
    done: list[str] = []
    task = Candidate("task", lambda: done.append("run"), warm_up=lambda: done.append("warm up"))
    assert len(watch.times([task], rounds=3, warm_up=2)["task"]) == 3
    assert done == ["warm up"] * 2 + ["run"] * 3


@pytest.mark.parametrize("warm_up", [0, 2])
def test_warming_up_does_not_count(clock: FakeClock, watch: Stopwatch, warm_up: int) -> None:
    task = Candidate("task", clock.task("task", 50, 40, 3, 2, 1))
    assert watch.times([task], rounds=5 - warm_up, warm_up=warm_up)["task"] == [50, 40, 3, 2, 1][warm_up:]


def test_getting_ready_is_done_before_each_turn_and_not_timed(clock: FakeClock, watch: Stopwatch) -> None:
    task = Candidate("task", clock.task("run", 1, 1, 1), ready=clock.task("ready", 70, 70, 70))
    assert watch.times([task], rounds=2)["task"] == [1, 1]
    assert clock.turns == ["ready", "run"] * 3


def test_each_has_cudnn_as_it_wants_it_and_leaves_it_as_it_was(watch: Stopwatch) -> None:
    backend, seen = torch.backends.cudnn, []

    def task(cudnn: Cudnn) -> Candidate:
        return Candidate(str(cudnn), lambda: seen.append((backend.benchmark, backend.deterministic)), cudnn=cudnn)

    before = backend.benchmark, backend.deterministic
    for settings in (Cudnn(True, False), Cudnn(False, True)):
        watch.times([task(settings)], rounds=1, warm_up=0)
        assert (backend.benchmark, backend.deterministic) == before
    assert seen == [(True, False), (False, True)]


def test_conditions_say_what_was_set() -> None:
    conditions = Candidate("task", lambda: None, cudnn=Cudnn(deterministic=True), facts={"batch": 7}).conditions()
    assert conditions == {"batch": 7, "cudnn_benchmark": False, "cudnn_deterministic": True}


def test_quartiles_lie_within_what_was_measured() -> None:
    assert spread([5.0]) == Spread(5, 5, 5)
    assert spread([1.0, 3.0]) == Spread(2, 1.5, 2.5)
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3, 2, 4)
