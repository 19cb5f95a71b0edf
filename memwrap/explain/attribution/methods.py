"""Captum's methods by name, and how many images they encode at a time."""

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from memwrap.errors import InputError
from memwrap.explain.attribution.predicted_logit import PredictedLogit

Result = TypeVar("Result")
# For each argument of f its attributions, in its shape: (1, C, H, W) and, if samples move, (1, k, C, H, W).
Attributions = tuple[Tensor, ...]

INTEGRATED_GRADIENTS = "integrated_gradients"

# The first try: what an encoder keeps of an image grows with its pixels.
PIXELS_AT_ONCE = 1 << 20
CPU_AT_ONCE = 256  # images: more is no faster there

WINDOW = 1 / 8  # of occlusion, as a part of the shorter side; it moves by half of itself
ROWS = 64  # to a pass at most, of all methods but integrated gradients


class PassLimit:
    """How many images a pass may encode; halved for good when the device runs out of memory."""

    def __init__(self, images: int) -> None:
        self.images = images

    def run(self, compute: Callable[[int], Result], images_in_row: int, most: int) -> Result:
        """Call compute(rows) with as many rows as fit into a pass; again with half of them if memory runs out.

        most: how many rows a pass can use.
        """
        while True:
            rows = max(1, min(most, self.images // images_in_row))
            try:
                return compute(rows)
            except torch.OutOfMemoryError as error:
                if rows == 1:
                    error.add_note(f"one pass encodes {images_in_row} images here; let fewer memory samples move")
                    raise
            # After the error is released, which holds what filled the memory.
            self.images = rows // 2 * images_in_row


def first_limit(device: torch.device, images: Tensor) -> PassLimit:
    """The first limit to try, for images (..., H, W)."""
    height, width = images.shape[-2:]
    most = max(1, PIXELS_AT_ONCE // (height * width))
    return PassLimit(min(most, CPU_AT_ONCE) if device.type == "cpu" else most)


def captum_attr() -> ModuleType:
    """Captum's methods, loaded when they are needed."""
    try:
        import captum.attr
    except ImportError as error:
        raise InputError("heatmaps need captum, which is not installed: pip install captum") from error
    module: ModuleType = captum.attr
    return module


def check_method(name: str) -> None:
    """An InputError for an unknown method."""
    if name not in METHODS:
        raise InputError(f"method is {name!r}; expected one of {', '.join(METHODS)}")


def integrated_gradients(logit: PredictedLogit, baselines: Attributions, steps: int, rows: int) -> Attributions:
    """The mean gradient on the way from the baselines to the arguments, times that way (Sundararajan et al. 2017)."""
    found: Attributions = (
        captum_attr()
        .IntegratedGradients(logit)
        .attribute(logit.arguments(), baselines, n_steps=steps, method="gausslegendre", internal_batch_size=rows)
    )
    return found


def _saliency(logit: PredictedLogit, baselines: Attributions, rows: int) -> Attributions:
    """The size of the gradient, without its sign."""
    found: Attributions = captum_attr().Saliency(logit).attribute(_leaves(logit))
    return found


def _input_x_gradient(logit: PredictedLogit, baselines: Attributions, rows: int) -> Attributions:
    found: Attributions = captum_attr().InputXGradient(logit).attribute(_leaves(logit))
    return tuple(attributions.detach() for attributions in found)


def _occlusion(logit: PredictedLogit, baselines: Attributions, rows: int) -> Attributions:
    """How much f falls when a square is replaced by the baseline, on average over the squares that hold a pixel."""
    arguments = logit.arguments()
    channels, height, width = logit.image.shape
    side = max(1, round(WINDOW * min(height, width)))
    window, stride = (channels, side, side), (channels, max(1, side // 2), max(1, side // 2))
    found: Attributions = (
        captum_attr()
        .Occlusion(logit)
        .attribute(
            arguments,
            # A window covers one image: the input, then one sample after another.
            sliding_window_shapes=(window, (1, *window))[: len(arguments)],
            strides=(stride, (1, *stride))[: len(arguments)],
            baselines=baselines,
            perturbations_per_eval=rows,
        )
    )
    return found


def _leaves(logit: PredictedLogit) -> Attributions:
    """The arguments as captum wants those of a method that takes their gradient."""
    return tuple(argument.requires_grad_() for argument in logit.arguments())


# All but integrated gradients: they need no steps, and do not promise to add up to f(x) - f(baseline). DeepLift is not
# among them: it wants rules for every nonlinearity, and has none for sparsemax. Nor is any that draws random points,
# as GradientShap does: on another device they would be others, and a report with such maps could not be verified.
ONE_SHOT: dict[str, Callable[[PredictedLogit, Attributions, int], Attributions]] = {
    "saliency": _saliency,
    "input_x_gradient": _input_x_gradient,
    "occlusion": _occlusion,
}
METHODS = (INTEGRATED_GRADIENTS, *ONE_SHOT)
