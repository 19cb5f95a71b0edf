"""Random subsets and held-out images: indices in ascending order, drawn from an explicit generator."""

import torch
from torch import Tensor

from memwrap.errors import DataError


def draw_subset(count: int, samples: int, generator: torch.Generator) -> Tensor:
    """Draw indices (samples,) below count without replacement."""
    if not 0 <= samples <= count:
        raise DataError(f"{samples} images are asked for, but there are {count}; ask for no more than that")
    return _shuffle(count, generator)[:samples].sort().values


def hold_out(
    labels: Tensor, amount: int | float, generator: torch.Generator, stratified: bool
) -> tuple[Tensor, Tensor]:
    """Split all indices into those that are kept and those that are held out.

    labels (N,): classes from 0. amount: a number of images, or a share between 0 and 1. stratified: each class gives in
    proportion to its size; at least one image if it has two and the amount suffices, and never its last one. Otherwise
    images are drawn regardless of their class, as in the paper.
    """
    total = _count_images(len(labels), amount)
    held_out = _draw_by_class(labels, total, generator) if stratified else draw_subset(len(labels), total, generator)
    is_kept = torch.ones(len(labels), dtype=torch.bool)
    is_kept[held_out] = False
    return is_kept.nonzero().flatten(), held_out


def _shuffle(count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=generator, device="cpu")


def _count_images(count: int, amount: int | float) -> int:
    """The number of images that the amount stands for; at least one image has to be kept."""
    is_share = isinstance(amount, float)
    if amount < 0 or (is_share and not 0 < amount < 1):
        raise DataError(f"{amount} cannot be set apart; expected a whole number of images, or a share between 0 and 1")
    total = round(amount * count) if is_share else int(amount)
    if is_share and total == 0:
        raise DataError(f"a share of {amount} of {count} images is no image at all; ask for more, or give 0 for none")
    if total >= max(count, 1):
        raise DataError(f"{total} of {count} images cannot be set apart; ask for fewer, so that one is kept")
    return total


def _draw_by_class(labels: Tensor, total: int, generator: torch.Generator) -> Tensor:
    sizes = labels.bincount()
    quotas = _apportion(sizes, total)
    order = _shuffle(len(labels), generator)
    order = order[labels[order].argsort(stable=True)]  # class by class, each in random order
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[labels[order]]  # within its class
    return order[rank < quotas[labels[order]]].sort().values


def _apportion(sizes: Tensor, total: int) -> Tensor:
    """The number of images (C,) that each class gives, by largest remainders within its bounds."""
    most = (sizes - 1).clamp(min=0)
    if total > most.sum():
        raise DataError(
            f"{total} of {int(sizes.sum())} images cannot be set apart, as each of {int((sizes > 0).sum())} classes "
            f"keeps one image; ask for at most {int(most.sum())}"
        )
    least = most.clamp(max=1)
    if total < least.sum():
        least = torch.zeros_like(sizes)  # too few for one of each class: the largest classes give
    quotas = (total * sizes // sizes.sum()).clamp(min=least)
    while missing := total - int(quotas.sum()):
        quotas = _adjust_quotas(quotas, missing, total * sizes - quotas * sizes.sum(), least, most)
    return quotas


def _adjust_quotas(quotas: Tensor, missing: int, remainders: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """Add one image (missing > 0) or remove one for as many classes as needed and possible, by their remainders."""
    step = 1 if missing > 0 else -1
    movable = quotas < most if step > 0 else quotas > least
    priority = (remainders * step).masked_fill(~movable, torch.iinfo(remainders.dtype).min)
    chosen = priority.argsort(descending=True, stable=True)[: min(abs(missing), int(movable.sum()))]
    return quotas.index_add(0, chosen, torch.full_like(chosen, step))
