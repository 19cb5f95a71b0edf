"""The learning rate of each step, against torch's schedulers and by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memwrap.training.recipes import recipe, resolve_settings
from memwrap.training.schedule import learning_rate
from memwrap.training.settings import ResolvedSettings


def rates(per_epoch: int, **given: Any) -> list[float]:
    settings = ResolvedSettings(**{"warmup": 0, **given})
    return [learning_rate(settings, step, per_epoch) for step in range(settings.epochs * per_epoch)]


def scheduled(scheduler: str, steps: int, **arguments: Any) -> list[float]:
    """The rates that torch's scheduler gives, stepped once after each step, from 0.1."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = getattr(torch.optim.lr_scheduler, scheduler)(optimizer, **arguments)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(("epochs", "per_epoch"), [(1, 1), (1, 7), (20, 5), (300, 1)])
def test_cosine_is_torch_s_to_zero_over_all_steps(epochs: int, per_epoch: int) -> None:
    steps = epochs * per_epoch
    assert rates(per_epoch, epochs=epochs) == pytest.approx(
        scheduled("CosineAnnealingLR", steps, T_max=steps), abs=1e-12
    )


def test_drops_are_torch_s_multi_step_schedule() -> None:
    found = rates(7, epochs=40, schedule="steps", drops=(0.5, 0.75))
    expected = scheduled("MultiStepLR", 40, milestones=[20, 30])
    assert found == pytest.approx([rate for rate in expected for _ in range(7)], rel=1e-12)


@pytest.mark.parametrize(("name", "drops"), [("svhn", [20, 30]), ("cifar10", [150, 225])])
def test_the_paper_s_rates_fall_after_these_epochs(name: str, drops: list[int]) -> None:
    settings = resolve_settings(recipe(name), 5000, tuple("0123456789"))
    per_epoch = 5000 // 128
    found = [learning_rate(settings, step, per_epoch) for step in range(settings.epochs * per_epoch)]
    falls = [step for step in range(1, len(found)) if found[step] < found[step - 1]]
    assert falls == [epoch * per_epoch for epoch in drops]
    assert [found[0], *(found[step] for step in falls)] == pytest.approx([0.1, 0.01, 0.001])


@given(st.integers(1, 400).flatmap(lambda epochs: st.tuples(st.just(epochs), st.integers(1, epochs))))
def test_a_share_that_stands_for_whole_epochs_drops_after_them(case: tuple[int, int]) -> None:
    epochs, after = case
    settings = ResolvedSettings(epochs=epochs + 1, schedule="steps", drops=(after / (epochs + 1),), warmup=0)
    assert [learning_rate(settings, epoch, 1) == 0.1 for epoch in (after - 1, after)] == [True, False]


@pytest.mark.parametrize(("share", "epochs", "after"), [(0.55, 100, 55), (0.75, 40, 30), (0.5, 5, 3)])
def test_drops_worked_out_by_hand(share: float, epochs: int, after: int) -> None:
    # 0.55 · 100 is a little more than 55 in floating point; 2.5 epochs are over after the third.
    found = rates(1, epochs=epochs, schedule="steps", drops=(share,))
    assert [rate == 0.1 for rate in found] == [True] * after + [False] * (epochs - after)


def test_a_constant_rate_stays() -> None:
    assert rates(3, epochs=4, schedule="constant", lr=0.3) == [0.3] * 12


def test_warm_up_worked_out_by_hand() -> None:
    # A fifth of 20 steps: a quarter more with each of four, then cosine over the other 16.
    found = rates(2, epochs=10, warmup=0.2, lr=0.4)
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert found[4:] == pytest.approx([0.2 * (1 + math.cos(math.pi * step / 16)) for step in range(16)])


def test_warm_up_goes_before_drops_that_stay_where_they_are() -> None:
    found = rates(2, epochs=4, warmup=0.25, schedule="steps", drops=(0.5,), lr=1.0)
    assert found == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1, 0.1, 0.1])


@given(
    epochs=st.integers(1, 50),
    per_epoch=st.integers(1, 20),
    warmup=st.floats(0, 0.99),
    lr=st.floats(1e-6, 10),
    schedule=st.sampled_from(["cosine", "steps", "constant"]),
)
def test_rates_are_positive_and_never_above_lr(
    epochs: int, per_epoch: int, warmup: float, lr: float, schedule: str
) -> None:
    found = rates(per_epoch, epochs=epochs, warmup=warmup, lr=lr, schedule=schedule, drops=(0.5,))
    assert all(0 < rate <= lr for rate in found)


@given(epochs=st.integers(1, 50), per_epoch=st.integers(1, 20), warmup=st.floats(0, 0.99))
def test_rates_rise_and_then_fall(epochs: int, per_epoch: int, warmup: float) -> None:
    found = rates(per_epoch, epochs=epochs, warmup=warmup)
    top = found.index(max(found))
    assert found == sorted(found[:top]) + sorted(found[top:], reverse=True)
