"""About how long: by records where there are some, and honest where it is a guess."""

from dataclasses import replace

import pytest

from memwrap.reproduce.estimates import estimate_duration
from memwrap.reproduce.records import Seconds
from memwrap.reproduce.tasks import Task
from tests.reproduce.records import ORIGIN, TASK, recorded, tasks_of

STEPS = 40 * 7  # of TASK: 1000 images in batches of 128


def seed(number: int, task: Task = TASK) -> Task:
    return replace(task, seed=number)


def test_runs_of_the_same_group_tell_by_their_median() -> None:
    records = [recorded(seed(n), seconds=Seconds(each, 1.0)) for n, each in enumerate([10.0, 20.0, 90.0])]
    found = estimate_duration([seed(3), seed(4)], records, "cpu", "loop")
    assert (found.seconds, found.runs, found.guessed) == (2 * 21.0, 2, 0)


def test_times_of_the_same_model_on_other_data_are_scaled_by_steps() -> None:
    records = [recorded(seconds=Seconds(2.0 * STEPS, 5.0))]
    five_thousand = replace(TASK, samples=5000)
    found = estimate_duration([five_thousand], records, "cpu", "loop")
    assert (found.seconds, found.guessed) == (2.0 * 40 * 39 + 5.0, 0)


@pytest.mark.parametrize(
    "origin",
    [replace(ORIGIN, device="NVIDIA H200"), replace(ORIGIN, engine="graph")],
    ids=["another device", "another engine"],
)
def test_what_was_made_in_another_way_shows_nothing(origin: object) -> None:
    found = estimate_duration([TASK], [recorded(seed(0), origin=origin)], "cpu", "loop")
    assert (found.runs, found.guessed) == (1, 1)
    assert found == estimate_duration([TASK], [], "cpu", "loop")


def test_a_guess_knows_what_costs_more() -> None:
    def guess(device: str = "cpu", **changes: object) -> float:
        return estimate_duration([replace(TASK, **changes)], [], device, "loop").seconds  # type: ignore[arg-type]

    assert guess(memory="batch") < guess() < guess(memory_size=500)
    assert guess(variant="standard", memory_size=0) < guess(memory="batch"), "which encodes training images, too"
    assert guess(samples=1000) < guess(samples=5000) < guess(samples=None)
    assert guess("NVIDIA H200") < guess("cpu") / 20
    assert guess(encoder="timm:unheard_of") > 0


def test_a_guess_is_of_the_right_order() -> None:
    """The protocol has 42.2 ms for a step of the published code on an H200, without its data loading."""
    found = estimate_duration([TASK], [], "NVIDIA H200", "loop").seconds
    assert STEPS * 0.0422 / 2 < found < STEPS * 0.0422 * 2


def test_a_guess_for_runs_side_by_side_is_of_the_right_order() -> None:
    """By the committed records, the 405 runs of reduced SVHN with 15 seeds took 972 s on an H200."""
    found = estimate_duration(tasks_of("svhn-reduced", range(15)), [], "NVIDIA H200", "graph")
    assert (found.runs, found.guessed) == (405, 405)
    assert 972 / 1.5 < found.seconds < 972 * 1.5


def test_some_may_be_guessed() -> None:
    found = estimate_duration([seed(1), replace(TASK, encoder="resnet18")], [recorded(seed(0))], "cpu", "loop")
    assert (found.runs, found.guessed) == (2, 1)
