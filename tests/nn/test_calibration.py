"""Temperatures and calibrated votes against SciPy, scikit-learn, values worked out by hand, and their properties."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, logsumexp
from sklearn.linear_model import LogisticRegression
from torch import Tensor, tensor
from torch.testing import assert_close

from memwrap.errors import InputError, NonFiniteError
from memwrap.metrics import calibration_error, predict_classes
from memwrap.nn.calibration import (
    VoteCalibration,
    calibrated_probabilities,
    fit_temperature,
    fit_vote_calibration,
)

STORED: TypeAdapter[VoteCalibration] = TypeAdapter(VoteCalibration)
Case = tuple[Tensor, Tensor, Tensor, Tensor]  # votes, head_logits, similarity, labels


def new_case(count: int, effects: tuple[float, float, float], base: float = 0.7) -> Case:
    """Votes for three classes that are right by chance, as these effects of their features say."""
    numbers = torch.Generator().manual_seed(0)
    votes = (3 * torch.randn(count, 3, generator=numbers)).softmax(1)
    head_logits = 2 * torch.randn(count, 3, generator=numbers)
    similarity = torch.rand(count, generator=numbers)
    features = slow_features(votes, head_logits, similarity)
    features = (features - features.mean(0)) / (features.std(0) + 1e-9)
    right = torch.rand(count, generator=numbers) < torch.sigmoid(tensor(features) @ tensor(effects).double() + base)
    predictions = votes.argmax(1)
    return votes, head_logits, similarity, torch.where(right, predictions, (predictions + 1) % 3)


def slow_features(votes: Tensor, head_logits: Tensor, similarity: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The three features of each vote, by a loop."""
    rows = []
    for shares, logits, cosine in zip(votes.tolist(), head_logits.tolist(), similarity.tolist(), strict=True):
        predicted = shares.index(max(shares))
        share = min(max(shares[predicted], 0.01), 0.99)
        probability = min(max(math.exp(log_softmax(logits)[predicted]), 1e-4), 1 - 1e-4)
        rows.append([math.log(share / (1 - share)), math.log(probability / (1 - probability)), cosine])
    return np.array(rows)


