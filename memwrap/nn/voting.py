"""The vote of a memory: weights summed by the label of its samples."""

from collections.abc import Sequence

import torch
from torch import Tensor

from memwrap.nn.precision import to_full_precision

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # of the similarities, of which one is chosen
TOLERANCE = 0.005  # of accuracy, for the sake of fewer images


def sum_by_label(weights: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The share of each class: weights (B, M) summed by the labels (M,), or (B, M), of the samples -> votes (B, C)

    Rows sum to one as the weights do; a class without samples gets exactly zero.

    >>> sum_by_label(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([2, 0, 2]), num_classes=3)
    tensor([[0.2500, 0.0000, 0.7500]])
    """
    # Sums of float32 weights hardly ever round in float64, so that ties do not depend on the order of the memory.
    exact = weights.double()
    zeros = exact.new_zeros(weights.shape[0], num_classes)  # not len, which torch.export takes for a constant
    return zeros.scatter_add(1, labels.expand_as(weights), exact).to(weights.dtype)


def vote_logits(votes: Tensor) -> Tensor:
    """The logarithm of votes (B, C), whose softmax gives the votes back; zero becomes the least normal number."""
    votes = to_full_precision(votes)
    return votes.clamp(min=torch.finfo(votes.dtype).tiny).log()


def choose_vote(accuracies: Sequence[float], images: Sequence[float]) -> int:
    """Which of some votes, by its place, uses the fewest images on average, of all within half a point of the best.

    >>> choose_vote([0.90, 0.92, 0.918], images=[2.0, 20.0, 10.0])
    2
    """
    least = max(accuracies) - TOLERANCE
    good = [place for place, accuracy in enumerate(accuracies) if accuracy >= least]
    return min(good, key=lambda place: (images[place], -accuracies[place]))
