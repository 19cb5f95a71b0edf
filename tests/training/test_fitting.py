"""Heads, whitening and the choice of a layer against scikit-learn, SciPy, and loops that fit without each image."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import fractional_matrix_power
from sklearn.linear_model import LogisticRegression
from torch import Tensor, tensor
from torch.testing import assert_close

from memwrap.errors import InputError, NonFiniteError
from memwrap.metrics import accuracy
from memwrap.nn.attention import sparsemax
from memwrap.training import fitting
from memwrap.training.fitting import (
    FittedLayer,
    LinearHead,
    choose_layer,
    draw_folds,
    fit_head,
    whiten,
    whitening,
    within_class_spectrum,
)

Data = tuple[Tensor, Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def new_data(count: int, length: int, classes: int, apart: float = 1.0, noise: float = 1.0, seed: int = 0) -> Data:
    """Classes around random centres; along a few directions, images of one class differ by `noise` times more."""
    numbers = seeded(seed)
    centres = apart * torch.randn(classes, length, generator=numbers)
    labels = torch.arange(count) % classes
    scales = torch.where(torch.arange(length) < 4, noise, 1.0)
    return centres[labels] + 0.5 + scales * torch.randn(count, length, generator=numbers), labels


def halves(encodings: Tensor, labels: Tensor) -> tuple[Data, Data]:
    half = len(labels) // 2
    return (encodings[:half], labels[:half]), (encodings[half:], labels[half:])


def unit(vectors: Tensor) -> Tensor:
    return vectors / (vectors.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def slow_vote(query: Tensor, memory: Tensor, labels: Tensor, classes: int, scale: float) -> tuple[Tensor, float, int]:
    """The vote for one query (D,): shares (C,), the largest cosine, and how many images are used."""
    cosines = unit(memory) @ unit(query)
    weights = sparsemax(scale * cosines)
    shares = torch.stack([weights[labels == each].sum() for each in range(classes)])
    return shares, float(cosines.max()), int((weights > 0).sum())


def slow_whitening(encodings: Tensor, labels: Tensor, added: float | None, shrinkage: float) -> tuple[Tensor, Tensor]:
    """The mean (D,) and the matrix (D, D), by SciPy; added: what comes to the diagonal, or by the shrinkage if None."""
    residuals = [
        encodings[labels == each] - encodings[labels == each].mean(0)
        for each in labels.unique()
        if int((labels == each).sum()) > 1
    ]
    together = torch.cat(residuals).double().numpy()
    covariance = together.T @ together / len(together)
    if added is None:
        added = shrinkage * float(np.diag(covariance).mean())
    power = fractional_matrix_power(covariance + added * np.eye(len(covariance)), -0.5)
    return encodings.double().mean(0), tensor(np.real(power))


# --- heads ---


@pytest.mark.parametrize(("count", "length", "strength"), [(90, 40, 1.0), (60, 100, 0.1), (200, 12, 10.0)])
def test_a_head_is_the_regression_of_scikit_learn(count: int, length: int, strength: float) -> None:
    encodings, labels = new_data(count, length, 4, apart=0.3)
    encodings = 7 * encodings
    factor = 10 / float(encodings.norm(dim=1).mean())
    reference = LogisticRegression(C=strength, tol=1e-9, max_iter=5000).fit(factor * encodings.double(), labels)
    head = fit_head(encodings, labels, 4, penalty=1 / (count * strength))
    assert head.weight.shape == (4, length)
    assert_close(head.weight.double() / factor, tensor(reference.coef_), atol=2e-3, rtol=0)
    held_out, _ = new_data(500, length, 4, apart=0.3, seed=1)
    expected = tensor(reference.predict_proba(factor * 7 * held_out.double()))
    assert_close(head.logits(7 * held_out).softmax(1).double(), expected, atol=2e-3, rtol=0)


def test_a_head_does_not_depend_on_the_units_of_encodings() -> None:
    encodings, labels = new_data(60, 20, 3)
    small, large = (fit_head(unit * encodings, labels, 3, penalty=0.01) for unit in (1.0, 1000.0))
    assert_close(1000 * large.weight, small.weight, atol=1e-3, rtol=1e-2)
    assert_close(large.logits(1000 * encodings), small.logits(encodings), atol=1e-2, rtol=1e-2)


def test_a_start_saves_steps_and_leads_to_the_same_head() -> None:
    encodings, labels = new_data(80, 30, 3, apart=0.5)
    done = fit_head(encodings, labels, 3, penalty=0.01)
    again = fit_head(encodings, labels, 3, penalty=0.01, iterations=1, start=done)
    assert_close(again.logits(encodings), done.logits(encodings), atol=1e-2, rtol=0)
    elsewhere = LinearHead(torch.randn(3, 30), torch.randn(3))
    before = elsewhere.weight.clone()
    found = fit_head(encodings, labels, 3, penalty=0.01, start=elsewhere)
    assert_close(found.weight, done.weight, atol=2e-3, rtol=0)
    assert_close(elsewhere.weight, before, atol=0, rtol=0)


def test_one_step_is_not_enough() -> None:
    encodings, labels = new_data(80, 30, 3, apart=0.2)
    done, short = (fit_head(encodings, labels, 3, penalty=0.001, iterations=each) for each in (200, 2))
    assert not torch.allclose(done.weight, short.weight, rtol=0.1)


def test_a_head_is_the_same_twice_and_needs_no_gradients() -> None:
    encodings, labels = new_data(50, 20, 3)
    first = fit_head(encodings.requires_grad_(), labels, 3, penalty=0.01)
    with torch.inference_mode():
        second = fit_head(encodings, labels, 3, penalty=0.01)
    assert not first.weight.requires_grad
    assert bool((first.weight == second.weight).all())


def test_a_penalty_makes_weights_small_but_not_the_bias() -> None:
    encodings, labels = new_data(100, 10, 2)
    labels = (torch.arange(100) < 10).long()
    head = fit_head(encodings, labels, 2, penalty=1e4)
    assert float(head.weight.abs().max()) < 1e-3
    assert_close(head.logits(encodings).softmax(1).mean(0), tensor([0.9, 0.1]), atol=1e-3, rtol=0)


def test_a_class_without_images_is_never_predicted() -> None:
    encodings, labels = new_data(40, 10, 2)
    head = fit_head(encodings, labels, 5, penalty=0.01)
    assert bool(head.weight.isfinite().all())
    assert bool((head.logits(encodings).softmax(1)[:, 2:] < 1e-3).all())


def test_encodings_of_zeros_give_the_frequencies() -> None:
    head = fit_head(torch.zeros(8, 3), tensor([0, 0, 0, 0, 0, 0, 1, 1]), 2, penalty=0.1)
    assert_close(head.logits(torch.zeros(1, 3)).softmax(1), tensor([[0.75, 0.25]]), atol=1e-4, rtol=0)


# --- whitening ---


@pytest.mark.parametrize(("count", "length"), [(30, 50), (50, 50), (200, 20)])
@pytest.mark.parametrize("shrinkage", [0.1, 1.0, 5.0])
def test_whitening_is_the_inverse_root_of_scipy(count: int, length: int, shrinkage: float) -> None:
    encodings, labels = new_data(count, length, 5, noise=5)
    encodings = 3 * encodings
    mean, matrix = slow_whitening(encodings, labels, None, shrinkage)
    projection = whiten(encodings, labels, shrinkage)
    assert_close(projection.weight, matrix.float(), atol=1e-5, rtol=1e-4)
    held_out = 3 * torch.randn(7, length)
    assert_close(projection.project(held_out), ((held_out - mean) @ matrix).float(), atol=1e-4, rtol=1e-4)
    linear = torch.nn.Linear(length, length)
    with torch.no_grad():
        linear.weight.copy_(projection.weight)
        linear.bias.copy_(projection.bias)
        assert_close(linear(held_out), projection.project(held_out))


def test_one_spectrum_serves_all_shrinkages() -> None:
    data = new_data(40, 30, 4)
    spectrum = within_class_spectrum(*data)
    for shrinkage in (0.3, 3.0):
        assert_close(whitening(spectrum, shrinkage).weight, whiten(*data, shrinkage).weight)


def test_whitened_classes_vary_equally_in_all_directions() -> None:
    encodings, labels = new_data(3000, 10, 3, noise=20)
    projected = whiten(encodings, labels, shrinkage=1e-6).project(encodings)
    residuals = torch.cat([projected[labels == each] - projected[labels == each].mean(0) for each in range(3)])
    assert_close(residuals.mT @ residuals / 3000, torch.eye(10), atol=1e-2, rtol=0)


def test_a_class_of_one_image_tells_nothing_about_variation() -> None:
    encodings, labels = new_data(40, 12, 4)
    outliers = 100 * torch.randn(2, 12)
    more, more_labels = torch.cat([encodings, outliers]), torch.cat([labels, tensor([4, 6])])
    assert_close(whiten(more, more_labels, 1.0).weight, whiten(encodings, labels, 1.0).weight)
    assert_close(within_class_spectrum(more, more_labels).mean, more.double().mean(0))


@pytest.mark.parametrize("labels", [tensor([0, 1, 2, 3]), tensor([0, 0, 1, 1])])
def test_without_variation_encodings_are_centred(labels: Tensor) -> None:
    encodings = torch.randn(4, 6)[labels]
    projection = whiten(encodings, labels, 1.0)
    assert_close(projection.weight, torch.eye(6))
    assert_close(projection.project(encodings), encodings - encodings.mean(0))


# --- folds ---


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 99))
def test_folds_are_even_for_each_class_and_in_all(classes: list[int], count: int, seed: int) -> None:
    labels = tensor(classes)
    folds = draw_folds(labels, count, seeded(seed))
    assert folds.shape == labels.shape
    assert folds.dtype == torch.int64
    for chosen in (folds, *(folds[labels == each] for each in set(classes))):
        sizes = torch.bincount(chosen, minlength=count)
        assert len(sizes) == count
        assert int(sizes.max() - sizes.min()) <= 1
    assert_close(draw_folds(labels, count, seeded(seed)), folds)


def test_folds_are_drawn_by_the_generator() -> None:
    labels = torch.arange(100) % 3
    assert bool((draw_folds(labels, 5, seeded(0)) != draw_folds(labels, 5, seeded(1))).any())


# --- choosing a layer ---


def only(monkeypatch: pytest.MonkeyPatch, shrinkage: float | None, scale: float) -> None:
    """Let a vote have no choice."""
    monkeypatch.setattr(fitting, "SHRINKAGES", (None,) if shrinkage is None else (None, shrinkage))
    monkeypatch.setattr(fitting, "SCALES", (scale,))
    if shrinkage is not None:
        monkeypatch.setattr(fitting, "choose_vote", lambda *_: -1)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_plain_votes_are_those_of_a_loop_that_leaves_each_image_out(
    monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    only(monkeypatch, None, scale)
    encodings, labels = new_data(40, 12, 3, apart=0.6)
    layer = choose_layer(encodings, labels, 3, seeded())
    used = []
    for image in range(40):
        others = torch.arange(40) != image
        shares, similarity, count = slow_vote(encodings[image], encodings[others], labels[others], 3, scale)
        assert_close(layer.held_out_votes[image], shares, atol=1e-5, rtol=0)
        assert float(layer.held_out_similarity[image]) == pytest.approx(similarity, abs=1e-5)
        used.append(count)
    assert layer.scores.used_images == pytest.approx(sum(used) / 40)
    assert layer.scores.vote_accuracy == accuracy(layer.held_out_votes.argmax(1), labels)
    assert (layer.scale, layer.shrinkage, layer.projection) == (scale, None, None)


@pytest.mark.parametrize(("length", "shrinkage"), [(60, 1.0), (60, 0.1), (12, 0.3)])
def test_whitened_votes_are_those_of_a_loop_that_whitens_without_each_image(
    monkeypatch: pytest.MonkeyPatch, length: int, shrinkage: float
) -> None:
    only(monkeypatch, shrinkage, 4.0)
    encodings, labels = new_data(40, length, 3, apart=0.6, noise=3)
    labels[:3] = tensor([3, 3, 4])  # a class that loses its only companion, and one that has none
    layer = choose_layer(encodings, labels, 5, seeded())
    assert layer.shrinkage == shrinkage
    images = [image for image in range(40) if labels[image] != 4]
    assert layer.held_out_labels.tolist() == labels[images].tolist()
    variances = within_class_spectrum(encodings, labels).mean_variance
    for row, image in enumerate(images):
        others = torch.arange(40) != image
        remaining = int((labels[others].bincount()[labels[others]] > 1).sum())
        # What is added to the diagonal is that of all images, in proportion to how many vary.
        added = shrinkage * variances * len(images) / remaining
        mean, matrix = slow_whitening(encodings[others], labels[others], added, shrinkage)
        project = lambda vectors: (vectors - mean) @ matrix  # noqa: B023, E731
        shares, similarity, _ = slow_vote(project(encodings[image]), project(encodings[others]), labels[others], 5, 4.0)
        assert_close(layer.held_out_votes[row].double(), shares, atol=1e-4, rtol=0)
        assert float(layer.held_out_similarity[row]) == pytest.approx(similarity, abs=1e-4)


@pytest.mark.parametrize("shrinkage", [None, 0.3])
def test_where_fewer_are_remembered_these_alone_vote(monkeypatch: pytest.MonkeyPatch, shrinkage: float | None) -> None:
    only(monkeypatch, shrinkage, 4.0)
    encodings, labels = new_data(40, 60, 3, apart=0.6, noise=3)
    memory = torch.tensor([30, 4, 17, 8, 22, 11, 39])
    layer = choose_layer(encodings, labels, 3, seeded(), memory=memory)
    assert len(layer.held_out_votes) == 40
    for image in range(40):
        others, voters = torch.arange(40) != image, memory[memory != image]
        project = lambda vectors: vectors  # noqa: E731
        if shrinkage is not None:
            remaining = int((labels[others].bincount()[labels[others]] > 1).sum())
            added = shrinkage * within_class_spectrum(encodings, labels).mean_variance * 40 / remaining
            mean, matrix = slow_whitening(encodings[others], labels[others], added, shrinkage)
            project = lambda vectors: (vectors - mean) @ matrix  # noqa: B023, E731
        shares, _, _ = slow_vote(project(encodings[image]), project(encodings[voters]), labels[voters], 3, 4.0)
        assert_close(layer.held_out_votes[image].double(), shares.double(), atol=1e-4, rtol=0)


def test_more_may_be_remembered_than_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, None, 4.0)
    monkeypatch.setattr(fitting, "MOST_COMPARED", 20)
    encodings, labels = new_data(60, 12, 3, apart=0.6)
    layer = choose_layer(encodings, labels, 3, seeded())
    assert layer.held_out_votes.shape == (20, 3)
    images = fitting._draw_compared(labels, seeded())
    for row, image in enumerate(images.tolist()):
        others = torch.arange(60) != image
        shares, _, _ = slow_vote(encodings[image], encodings[others], labels[others], 3, 4.0)
        assert_close(layer.held_out_votes[row], shares, atol=1e-5, rtol=0)


def test_the_only_image_of_a_memory_is_not_held_out() -> None:
    encodings, labels = new_data(40, 12, 3)
    layer = choose_layer(encodings, labels, 3, seeded(), memory=torch.tensor([7]))
    assert layer.held_out_labels.tolist() == [*labels[:7].tolist(), *labels[8:].tolist()]
    assert layer.held_out_votes[:, labels[7]].unique().tolist() == [1]
    assert layer.decide == "head"


def test_the_projection_is_fitted_to_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, 0.3, 4.0)
    encodings, labels = new_data(40, 12, 3)
    layer = choose_layer(encodings, labels, 3, seeded())
    assert layer.projection is not None
    assert_close(layer.projection.weight, whiten(encodings, labels, 0.3).weight)


@pytest.mark.parametrize("length", [20, 300])
def test_held_out_logits_are_those_of_heads_that_did_not_see_the_images(length: int) -> None:
    encodings, labels = new_data(120, length, 3, apart=0.4)
    layer = choose_layer(encodings, labels, 3, seeded())
    strength = 1 / (120 * layer.penalty)
    folds = draw_folds(labels, 10, _after_the_subset(labels))
    for fold in range(10):
        rest, held_out = folds != fold, folds == fold
        factor = 10 / float(encodings[rest].norm(dim=1).mean())
        reference = LogisticRegression(C=strength, tol=1e-8, max_iter=5000)
        reference.fit(factor * encodings[rest].double(), labels[rest])
        expected = tensor(reference.predict_proba(factor * encodings[held_out].double()))
        assert_close(layer.held_out_head_logits[held_out].double().softmax(1), expected, atol=5e-3, rtol=0)


def _after_the_subset(labels: Tensor) -> torch.Generator:
    """The generator as it is when folds are drawn: one order of all images, from which a subset comes, was drawn."""
    numbers = seeded()
    torch.randperm(len(labels), generator=numbers)
    return numbers


def test_random_labels_are_not_learnt() -> None:
    encodings, labels = torch.randn(200, 300), torch.randint(2, (200,))
    layer = choose_layer(encodings, labels, 2, seeded())
    assert accuracy(layer.head.logits(encodings).argmax(1), labels) > 0.85  # of images that it was fitted to
    scores = layer.scores
    assert scores.head_accuracy is not None
    assert scores.vote_accuracy is not None
    assert 0.35 < scores.head_accuracy < 0.65
    assert 0.35 < scores.vote_accuracy < 0.65


def test_where_classes_vary_in_the_same_way_votes_are_whitened_and_better_for_it() -> None:
    training, test = halves(*new_data(600, 40, 4, apart=0.5, noise=8))
    layer = choose_layer(*training, 4, seeded())
    assert layer.shrinkage is not None
    assert layer.projection is not None
    plain, whitened = (
        torch.stack([slow_vote(query, keys, training[1], 4, layer.scale)[0] for query in queries]).argmax(1)
        for queries, keys in (
            (test[0], training[0]),
            (layer.projection.project(test[0]), layer.projection.project(training[0])),
        )
    )
    assert accuracy(whitened, test[1]) > accuracy(plain, test[1]) + 0.1
    scores = layer.scores
    assert scores.vote_accuracy is not None
    assert scores.plain_vote_accuracy is not None
    assert scores.vote_accuracy == pytest.approx(accuracy(whitened, test[1]), abs=0.06)
    assert scores.plain_vote_accuracy < scores.vote_accuracy - 0.1


def test_of_equally_good_votes_the_one_with_the_fewest_images_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    encodings, labels = new_data(90, 30, 3, apart=3)
    chosen = choose_layer(encodings, labels, 3, seeded())
    assert chosen.scores.vote_accuracy == chosen.scores.plain_vote_accuracy == 1
    used = {}
    for shrinkage, scale in product(fitting.SHRINKAGES, fitting.SCALES):
        monkeypatch.setattr(fitting, "SHRINKAGES", (None, shrinkage))
        monkeypatch.setattr(fitting, "SCALES", (scale,))
        alone = choose_layer(encodings, labels, 3, seeded())
        used[alone.shrinkage, scale] = alone.scores.used_images
        assert alone.scores.vote_accuracy == 1
    assert (chosen.scores.used_images, chosen.decide) == (min(used.values()), "vote")
    assert used[chosen.shrinkage, chosen.scale] == chosen.scores.used_images


def test_a_given_scale_is_that_of_the_held_out_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "SHRINKAGES", (None,))
    encodings, labels = new_data(90, 30, 3, apart=0.5)
    layer = choose_layer(encodings, labels, 3, seeded(), scale=7.0)
    assert layer.scale == 7.0
    for image in range(90):
        others = torch.arange(90) != image
        shares, _, _ = slow_vote(encodings[image], encodings[others], labels[others], 3, 7.0)
        assert_close(layer.held_out_votes[image], shares, atol=1e-4, rtol=0)


def test_a_vote_that_is_worse_than_the_head_does_not_decide() -> None:
    # Classes in a row: their middle one has no direction of its own, so that cosines tell little about it.
    labels = torch.arange(300) % 3
    encodings = torch.randn(300, 30)
    encodings[:, 0] = 12 * (labels - 1) + torch.randn(300)
    layer = choose_layer(encodings, labels, 3, seeded())
    assert layer.scores.head_accuracy is not None
    assert layer.scores.vote_accuracy is not None
    assert layer.scores.vote_accuracy < layer.scores.head_accuracy - 0.01
    assert layer.decide == "head"


def test_the_penalty_with_the_lowest_loss_is_taken() -> None:
    weak, strong = (choose_layer(*new_data(200, 60, 3, apart=apart), 3, seeded()).penalty for apart in (2.0, 0.05))
    assert strong == pytest.approx(1 / (200 * 0.03))  # nothing to be learnt
    assert weak < 1 / (200 * 3)  # all to be learnt
    encodings, labels = new_data(200, 60, 3, apart=0.3)
    layer = choose_layer(encodings, labels, 3, seeded())
    losses = {}
    for strength in fitting.STRENGTHS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fitting, "STRENGTHS", (strength,))
            logits = choose_layer(encodings, labels, 3, seeded()).held_out_head_logits
        losses[1 / (200 * strength)] = float(torch.nn.functional.cross_entropy(logits, labels))
    assert layer.penalty == pytest.approx(min(losses, key=lambda each: losses[each]))


def test_the_head_is_fitted_to_all_images() -> None:
    encodings, labels = new_data(60, 20, 3)
    layer = choose_layer(encodings, labels, 3, seeded())
    assert_close(layer.head.weight, fit_head(encodings, labels, 3, layer.penalty).weight, atol=0, rtol=0)


def test_of_many_images_a_subset_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_COMPARED", 50)
    encodings, labels = new_data(200, 10, 2, apart=2)
    labels[:40] = 2  # the others have 80 each
    layer = choose_layer(encodings, labels, 3, seeded())
    assert layer.held_out_votes.shape == layer.held_out_head_logits.shape == (50, 3)
    assert layer.held_out_labels.bincount().tolist() == [20, 20, 10]
    assert_close(layer.head.weight, fit_head(encodings, labels, 3, layer.penalty).weight, atol=0, rtol=0)


def fields(layer: FittedLayer) -> list[object]:
    tensors = (layer.head.weight, layer.head.bias, layer.held_out_votes, layer.held_out_head_logits)
    return [*(each.tolist() for each in tensors), layer.scores, layer.scale, layer.shrinkage, layer.penalty]


def test_a_choice_depends_on_the_generator_alone() -> None:
    data = new_data(60, 20, 3, apart=0.4)
    first, second, other = (fields(choose_layer(*data, 3, seeded(seed))) for seed in (0, 0, 1))
    assert first == second
    assert first[3] != other[3]


def test_two_images_of_two_classes_get_the_defaults() -> None:
    encodings = torch.randn(2, 8)
    layer = choose_layer(encodings, tensor([0, 1]), 2, seeded())
    assert (layer.scale, layer.projection, layer.shrinkage, layer.decide) == (4.0, None, None, "vote")
    assert layer.penalty == pytest.approx(1 / 2)
    assert layer.head.logits(encodings).argmax(1).tolist() == [0, 1]
    assert layer.held_out_votes.shape == layer.held_out_head_logits.shape == (0, 2)
    assert layer.held_out_similarity.shape == layer.held_out_labels.shape == (0,)
    assert layer.scores == fitting.LayerScores(None, None, None, None)


def test_few_images_choose_nothing_but_are_held_out() -> None:
    encodings, labels = new_data(7, 8, 2, apart=3)
    labels[0] = 2  # alone in its class
    layer = choose_layer(encodings, labels, 3, seeded())
    assert (layer.scale, layer.projection, layer.decide, layer.penalty) == (4.0, None, "vote", pytest.approx(1 / 7))
    assert layer.held_out_labels.tolist() == labels[1:].tolist()
    assert_close(layer.held_out_votes.sum(1), torch.ones(6))


@pytest.mark.parametrize(
    ("classes", "num_classes"),
    [
        ([0], 1),
        ([0] * 12, 1),
        ([0] * 12, 3),
        ([0, 0, 1], 2),
        ([*range(12)], 12),
        ([*range(12), *range(12)], 12),
        ([0] * 20 + [1, 2, 3], 5),
        ([4] * 20 + [1], 5),
        ([0] * 11 + [1] * 2, 2),
    ],
)
@pytest.mark.parametrize("kind", ["random", "zero", "equal", "few values"])
def test_odd_data_crash_nothing(classes: list[int], num_classes: int, kind: str) -> None:
    labels = tensor(classes)
    kinds = {
        "random": torch.randn(len(labels), 6),
        "zero": torch.zeros(len(labels), 6),
        "equal": torch.ones(len(labels), 6),
        "few values": torch.eye(6)[labels % 2],
    }
    layer = choose_layer(kinds[kind], labels, num_classes, seeded())
    held_out = int((labels.bincount()[labels] > 1).sum())
    assert layer.held_out_votes.shape == layer.held_out_head_logits.shape == (held_out, num_classes)
    for each in (layer.held_out_votes, layer.held_out_head_logits, layer.held_out_similarity, layer.head.weight):
        assert bool(each.isfinite().all())
    assert all(each is None or math.isfinite(each) for each in vars(layer.scores).values())


def test_half_precision_and_small_labels_are_accepted() -> None:
    encodings, labels = new_data(40, 10, 3)
    layers = [choose_layer(each, labels.to(torch.int8), 3, seeded()) for each in (encodings.half(), encodings.double())]
    assert layers[0].head.weight.dtype == torch.float32
    assert layers[1].head.weight.dtype == torch.float64
    assert layers[0].scores.head_accuracy == pytest.approx(layers[1].scores.head_accuracy, abs=0.06)


def test_what_cannot_be_fitted_is_refused() -> None:
    encodings, labels = new_data(10, 4, 2)
    calls = [
        lambda encodings, labels: fit_head(encodings, labels, 2, 0.1),
        lambda encodings, labels: choose_layer(encodings, labels, 2, seeded()),
        lambda encodings, labels: whiten(encodings, labels, 1.0),
    ]
    for call, number in product(calls, (torch.nan, torch.inf)):
        bad = encodings.clone()
        bad[3, 2] = number
        with pytest.raises(NonFiniteError, match="1 of 10"):
            call(bad, labels)
    for call in calls:
        with pytest.raises(InputError, match="9 labels"):
            call(encodings, labels[:9])
    for call in calls[:2]:
        with pytest.raises(InputError, match="to 2"):
            call(encodings, labels.clone().fill_(2))
