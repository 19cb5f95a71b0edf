"""Fitting a layer to the encodings of a frozen encoder: a linear head, whitening, and how the memory votes.

Nothing here is trained by steps: heads and projections have one optimum each, and what remains to be chosen is chosen
by images that were held out. N images, D length of an encoding, C classes, H held-out images.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from memwrap.errors import NonFiniteError
from memwrap.metrics import accuracy
from memwrap.metrics.checks import check_classes, check_count, check_lengths, check_tensor, first_argmax
from memwrap.nn.attention import sparsemax
from memwrap.nn.precision import exact_linear, exact_products, to_full_precision
from memwrap.nn.similarity import EPSILON, CosineSimilarity
from memwrap.nn.vote_layer import Decide
from memwrap.nn.voting import SCALES, choose_vote, sum_by_label

MOST_COMPARED = 2000  # images that take part in choosing; all take part in the final fit
FEWEST_COMPARED = 10  # held-out images: fewer decide nothing, and the defaults below are used
# For the head, which takes too long to fit without each image in turn. With many images, a larger fold is missed less.
FOLDS, FOLDS_OF_MANY, MANY = 10, 5, 1000

TYPICAL_NORM = 10.0  # of the encodings that a head is fitted to, so that a penalty means the same for any encoder
TOLERANCE = 1e-5  # of the head's gradient
HISTORY = 10  # steps from which L-BFGS guesses the curvature

# A head's penalty is 1 / (images * strength): scikit-learn's C. From the strongest penalty to the weakest.
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
DEFAULT_STRENGTH = 1.0
PATIENCE = 2  # penalties without a lower loss, after which weaker ones are not tried

# None: the plain encodings. Weaker ones suit the images that they are fitted to, and classes added later less.
SHRINKAGES = (None, 2.0)
DEFAULT_SCALE = 4.0
DECIDE_TOLERANCE = 0.01  # what a vote may lose to the head: it shows the images that decided


@dataclass(frozen=True)
class LinearHead:
    """logits = weight @ encoding + bias"""

    weight: Tensor  # (C, D)
    bias: Tensor  # (C,)

    def logits(self, encodings: Tensor) -> Tensor:
        """encodings (B, D) -> (B, C)"""
        return exact_linear(encodings, self.weight, self.bias)


@dataclass(frozen=True)
class Projection:
    """encoding -> weight @ encoding + bias, as a torch.nn.Linear computes it"""

    weight: Tensor  # (D, D)
    bias: Tensor  # (D,)

    def project(self, encodings: Tensor) -> Tensor:
        """encodings (B, D) -> (B, D)"""
        return exact_linear(encodings, self.weight, self.bias)


@dataclass(frozen=True)
class WithinClassSpectrum:
    """How encodings vary within their classes: the variances along orthogonal directions; none along all others."""

    mean: Tensor  # (D,): of all encodings
    directions: Tensor  # (R, D), of length one; R up to D and the number of images
    variances: Tensor  # (R,)

    @property
    def mean_variance(self) -> float:
        """Over all D coordinates."""
        return float(self.variances.sum()) / len(self.mean)


@dataclass(frozen=True)
class LayerScores:
    """Of held-out images, from 0 to 1; None if no image could be held out."""

    head_accuracy: float | None
    vote_accuracy: float | None
    plain_vote_accuracy: float | None  # the best without a projection
    used_images: float | None  # memory images of positive weight, on average


@dataclass(frozen=True)
class FittedLayer:
    """A layer fitted to all images, and what it predicts for images that were held out while fitting it."""

    head: LinearHead
    projection: Projection | None
    shrinkage: float | None  # of the projection
    scale: float
    decide: Decide
    penalty: float
    scores: LayerScores
    held_out_head_logits: Tensor  # (H, C)
    held_out_votes: Tensor  # (H, C)
    held_out_similarity: Tensor  # (H,): the largest cosine to the memory
    held_out_labels: Tensor  # (H,)


@torch.no_grad()
def fit_head(
    encodings: Tensor,
    labels: Tensor,
    num_classes: int,
    penalty: float,
    iterations: int = 200,
    start: LinearHead | None = None,
) -> LinearHead:
    """Multinomial logistic regression: the least mean cross-entropy + penalty / 2 * ||weight||², by L-BFGS.

    encodings (N, D), labels (N,). The penalty is that of encodings whose mean norm is 10; it leaves out the bias.
    scikit-learn's LogisticRegression(C) has the penalty 1 / (N * C). start: a head to begin with, to save time.
    """
    encodings, labels = _check_labelled(encodings, labels, num_classes)
    norm = float(encodings.norm(dim=1).mean())
    factor = TYPICAL_NORM / norm if norm > 0 else 1.0
    mean = encodings.mean(0)
    # Centred, L-BFGS needs fewer steps; the bias, free of penalty, takes up the difference.
    inputs = functional.pad((encodings - mean) * factor, (0, 1), value=1.0)  # (N, D + 1)
    if start is None:
        weights = inputs.new_zeros(num_classes, inputs.shape[1])
    else:
        weights = torch.cat([start.weight / factor, start.logits(mean).unsqueeze(1)], dim=1)
    weights = _minimise_cross_entropy(weights, inputs, labels, penalty, iterations)
    weight = weights[:, :-1] * factor
    return LinearHead(weight, weights[:, -1] - weight @ mean)


def within_class_spectrum(encodings: Tensor, labels: Tensor) -> WithinClassSpectrum:
    """The spectrum of the within-class covariance: one for all shrinkages of `whitening`.

    encodings (N, D), labels (N,). An image that is the only one of its class tells nothing about variation.
    """
    encodings, labels = _check_labelled(encodings, labels)
    encodings = encodings.double()
    sizes = labels.bincount()
    residuals = (encodings - _class_means(encodings, labels)[labels])[sizes[labels] > 1]
    directions, variances = _principal_axes(residuals)
    return WithinClassSpectrum(encodings.mean(0), directions, variances)


def whitening(spectrum: WithinClassSpectrum, shrinkage: float) -> Projection:
    """z -> (S + shrinkage * mean(diag S) * I)^(-1/2) @ (z - mean), S the within-class covariance; in float32.

    Directions along which images of one class differ count less. Without any variation, encodings are centred only.
    """
    unit = torch.eye(len(spectrum.mean), dtype=torch.float64, device=spectrum.mean.device)
    weight = _rescale(unit, spectrum, shrinkage)
    return Projection(weight.float(), -(weight @ spectrum.mean).float())


def whiten(encodings: Tensor, labels: Tensor, shrinkage: float) -> Projection:
    """Fit the projection of `whitening` to encodings (N, D) with labels (N,)."""
    return whitening(within_class_spectrum(encodings, labels), shrinkage)


def draw_folds(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Deal the images to `count` folds: labels (N,) -> (N,), int64. Folds of a class differ by one image at most."""
    count, labels = check_count("count", count), check_classes("labels", labels).cpu()
    order = _shuffle_by_class(labels, generator)
    # On from class to class, so that the folds differ by one image at most, too.
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order)) % count)


