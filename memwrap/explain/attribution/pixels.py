"""From attributions to what is shown and ranked: one number to a pixel."""

from torch import Tensor

# The share of the positive pixels that keep their order in a map. The few above would leave the others dark.
SHOWN_APART = 0.99


def pixel_scores(attributions: Tensor) -> Tensor:
    """What each pixel adds to the score, all channels together. (..., C, H, W) -> (..., H, W)"""
    return attributions.sum(-3)


def positive_map(attributions: Tensor) -> Tensor:
    """Where an image speaks for the prediction, for display: (C, H, W) -> (H, W), from 0 to 1.

    The channels of a pixel are added up, and what speaks against the prediction is 0. The rest is divided by its 99th
    percentile, so that 1 is that or more: of the positive pixels alone, as else a map of few would be empty. Each map
    has its own scale. It is zero everywhere if nothing is positive.
    """
    positive = pixel_scores(attributions.detach()).clamp(min=0)
    if not bool((positive > 0).any()):
        return positive
    return (positive / positive[positive > 0].quantile(SHOWN_APART)).clamp(max=1)
