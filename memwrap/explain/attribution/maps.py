"""Heatmaps for images and the memory samples that their predictions used, with a proof of how exact they are."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from memwrap.errors import InputError
from memwrap.explain.attribution.baselines import check_baseline, make_baseline
from memwrap.explain.attribution.methods import (
    INTEGRATED_GRADIENTS,
    ONE_SHOT,
    ROWS,
    Attributions,
    PassLimit,
    captum_attr,
    check_method,
    first_limit,
    integrated_gradients,
)
from memwrap.explain.attribution.predicted_logit import PredictedLogit, predicted_logit, with_gradients
from memwrap.explain.model import ExplainableModel
from memwrap.nn.checks import check_images, check_sizes

FIRST_STEPS = 32


@dataclass(frozen=True, eq=False)
class Attribution:
    """What the pixels of one image, and of memory samples that it uses, add to the logit of its predicted class.

    input (C, H, W). samples (k, C, H, W): of the memory samples `moved`, in their order; the used samples `still` took
    no part. Integrated gradients promise that all of these add up to at_input - at_baseline, f at both ends of the path
    of image and moved samples; completeness_error is by how much they do not. The fields that can be None are so for
    methods without that promise.
    """

    method: str
    baseline: str
    target: int  # the predicted class
    input: Tensor
    samples: Tensor
    moved: tuple[int, ...]
    still: tuple[int, ...]
    at_input: float
    at_baseline: float
    steps: int | None
    completeness_error: float | None
    relative_error: float | None  # the same as a part of |at_input - at_baseline|, or of 1 if that is smaller
    converged: bool | None  # whether the relative error is below the tolerance


def heatmaps(
    model: ExplainableModel,
    images: Tensor,
    samples: Sequence[Sequence[int]] | None = None,
    shown: int | None = 8,
    *,
    method: str = INTEGRATED_GRADIENTS,
    baseline: str = "white",
    tolerance: float = 0.01,
    max_steps: int = 1024,
    at_once: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Attribution]:
    """Explain the prediction for each image, (B, C, H, W) as the model takes them, with its remembered memory.

    samples: for each image the memory samples, of those it uses, that move with it from their baselines to themselves
    and get a map of their own; an empty list explains the image alone. None takes the strongest, as many as `shown`
    says, and all if that is None. Steps along the path are doubled until the relative error is below `tolerance`, or
    there are `max_steps` of them. at_once: how many images a pass encodes at most, None for what suits the device; it
    is halved when the device runs out of memory. progress(done, total) is called after each image.
    """
    _check(model, images, samples, tolerance)
    check_sizes(shown=shown, max_steps=max_steps, at_once=at_once)
    check_method(method)
    check_baseline(baseline)
    captum_attr()
    limit = first_limit(model.reference.device, images) if at_once is None else PassLimit(at_once)
    found = []
    with with_gradients(model):
        # All first, so that what is wrong with the last image is said before the work for the others.
        tasks = [
            predicted_logit(model, image, shown, None if samples is None else samples[row], f"samples[{row}]")
            for row, image in enumerate(images)
        ]
        for task in tasks:
            found.append(_attribution(task, method, baseline, tolerance, max_steps, limit))
            if progress is not None:
                progress(len(found), len(tasks))
    return found


def _attribution(
    task: PredictedLogit, method: str, baseline: str, tolerance: float, max_steps: int, limit: PassLimit
) -> Attribution:
    arguments = task.arguments()
    baselines = tuple(make_baseline(baseline, argument, task.model) for argument in arguments)
    images_in_row = 1 + len(task.moved)
    at_input, at_baseline = limit.run(lambda _: _ends(task, arguments, baselines), images_in_row, most=1)
    steps = error = relative_error = None
    if method == INTEGRATED_GRADIENTS:
        change = at_input - at_baseline
        attributions, steps = _integrated(task, baselines, change, tolerance, max_steps, limit)
        error, relative_error = completeness(attributions, change)
    else:
        attributions = limit.run(lambda rows: ONE_SHOT[method](task, baselines, rows), images_in_row, most=ROWS)
    return Attribution(
        method=method,
        baseline=baseline,
        target=task.target,
        input=attributions[0][0],
        samples=attributions[1][0] if task.moved else attributions[0].new_empty(0, *task.image.shape),
        moved=task.moved,
        still=task.still,
        at_input=at_input,
        at_baseline=at_baseline,
        steps=steps,
        completeness_error=error,
        relative_error=relative_error,
        converged=None if relative_error is None else relative_error < tolerance,
    )


def _integrated(
    task: PredictedLogit, baselines: Attributions, change: float, tolerance: float, max_steps: int, limit: PassLimit
) -> tuple[Attributions, int]:
    """Integrated gradients with as few steps as the tolerance takes, of which there may be `max_steps`; how many."""
    steps = min(FIRST_STEPS, max_steps)
    while True:
        attributions = limit.run(partial(integrated_gradients, task, baselines, steps), 1 + len(task.moved), most=steps)
        if completeness(attributions, change)[1] < tolerance or steps == max_steps:
            return attributions, steps
        steps = min(2 * steps, max_steps)


def completeness(attributions: Attributions, change: float) -> tuple[float, float]:
    """How far attributions are from adding up to the change that they explain: as it is, and as a part of the change.

    A change below 1 counts as 1, as a part of next to nothing says little.
    """
    error = abs(sum(float(part.double().sum()) for part in attributions) - change)
    return error, error / max(abs(change), 1.0)


def _ends(task: PredictedLogit, arguments: Attributions, baselines: Attributions) -> tuple[float, float]:
    """f at the arguments and at their baselines."""
    with torch.no_grad():
        return float(task(*arguments)), float(task(*baselines))


def _check(model: ExplainableModel, images: Tensor, samples: Sequence[Sequence[int]] | None, tolerance: float) -> None:
    if not isinstance(model, ExplainableModel):
        raise InputError(f"model is a {type(model).__name__}; expected a MemoryClassifier, which has a memory")
    if model.reference.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"model is in {model.reference.dtype}, too coarse to follow a path in small steps; give model.float()"
        )
    check_images(images, model.channels)
    if samples is not None and len(samples) != len(images):
        raise InputError(f"samples holds {len(samples)} lists but there are {len(images)} images; each needs one")
    if not (isinstance(tolerance, int | float) and math.isfinite(tolerance) and tolerance > 0):
        raise InputError(f"tolerance is {tolerance!r}; expected a number above 0, as 0.01 for one per cent")
