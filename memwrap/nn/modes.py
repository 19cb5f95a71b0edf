"""Training and evaluation mode of a model and all modules in it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from memwrap.nn.precision import exact_convolutions, exact_products, without_autocast


@contextmanager
def preserve_modes(model: nn.Module) -> Iterator[None]:
    """Afterwards every module is in training or in evaluation mode as before; some may be frozen apart from others."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            if module.training != training:  # comparing is fast, writing to a module is slow
                module.training = training


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients and autocast; afterwards every module is in the mode that it was in."""
    # Tensors made in inference mode could not serve in training later on.
    with (
        preserve_modes(model),
        torch.inference_mode(False),
        torch.no_grad(),
        without_autocast(next(model.parameters())),
    ):
        if any(module.training for module in model.modules()):  # `eval` writes to each, which takes longer
            model.eval()
        yield


@contextmanager
def exact_evaluation(model: nn.Module) -> Iterator[None]:
    """`evaluation_mode` with exact float32 products and convolutions, on GPUs too: for encodings that are kept."""
    weight = next(model.parameters())
    with evaluation_mode(model), exact_products(weight), exact_convolutions(weight):
        yield