@torch.no_grad()
def choose_layer(
    encodings: Tensor,
    labels: Tensor,
    num_classes: int,
    generator: torch.Generator,
    iterations: int = 200,
    scale: float | None = None,
    memory: Tensor | None = None,
) -> FittedLayer:
    """Fit a layer to encodings (N, D) with labels (N,); held-out images choose all that can be chosen.

    The head's penalty, the projection and the scale of the vote, and which of the two decides. An image that is the
    only one of its class is never held out. With fewer than 10 others, nothing is chosen: there are defaults.
    scale: of the vote, which is not chosen then. memory (M,): indices of the images that will vote; None for all.
    """
    encodings, labels = _check_labelled(encodings, labels, num_classes)
    compared = _draw_compared(labels.cpu(), generator).to(labels.device)
    voters = torch.arange(len(labels), device=labels.device) if memory is None else memory.to(labels.device)
    trial = _new_trial(encodings, labels, num_classes, compared, voters, generator)
    choosing = len(trial.held_out) >= FEWEST_COMPARED
    head = _choose_head(trial, STRENGTHS if choosing else (DEFAULT_STRENGTH,), iterations)
    scales = (SCALES if choosing else (DEFAULT_SCALE,)) if scale is None else (scale,)
    votes = _try_votes(trial, SHRINKAGES if choosing else (None,), scales)
    vote = votes[choose_vote([each.accuracy for each in votes], [each.used_images for each in votes])]
    penalty = 1 / (len(labels) * head.strength)
    any_held_out = len(trial.held_out) > 0
    plain = max(each.accuracy for each in votes if each.shrinkage is None)
    return FittedLayer(
        head=fit_head(encodings, labels, num_classes, penalty, iterations),
        projection=None if vote.shrinkage is None else whiten(encodings, labels, vote.shrinkage),
        shrinkage=vote.shrinkage,
        scale=vote.scale,
        decide="head" if choosing and vote.accuracy < head.accuracy - DECIDE_TOLERANCE else "vote",
        penalty=penalty,
        scores=LayerScores(head.accuracy, vote.accuracy, plain, vote.used_images)
        if any_held_out
        else LayerScores(None, None, None, None),
        held_out_head_logits=head.logits,
        held_out_votes=vote.votes,
        held_out_similarity=vote.similarity,
        held_out_labels=trial.held_out_labels,
    )


