"""What batch normalisation has of its own, for several runs; without Triton, as it is also done without kernels."""

from typing import NamedTuple

from torch import Tensor


class Norm(NamedTuple):
    """Of S runs: weight and bias (S, C), and running statistics (S, C), which each run's own images update in place."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float
    epsilon: float
