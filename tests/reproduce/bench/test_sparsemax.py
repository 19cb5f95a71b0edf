"""What sparsemax is compared with."""

import sys

import pytest
import torch

from memwrap.reproduce.bench import sparsemax
from memwrap.reproduce.bench.record import Measurement, Skipped
from tests.reproduce.bench import CPU, make_context, seen


def test_each_shape_is_measured_forward_and_backward() -> None:
    rows = [row for row in sparsemax.measure(make_context(scores=((3, 5), (2, 1100)))) if isinstance(row, Measurement)]
    assert [row.subject for row in rows] == [
        "sparsemax of 3 x 5, forward",
        "sparsemax of 3 x 5, forward and backward",
        "sparsemax of 2 x 1,100, forward",
        "sparsemax of 2 x 1,100, forward and backward",
    ]
    assert {(row.name, row.base, row.encoder) for row in rows} == {("ours", "entmax", None)}
    assert all(1 <= row.facts["samples_used"] <= 1100 for row in rows)


def test_backward_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, gradients = torch.autograd.backward, []

    def noted(*given: object, **named: object) -> None:
        gradients.append(given)
        backward(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.autograd, "backward", noted)
    list(sparsemax.measure(make_context(scores=((3, 5),))))
    assert len(gradients) == 4  # of two, in two rounds, of which the first warms up


def test_what_is_quick_is_called_often() -> None:
    where = make_context(scores=((3, 5),), calls_of=45)
    list(sparsemax.measure(where))
    assert {each.units for each in seen(where).values()} == {3}


def test_without_entmax_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "entmax", None)
    (left_out,) = sparsemax.measure(make_context())
    assert isinstance(left_out, Skipped)
    assert "pip install entmax" in left_out.reason


def test_scores_are_spread_as_similarities_are() -> None:
    scores = sparsemax.random_scores((50, 400), CPU)
    assert scores.std().item() == pytest.approx(512**-0.5, rel=0.05)