def slow_regression_inputs(case: Case) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Standardised features (N + 2, 3) and outcomes (N + 2,), the last two of the pseudo-observations."""
    features = slow_features(*case[:3])
    features = (features - features.mean(0)) / features.std(0)
    right = (case[0].argmax(1) == case[3]).numpy()
    return np.concatenate([features, np.zeros((2, 3))]), np.concatenate([right, [True, False]])


# --- temperatures ---


@pytest.mark.parametrize(("spread", "count"), [(0.3, 30), (1.0, 200), (5.0, 200), (30.0, 50)])
def test_the_temperature_has_the_least_loss_that_scipy_finds(spread: float, count: int) -> None:
    labels = torch.randint(4, (count,))
    logits = spread * (torch.randn(count, 4) + 1.5 * torch.nn.functional.one_hot(labels, 4))

    def loss(log_temperature: float) -> float:
        scaled = logits.double().numpy() / math.exp(log_temperature)
        picked = scaled[np.arange(count), labels.numpy()]
        return float((logsumexp(scaled, axis=1) - picked).sum() + log_temperature**2 / 2)

    best = minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(logits, labels) == pytest.approx(math.exp(best.x), rel=1e-5)


def test_logits_of_a_known_temperature_give_it_back() -> None:
    logits = 2 * torch.randn(20_000, 3)
    labels = torch.multinomial(logits.softmax(1), 1).squeeze(1)
    assert fit_temperature(3 * logits, labels) == pytest.approx(3, rel=0.05)
    assert fit_temperature(0.5 * logits, labels) == pytest.approx(0.5, rel=0.05)


def test_the_prior_by_hand() -> None:
    # Logits that say nothing leave the prior alone.
    assert fit_temperature(torch.zeros(50, 3), torch.zeros(50, dtype=torch.int64)) == pytest.approx(1, abs=1e-6)
    # One image, right by a margin of 1: the loss log(1 + exp(-1/T)) + log(T)² / 2 is least where its slope is zero.
    temperature = fit_temperature(tensor([[1.0, 0.0]]), tensor([0]))
    slope = math.exp(-1 / temperature) / (1 + math.exp(-1 / temperature)) / temperature + math.log(temperature)
    assert slope == pytest.approx(0, abs=1e-6)
    assert temperature < 1


def test_temperatures_stay_within_their_bounds() -> None:
    labels = torch.arange(2000) % 2
    right = torch.nn.functional.one_hot(labels, 2).float()
    # All right, or all wrong: only the prior keeps the temperature from its bound, unless there are very many images.
    assert 0.05 < fit_temperature(right, labels) < 0.3
    assert fit_temperature(1e5 * (1 - right), labels) == pytest.approx(20, rel=1e-6)
    assert fit_temperature(1e-3 * right, labels) == pytest.approx(0.05, rel=1e-6)


def test_no_images_leave_logits_as_they_are() -> None:
    assert fit_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)) == 1


def test_temperatures_refuse_what_they_cannot_be_fitted_to() -> None:
    with pytest.raises(NonFiniteError, match="1 of 2"):
        fit_temperature(tensor([[0.0, 1.0], [torch.nan, 0.0]]), tensor([0, 1]))
    with pytest.raises(InputError, match="to 5"):
        fit_temperature(torch.zeros(2, 3), tensor([0, 5]))
    with pytest.raises(InputError, match="3 labels"):
        fit_temperature(torch.zeros(2, 3), tensor([0, 1, 2]))


# --- the regression behind a vote's confidence ---


def test_the_regression_is_that_of_scikit_learn() -> None:
    case = new_case(400, (1.0, 0.8, 0.6))
    features, right = slow_regression_inputs(case)
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(features, right)
    fitted = fit_vote_calibration(*case)
    assert fitted.coefficients == pytest.approx(reference.coef_[0].tolist(), abs=1e-5)
    assert fitted.intercept == pytest.approx(float(reference.intercept_[0]), abs=1e-5)
    raw = slow_features(*case[:3])
    assert fitted.means == pytest.approx(raw.mean(0).tolist(), abs=1e-6)
    assert fitted.deviations == pytest.approx(raw.std(0).tolist(), rel=1e-5)


@pytest.mark.parametrize("effects", [(1.0, -0.7, 0.5), (-1.0, -0.7, 0.5), (-1.0, -1.0, -1.0), (2.0, -0.1, -3.0)])
def test_no_coefficient_is_negative_and_the_rest_is_the_best_that_scipy_finds(
    effects: tuple[float, float, float],
) -> None:
    case = new_case(300, effects)
    features, right = slow_regression_inputs(case)

    def loss(weights: np.ndarray[Any, Any]) -> float:
        signed = (features @ weights[1:] + weights[0]) * np.where(right, 1, -1)
        return float(np.logaddexp(0, -signed).sum() + (weights[1:] ** 2).sum() / 2)

    best = minimize(loss, np.zeros(4), bounds=[(None, None), (0, None), (0, None), (0, None)], tol=1e-12)
    fitted = fit_vote_calibration(*case)
    assert min(fitted.coefficients) == 0
    assert (fitted.intercept, *fitted.coefficients) == pytest.approx(best.x.tolist(), abs=1e-3)


def test_a_constant_feature_says_nothing() -> None:
    votes, head_logits, similarity, labels = new_case(200, (1.0, 1.0, 1.0))
    fitted = fit_vote_calibration(votes, head_logits, torch.full_like(similarity, 0.7), labels)
    assert fitted.coefficients[2] == 0
    assert fitted.deviations[2] == 1
    assert min(fitted.coefficients[:2]) > 0
    # Shares beyond the limits of a feature are equal, too.
    certain = torch.nn.functional.one_hot(votes.argmax(1), 3).float()
    assert fit_vote_calibration(certain, head_logits, similarity, labels).coefficients[0] == 0


@pytest.mark.parametrize("count", [1, 2, 7, 300])
@pytest.mark.parametrize("right", [True, False])
def test_votes_that_are_all_right_or_wrong_give_a_smoothed_rate(count: int, right: bool) -> None:
    votes, head_logits, similarity, _ = new_case(count, (0.0, 0.0, 0.0))
    labels = (votes.argmax(1) + (not right)) % 3
    fitted = fit_vote_calibration(votes, head_logits, similarity, labels)
    assert fitted.coefficients == pytest.approx((0, 0, 0), abs=1e-9)
    rate = (count + 1) / (count + 2) if right else 1 / (count + 2)
    assert fitted.intercept == pytest.approx(math.log(rate / (1 - rate)), abs=1e-8)


def test_no_images_give_even_odds() -> None:
    fitted = fit_vote_calibration(
        torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    )
    assert fitted == VoteCalibration((0, 0, 0), (1, 1, 1), (0, 0, 0), 0)
    assert STORED.validate_json(STORED.dump_json(fitted)) == fitted


def test_outcomes_that_a_feature_separates_stay_finite() -> None:
    share = torch.linspace(0.51, 0.98, 40)
    votes, labels = torch.stack([share, 1 - share], dim=1), (share < 0.7).long()
    fitted = fit_vote_calibration(votes, torch.zeros(40, 2), torch.ones(40), labels)
    assert 1 < fitted.coefficients[0] < 10
    assert fitted.coefficients[1:] == (0, 0)
    confidence = calibrated_probabilities(fitted, votes, torch.zeros(40, 2), torch.ones(40))[:, 0]
    assert float(confidence[-1]) > 0.9
    assert float(confidence[0]) == pytest.approx(0.5, abs=1e-5)  # less would predict the other class


def test_a_known_confidence_is_learnt() -> None:
    *inputs, labels = new_case(6000, (1.0, 0.7, 0.4), base=2.5)
    fitted = fit_vote_calibration(*(each[:3000] for each in inputs), labels[:3000])
    probabilities = calibrated_probabilities(fitted, *(each[3000:] for each in inputs))
    assert calibration_error(probabilities, labels[3000:]) < 0.03
    assert calibration_error(inputs[0][3000:], labels[3000:]) > 0.05  # which shares are not


def test_the_order_of_images_does_not_matter() -> None:
    case = new_case(150, (1.0, 0.5, 0.5))
    order = torch.randperm(150)
    first, second = (fit_vote_calibration(*each) for each in (case, [part[order] for part in case]))
    assert first.coefficients == pytest.approx(second.coefficients, abs=1e-9)
    assert fit_vote_calibration(*case) == first


# --- a calibration from a file ---


def test_a_calibration_comes_back_from_json() -> None:
    fitted = fit_vote_calibration(*new_case(100, (1.0, 1.0, 1.0)))
    assert STORED.validate_json(STORED.dump_json(fitted)) == fitted


@pytest.mark.parametrize(
    "change",
    [
        {"intercept": math.nan},
        {"intercept": 1e9},
        {"means": (0.0, 0.0)},
        {"means": (0.0, math.inf, 0.0)},
        {"means": (0.0, 1e30, 0.0)},
        {"deviations": (1.0, 0.0, 1.0)},
        {"deviations": (1.0, -1.0, 1.0)},
        {"coefficients": (1.0, -0.1, 1.0)},
        {"coefficients": (1.0, 1e6, 1.0)},
        {"else": 1.0},
    ],
)
def test_a_stranger_cannot_store_what_would_not_be_a_confidence(change: dict[str, object]) -> None:
    stored = asdict(VoteCalibration((0, 0, 0), (1, 1, 1), (0, 0, 0), 0))
    STORED.validate_python(stored)
    with pytest.raises(ValidationError):
        STORED.validate_python({**stored, **change})


# --- calibrated probabilities ---

PLAIN = VoteCalibration(means=(0, 0, 0), deviations=(1, 1, 1), coefficients=(1, 0, 0), intercept=0)


def test_probabilities_by_hand() -> None:
    # Log-odds of 0.8 give 0.8 back. The head says 1/2, 1/4, 1/4, so that the others have 0.45 and 0.25.
    head_logits = tensor([[0.5, 0.25, 0.25]]).log()
    found = calibrated_probabilities(PLAIN, tensor([[0.8, 0.2, 0.0]]), head_logits, torch.ones(1))
    assert_close(found, tensor([[0.8, 0.2 * 0.45 / 0.7, 0.2 * 0.25 / 0.7]], dtype=torch.float64))


def test_each_feature_by_hand() -> None:
    calibration = VoteCalibration((1, 2, 0.5), (2, 4, 0.25), (0.5, 0.25, 2), intercept=-1)
    votes, head_logits = tensor([[0.1, 0.9]], dtype=torch.float64), tensor([[0.0, 1.5]], dtype=torch.float64)
    found = calibrated_probabilities(calibration, votes, head_logits, tensor([0.75], dtype=torch.float64))
    # The log-odds of a share of 0.9 are log(9), those of the head are its 1.5.
    log_odds = -1 + 0.5 * (math.log(9) - 1) / 2 + 0.25 * (1.5 - 2) / 4 + 2 * (0.75 - 0.5) / 0.25
    assert float(found[0, 1]) == pytest.approx(1 / (1 + math.exp(-log_odds)))


def test_a_doubtful_vote_keeps_its_class() -> None:
    never = VoteCalibration((0, 0, 0), (1, 1, 1), (0, 0, 0), intercept=-50)
    found = calibrated_probabilities(never, tensor([[0.3, 0.4, 0.3]]), tensor([[9.0, -9.0, -99.0]]), torch.ones(1))
    first = (0.3 + 1) / (0.3 + 1 + 0.3)
    assert_close(found[0], tensor([first, first, 1 - first], dtype=torch.float64) / (1 + first), atol=1e-6, rtol=0)
    assert float(found[0, 1]) > float(found[0, 0])


def test_a_single_class_is_certain() -> None:
    found = calibrated_probabilities(PLAIN, torch.ones(4, 1), torch.zeros(4, 1), torch.zeros(4))
    assert_close(found, torch.ones(4, 1, dtype=torch.float64))


def test_classes_without_any_support_share_equally() -> None:
    found = calibrated_probabilities(
        PLAIN, tensor([[0.0, 1.0, 0.0]]), tensor([[-1e9, 0.0, -1e9]]), torch.ones(1)
    )  # where the head rounds to zero, too
    assert_close(found, tensor([[0.005, 0.99, 0.005]], dtype=torch.float64))


shares = st.sampled_from([0.0, 1e-9, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0]) | st.floats(0, 1)
logits = st.sampled_from([-1e4, -1.0, 0.0, 1.0, 1e4]) | st.floats(-50, 50)
coefficients = st.sampled_from([0.0, 1.0, 100.0]) | st.floats(0, 100)
calibrations = st.builds(
    VoteCalibration,
    means=st.tuples(*[st.floats(-10, 10)] * 3),
    deviations=st.tuples(*[st.floats(1e-6, 10)] * 3),
    coefficients=st.tuples(*[coefficients] * 3),
    intercept=st.floats(-100, 100),
)


@st.composite
def predicted(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """votes (1, C) that sum to one, head_logits (1, C), similarity (1,)"""
    count = draw(st.integers(1, 5))
    votes = tensor([draw(st.lists(shares, min_size=count, max_size=count).filter(lambda each: sum(each) > 1e-3))])
    head_logits = tensor([draw(st.lists(logits, min_size=count, max_size=count))])
    return votes / votes.sum(), head_logits, tensor([draw(st.floats(-1, 1))])


@given(calibrations, predicted())
def test_probabilities_keep_the_prediction_and_sum_to_one(
    calibration: VoteCalibration, inputs: tuple[Tensor, Tensor, Tensor]
) -> None:
    found = calibrated_probabilities(calibration, *inputs)
    assert found.shape == inputs[0].shape
    assert bool((found >= 0).all())
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)
    expected = predict_classes(inputs[0])
    assert_close(predict_classes(found), expected)
    assert_close(predict_classes(found.float()), expected)


@given(calibrations, st.lists(st.floats(0.5, 1), min_size=2, max_size=2), logits, st.floats(-1, 1))
def test_more_share_never_lowers_the_confidence(
    calibration: VoteCalibration, shares: list[float], head: float, cosine: float
) -> None:
    share = tensor(sorted(shares), dtype=torch.float64)
    found = calibrated_probabilities(
        calibration, torch.stack([share, 1 - share], dim=1), tensor([[head, 0.0]] * 2), tensor([cosine] * 2)
    )[:, 0].tolist()
    assert found[0] <= found[1]


@given(calibrations, st.lists(logits, min_size=2, max_size=2), st.lists(st.floats(-1, 1), min_size=2, max_size=2))
def test_more_of_the_other_features_never_lowers_the_confidence(
    calibration: VoteCalibration, head: list[float], cosines: list[float]
) -> None:
    votes, low, high = tensor([[0.3, 0.7]] * 2), min(head), max(head)
    found = calibrated_probabilities(calibration, votes, tensor([[0.0, low], [0.0, high]]), tensor([cosines[0]] * 2))[
        :, 1
    ].tolist()
    assert found[0] <= found[1]
    found = calibrated_probabilities(calibration, votes, tensor([[0.0, low]] * 2), tensor(sorted(cosines)))[
        :, 1
    ].tolist()
    assert found[0] <= found[1]


def test_each_input_is_calibrated_by_itself() -> None:
    *inputs, _ = new_case(20, (1.0, 1.0, 1.0))
    calibration = VoteCalibration((0, 0, 0.5), (2, 2, 0.3), (1, 1, 0.5), intercept=0.5)
    together = calibrated_probabilities(calibration, *inputs)
    alone = [calibrated_probabilities(calibration, *(each[i : i + 1] for each in inputs)) for i in range(20)]
    assert_close(together, torch.cat(alone))


def test_probabilities_refuse_what_does_not_belong_together() -> None:
    votes, similarity = tensor([[0.4, 0.6]]), torch.ones(1)
    with pytest.raises(InputError, match="3"):
        calibrated_probabilities(PLAIN, votes, torch.zeros(1, 3), similarity)
    with pytest.raises(InputError, match="2 similarity"):
        calibrated_probabilities(PLAIN, votes, torch.zeros(1, 2), torch.ones(2))
    with pytest.raises(NonFiniteError):
        calibrated_probabilities(PLAIN, votes, torch.zeros(1, 2), similarity * torch.nan)
    with pytest.raises(NonFiniteError):
        calibrated_probabilities(PLAIN, votes, tensor([[torch.inf, 0.0]]), similarity)
