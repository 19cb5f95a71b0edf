"""The vote of a memory: weights summed by the label of its samples."""

import torch
from torch import Tensor

from memwrap.nn.precision import to_full_precision


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
