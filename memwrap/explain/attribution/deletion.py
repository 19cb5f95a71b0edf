"""Whether highlighted pixels matter: what becomes of a prediction when they are deleted first (Petsiuk et al. 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.errors import InputError
from memwrap.explain.attribution.baselines import make_baseline
from memwrap.explain.attribution.pixels import pixel_scores
from memwrap.explain.model import ExplainableModel
from memwrap.metrics import predict_classes
from memwrap.nn.checks import check_images, check_sizes
from memwrap.nn.modes import evaluation_mode

PARTS = 20  # a curve is measured at every twentieth of the pixels


@dataclass(frozen=True)
class Deletion:
    """The predicted class's probability with 0, 5, ..., 100 per cent of the pixels deleted, and its mean."""

    curve: tuple[float, ...]
    random_curve: tuple[float, ...]  # with pixels in random order, the mean over several orders
    score: float
    random_score: float

    @property
    def difference(self) -> float:
        """How much sooner the prediction falls than by chance. Above 0, the highlighted pixels matter."""
        return self.random_score - self.score


def deletion(
    model: ExplainableModel,
    image: Tensor,
    attributions: Tensor,
    generator: torch.Generator,
    baseline: str = "white",
    random_orders: int = 8,
) -> Deletion:
    """Delete an image's pixels from the most to the least attributed, and as often as asked in random order.

    image (C, H, W), as the model takes it; attributions (C, H, W). Deleted is what the baseline shows in its place. Of
    the input alone: the model predicts with its whole remembered memory. generator: on the CPU, draws the orders.
    """
    _check(model, image, attributions)
    check_sizes(random_orders=random_orders)
    scores = pixel_scores(attributions.detach()).flatten()
    order = scores.argsort(descending=True, stable=True)
    orders = [torch.randperm(len(scores), generator=generator).to(order.device) for _ in range(random_orders)]
    empty = make_baseline(baseline, image, model)
    with evaluation_mode(model):
        target = int(predict_classes(model(image.unsqueeze(0))))
        curve = _curve(model, image, empty, order, target)
        random_curve = torch.stack([_curve(model, image, empty, each, target) for each in orders]).mean(0)
    return Deletion(
        tuple(curve.tolist()), tuple(random_curve.tolist()), float(curve.mean()), float(random_curve.mean())
    )


def _curve(model: ExplainableModel, image: Tensor, empty: Tensor, order: Tensor, target: int) -> Tensor:
    """The probabilities of a class as pixels are deleted in this order (H W,): (21,), float64 on the CPU"""
    ranks = order.argsort()
    counts = [round(part * len(order) / PARTS) for part in range(PARTS + 1)]
    deleted = torch.stack([ranks < count for count in counts]).reshape(-1, 1, *image.shape[1:])  # (21, 1, H, W)
    logits: Tensor = model(torch.where(deleted, empty, image))
    return logits.double().softmax(1)[:, target].cpu()


def _check(model: ExplainableModel, image: Tensor, attributions: Tensor) -> None:
    if not (isinstance(image, Tensor) and image.ndim == 3):
        given = f"has shape {tuple(image.shape)}" if isinstance(image, Tensor) else f"is a {type(image).__name__}"
        raise InputError(f"image {given}; expected one image (C, H, W): give images[0] of a batch")
    check_images(image.unsqueeze(0), model.channels)
    if attributions.shape != image.shape:
        raise InputError(
            f"attributions have shape {tuple(attributions.shape)}, the image {tuple(image.shape)}; expected the same"
        )
    if not bool(attributions.isfinite().all()):
        raise InputError("attributions hold NaN or infinity; expected finite ones, as pixels are put in their order")