@dataclass(frozen=True)
class _Trial:
    """The images that take part in choosing; shapes as above, with N for their number, and M that vote."""

    encodings: Tensor  # (N, D)
    labels: Tensor  # (N,)
    num_classes: int
    folds: Tensor  # (N,): when an image is held out; -1: never
    held_out: Tensor  # (H,): indices of the images that are held out once, ascending
    voters: Tensor  # (M, D): encodings of the memory
    voter_labels: Tensor  # (M,)
    is_voter: Tensor  # (H, M): whether a held-out image is that one, and so does not vote; at most once in a row

    @property
    def held_out_labels(self) -> Tensor:
        return self.labels[self.held_out]

    def accuracy(self, scores: Tensor) -> float:
        """scores (H, C), of held-out images; 0 if there are none."""
        return accuracy(first_argmax(scores), self.held_out_labels) if len(scores) else 0.0

    def loss(self, logits: Tensor) -> float:
        """The mean cross-entropy of logits (H, C), of held-out images; 0 if there are none."""
        return float(functional.cross_entropy(logits.double(), self.held_out_labels)) if len(logits) else 0.0


@dataclass(frozen=True)
class _TriedHead:
    strength: float
    logits: Tensor  # (H, C)
    loss: float
    accuracy: float


@dataclass(frozen=True)
class _TriedVote:
    shrinkage: float | None
    scale: float
    votes: Tensor  # (H, C)
    similarity: Tensor  # (H,)
    accuracy: float
    used_images: float


def _new_trial(
    all_encodings: Tensor,
    all_labels: Tensor,
    num_classes: int,
    compared: Tensor,
    voters: Tensor,
    generator: torch.Generator,
) -> _Trial:
    """compared (N,), voters (M,): indices of all images"""
    labels = all_labels[compared]
    folds = draw_folds(labels, FOLDS if len(labels) < MANY else FOLDS_OF_MANY, generator).to(labels.device)
    # Without its only image, a class cannot be predicted: holding it out would tell nothing.
    folds = folds.masked_fill(labels.bincount()[labels] == 1, -1)
    if len(voters) == 1:
        folds = folds.masked_fill(compared == voters, -1)  # without it there would be no memory
    held_out = (folds >= 0).nonzero().flatten()
    return _Trial(
        encodings=all_encodings[compared],
        labels=labels,
        num_classes=num_classes,
        folds=folds,
        held_out=held_out,
        voters=all_encodings[voters],
        voter_labels=all_labels[voters],
        is_voter=compared[held_out].unsqueeze(1) == voters,
    )


def _choose_head(trial: _Trial, strengths: tuple[float, ...], iterations: int) -> _TriedHead:
    """The head with the lowest loss on held-out images, of penalties from strong to weak.

    By accuracy, penalties differ by a few images, which is chance; the loss depends on every image, and where it is low
    probabilities can be trusted.
    """
    trial = replace(trial, encodings=_shorten(trial.encodings))
    tried: list[_TriedHead] = []
    starts: list[LinearHead | None] = [None] * FOLDS
    for strength in strengths:
        starts, logits = _cross_fit_heads(trial, strength, iterations, starts)
        tried.append(_TriedHead(strength, logits, trial.loss(logits), trial.accuracy(logits)))
        losses = [each.loss for each in tried]
        if len(losses) - losses.index(min(losses)) > PATIENCE:
            break
    return min(tried, key=lambda each: each.loss)


