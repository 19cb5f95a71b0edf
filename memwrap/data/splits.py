"""Which images go where: indices drawn from an explicit generator, always in ascending order."""

import torch
from torch import Tensor

from memwrap.errors import DataError


def draw_subset(count: int, samples: int, generator: torch.Generator) -> Tensor:
    """Indices (samples,) below count, without replacement."""
    if not 0 <= samples <= count:
        raise DataError(f"{samples} images are asked for, but there are {count}; ask for no more than that")
    return _shuffled(count, generator)[:samples].sort().values


def hold_out(
    labels: Tensor, amount: int | float, generator: torch.Generator, stratified: bool
) -> tuple[Tensor, Tensor]:
    """The indices that are kept, and those that are set apart; together they are all.

    labels (N,): classes as whole numbers from 0. amount: a number of images, or a share between 0 and 1.
    stratified: every class gives in proportion to its size; at least one image if it has two and the amount goes
    round, and never its last one. Else the images are drawn as if there were no classes, which is the paper's way.
    """
    total = _total(len(labels), amount)
    apart = _drawn_by_class(labels, total, generator) if stratified else draw_subset(len(labels), total, generator)
    is_kept = torch.ones(len(labels), dtype=torch.bool)
    is_kept[apart] = False
    return is_kept.nonzero().flatten(), apart


def _shuffled(count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=generator, device="cpu")


def _total(count: int, amount: int | float) -> int:
    """How many images the amount is of this many; some image always stays."""
    is_share = isinstance(amount, float)
    if amount < 0 or (is_share and not 0 < amount < 1):
        raise DataError(f"{amount} cannot be set apart; expected a whole number of images, or a share between 0 and 1")
    total = round(amount * count) if is_share else int(amount)
    if is_share and total == 0:
        raise DataError(f"a share of {amount} of {count} images is no image at all; ask for more, or say 0 for none")
    if total >= max(count, 1):
        raise DataError(f"{total} of {count} images cannot be set apart; ask for fewer, so that one is kept")
    return total


def _drawn_by_class(labels: Tensor, total: int, generator: torch.Generator) -> Tensor:
    sizes = labels.bincount()
    gives = _apportioned(sizes, total)
    order = _shuffled(len(labels), generator)
    order = order[labels[order].argsort(stable=True)]  # the classes in turn, each in random order
    place = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[labels[order]]  # within its class
    return order[place < gives[labels[order]]].sort().values


def _apportioned(sizes: Tensor, total: int) -> Tensor:
    """How many of its images (C,) each class gives: by largest remainders, within what it must give and can give."""
    most = (sizes - 1).clamp(min=0)
    if total > most.sum():
        raise DataError(
            f"{total} of {int(sizes.sum())} images cannot be set apart, as each of {int((sizes > 0).sum())} classes "
            f"keeps one image; ask for at most {int(most.sum())}"
        )
    least = most.clamp(max=1)
    if total < least.sum():
        least = torch.zeros_like(sizes)  # not enough to go round: the largest classes give
    gives = (total * sizes // sizes.sum()).clamp(min=least)
    while missing := total - int(gives.sum()):
        gives = _nearer(gives, missing, total * sizes - gives * sizes.sum(), least, most)
    return gives


def _nearer(gives: Tensor, missing: int, owed: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """One image more (missing > 0) or less of as many classes as needed and possible, of those first that owe most
    or least; among equals, of the first."""
    step = 1 if missing > 0 else -1
    movable = gives < most if step > 0 else gives > least
    rank = (owed * step).masked_fill(~movable, torch.iinfo(owed.dtype).min)
    first = rank.argsort(descending=True, stable=True)[: min(abs(missing), int(movable.sum()))]
    return gives.index_add(0, first, torch.full_like(first, step))
