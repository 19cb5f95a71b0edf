"""The learning rate as a function of the step: a resumed run needs no other state."""

import math

from memwrap.training.settings import ResolvedSettings


def learning_rate(settings: ResolvedSettings, step: int, steps_per_epoch: int) -> float:
    """The learning rate of step 0, 1, ... of a run."""
    total = settings.epochs * steps_per_epoch
    warm = round(settings.warmup * total)
    if step < warm:
        return settings.lr * ((step + 1) / warm)
    if settings.schedule == "cosine":
        return settings.lr * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm))) / 2
    if settings.schedule == "steps":
        # As in the paper, rates change between epochs. In floating point, 0.55 * 100 is a little more than 55.
        epoch = step // steps_per_epoch
        return settings.lr * 0.1 ** sum(epoch >= share * settings.epochs - 1e-6 for share in settings.drops)
    return settings.lr