def _cross_fit_heads(
    trial: _Trial, strength: float, iterations: int, starts: list[LinearHead | None]
) -> tuple[list[LinearHead | None], Tensor]:
    """Fit a head without each fold, beginning with `starts`: the heads, and their logits (H, C) of held-out images."""
    logits = trial.encodings.new_zeros(len(trial.labels), trial.num_classes)
    heads = list(starts)
    for fold in range(len(heads)):
        is_held_out = trial.folds == fold
        if not bool(is_held_out.any()):
            continue
        inputs, labels = trial.encodings[~is_held_out], trial.labels[~is_held_out]
        head = fit_head(inputs, labels, trial.num_classes, 1 / (len(labels) * strength), iterations, starts[fold])
        heads[fold], logits[is_held_out] = head, head.logits(trial.encodings[is_held_out])
    return heads, logits[trial.held_out]


def _shorten(encodings: Tensor) -> Tensor:
    """Rotate encodings (N, D) into the N coordinates that they need, if that is fewer: (N, min(N, D))

    Heads fitted to either have the same logits, as neither scalar products nor penalties change.
    """
    return torch.linalg.qr(encodings.mT).R.mT if len(encodings) < encodings.shape[1] else encodings


def _try_votes(trial: _Trial, shrinkages: tuple[float | None, ...], scales: tuple[float, ...]) -> list[_TriedVote]:
    """The votes of all shrinkages and scales, for each held-out image by all others of the memory."""
    spectrum = within_class_spectrum(trial.encodings, trial.labels)
    tried = []
    for shrinkage in shrinkages:
        cosines = _plain_cosines(trial) if shrinkage is None else _whitened_cosines(trial, spectrum, shrinkage)
        cosines = cosines.masked_fill(trial.is_voter, -torch.inf)  # none votes for itself
        tried += [_try_vote(trial, shrinkage, scale, cosines) for scale in scales]
    return tried


def _try_vote(trial: _Trial, shrinkage: float | None, scale: float, cosines: Tensor) -> _TriedVote:
    """cosines (H, M), -inf for images that are not in the memory"""
    if len(cosines) == 0:
        votes = cosines.new_zeros(0, trial.num_classes)
        return _TriedVote(shrinkage, scale, votes, cosines.new_zeros(0), accuracy=0.0, used_images=0.0)
    weights = sparsemax(scale * cosines)
    votes = sum_by_label(weights, trial.voter_labels, trial.num_classes)
    used = float((weights > 0).sum(1).double().mean())
    return _TriedVote(shrinkage, scale, votes, cosines.amax(1), trial.accuracy(votes), used)


def _plain_cosines(trial: _Trial) -> Tensor:
    """Compare the held-out images with the memory: (H, M)"""
    cosine = CosineSimilarity()
    return cosine.scores(cosine.vectors(trial.encodings[trial.held_out]), cosine.vectors(trial.voters))


def _whitened_cosines(trial: _Trial, spectrum: WithinClassSpectrum, shrinkage: float) -> Tensor:
    """Compare each held-out image with the memory, by a whitening that is fitted without it: (H, M)

    Scalar products of whitened vectors are x @ inv(A) @ y, with A = S + shrinkage * mean(diag S) * I. Without an image,
    the first part of A loses a product r @ r.T of its residual, so that its inverse follows from that of all images
    (Sherman and Morrison 1950), and the mean moves by a known amount. The second part, a number, is left as it is.
    """
    fitted = _rescale(trial.encodings - spectrum.mean, spectrum, shrinkage)  # (N, D)
    vectors = _rescale(trial.voters - spectrum.mean, spectrum, shrinkage)  # (M, D)
    own, own_labels = fitted[trial.held_out], trial.held_out_labels  # (H, D), (H,)
    residuals = own - _class_means(fitted, trial.labels)[own_labels]  # whitened, as all else
    sizes = trial.labels.bincount()[own_labels].double()
    # Without an image its class's mean moves, too, so that more is lost than its own residual.
    lost = sizes / (sizes - 1) / len(own)
    gains = (lost / (1 - lost * residuals.square().sum(1))).unsqueeze(1)  # of products along the residual, (H, 1)
    along, own_along = residuals @ vectors.mT, (residuals * own).sum(1, keepdim=True)
    products = own @ vectors.mT + gains * own_along * along  # (H, M): of each held-out image with each voter
    squares = vectors.square().sum(1) + gains * along.square()  # (H, N): of all, by the whitening without each
    own_squares = own.square().sum(1, keepdim=True) + gains * own_along.square()
    # Without an image, the mean moves away from it: all vectors x become x + shift * own.
    shift = 1 / (len(fitted) - 1)
    squares = squares + 2 * shift * products + shift**2 * own_squares
    products = (1 + shift) * (products + shift * own_squares)
    own_squares = (1 + shift) ** 2 * own_squares
    return (products * ((squares + EPSILON) * (own_squares + EPSILON)).rsqrt()).to(trial.encodings.dtype)


