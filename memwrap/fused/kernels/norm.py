"""The state of a batch normalisation of several runs. Without Triton, as the torch fallback uses it too."""

from typing import NamedTuple

from torch import Tensor


class Norm(NamedTuple):
    """Weight, bias and running statistics of S runs, (S, C) each. The running statistics are updated in place."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float
    epsilon: float