def _rescale(centred: Tensor, spectrum: WithinClassSpectrum, shrinkage: float) -> Tensor:
    """centred (N, D) @ (S + shrinkage * mean(diag S) * I)^(-1/2), without that matrix: (N, D), float64"""
    added = shrinkage * spectrum.mean_variance
    if added == 0:
        return centred
    outside = 1 / math.sqrt(added)  # the factor along all directions without variance
    factors = (spectrum.variances + added).rsqrt() - outside
    return outside * centred + (centred @ spectrum.directions.mT * factors) @ spectrum.directions


def _class_means(encodings: Tensor, labels: Tensor) -> Tensor:
    """encodings (N, D), labels (N,) -> (C, D), zero for a class without images"""
    sizes = labels.bincount()
    sums = encodings.new_zeros(len(sizes), encodings.shape[1]).index_add(0, labels, encodings)
    return sums / sizes.clamp(min=1).unsqueeze(1)


def _principal_axes(residuals: Tensor) -> tuple[Tensor, Tensor]:
    """residuals (N, D), with mean zero -> directions (R, D) of length one, and the variances (R,) along them"""
    count, length = residuals.shape
    if count >= length:
        variances, directions = torch.linalg.eigh(residuals.mT @ residuals / count)
        return directions.mT, variances.clamp(min=0)
    _, values, directions = torch.linalg.svd(residuals, full_matrices=False)
    return directions, values.square() / max(count, 1)


def _minimise_cross_entropy(weights: Tensor, inputs: Tensor, labels: Tensor, penalty: float, iterations: int) -> Tensor:
    """weights (C, D + 1), of which the last column is not penalised, inputs (N, D + 1), labels (N,) -> weights"""
    rows = torch.arange(len(labels), device=labels.device)
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=iterations,
        tolerance_grad=TOLERANCE,
        tolerance_change=1e-9,
        history_size=HISTORY,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        logits = inputs @ weights.mT
        penalised = functional.pad(weights[:, :-1], (0, 1))
        deltas = logits.softmax(1)  # the gradient by hand: it takes half the time of autograd's
        deltas[rows, labels] -= 1
        weights.grad = deltas.mT @ inputs / len(labels) + penalty * penalised
        return float(functional.cross_entropy(logits, labels) + penalty / 2 * penalised.square().sum())

    with exact_products(inputs):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    weights.grad = None
    return weights


def _draw_compared(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Indices of at most MOST_COMPARED images, ascending, each class in proportion. labels (N,)"""
    order = _shuffle_by_class(labels, generator)
    sizes = labels.bincount()
    ranks = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[labels[order]]  # within the class
    places = (ranks + 0.5) / sizes[labels[order]]  # evenly from 0 to 1 for each class
    return order[places.argsort(stable=True)[:MOST_COMPARED]].sort().values


def _shuffle_by_class(labels: Tensor, generator: torch.Generator) -> Tensor:
    """All indices, class by class, each in random order. labels (N,) -> (N,)"""
    order = torch.randperm(len(labels), generator=generator)
    return order[labels[order].argsort(stable=True)]


def _check_labelled(encodings: Tensor, labels: Tensor, num_classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Check encodings (N, D) and labels (N,): in float32 at least, without a graph, and in int64, on one device."""
    check_tensor("encodings", encodings, "(N, D)", "floating point")
    labels = check_classes("labels", labels, num_classes)
    check_lengths(encodings=encodings, labels=labels)
    encodings = to_full_precision(encodings.detach())
    if count := int((~encodings.isfinite().all(1)).sum()):
        raise NonFiniteError(f"encodings of {count} of {len(encodings)} images are not finite; check these images")
    return encodings, labels.to(encodings.device)
