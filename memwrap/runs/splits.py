"""Which images of a data set a run trains on, compares settings on, and is tested on."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memwrap.data import DataSet, LabelledImages, draw_subset, generator, hold_out
from memwrap.errors import DataError, RunError
from memwrap.training.settings import Settings

NAMES = ("train", "validation", "test")


@dataclass(frozen=True)
class Splits:
    """Indices in ascending order, of the data's training images; those of the test of its test images, if `own_test`.

    rest: training images that are in no split, as only some samples are asked for.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    rest: Tensor
    own_test: bool

    def of(self, data: DataSet, name: str) -> LabelledImages:
        """The images of "train", "validation", "test" or "rest"."""
        indices: Tensor = getattr(self, name)
        return self.source(data, name).at(indices)

    def source(self, data: DataSet, name: str) -> LabelledImages:
        """Where the images of a split lie, which its indices count; a RunError if the data is not the run's."""
        own = name == "test" and self.own_test
        source = data.test if own else data.train
        if source is None:
            raise RunError("the data has no test images of its own any more")
        if len(source) != (len(self.test) if own else len(self._all())):
            raise RunError(f"the data has {len(source)} {'test' if own else 'training'} images; the run has others")
        return source

    def _all(self) -> Tensor:
        """All training images, split by split."""
        return torch.cat([self.train, self.validation, self.rest, *([] if self.own_test else [self.test])])

    def as_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        lists = {name: getattr(self, name).tolist() for name in (*NAMES, "rest")}
        return {**lists, "own_test": self.own_test}


def from_json(stored: dict[str, Any]) -> Splits:
    """The splits that `as_json` gave; a RunError if they are not such that every image is in one."""
    lists = {name: stored[name] for name in (*NAMES, "rest")}
    for name, indices in lists.items():
        if not isinstance(indices, list) or not all(type(index) is int and 0 <= index < 1 << 63 for index in indices):
            raise RunError(f"the images of {name} are not listed by whole numbers")
    if type(stored["own_test"]) is not bool:
        raise RunError(f"own_test is {stored['own_test']!r}; expected true or false")
    tensors = {name: torch.tensor(indices, dtype=torch.int64) for name, indices in lists.items()}
    splits = Splits(**tensors, own_test=stored["own_test"])
    for indices in (splits._all().sort().values, *([splits.test] if splits.own_test else [])):
        if not torch.equal(indices, torch.arange(len(indices))):
            raise RunError("an image is in two splits, or in none")
    return splits


def split(data: DataSet, settings: Settings) -> Splits:
    """Test first, then validation, then the samples, each drawn by the seed from what is left.

    Stratified where the data has no test images of its own. The same for all variants and encoders of a seed.
    """
    pool, test = torch.arange(len(data.train)), torch.arange(len(data.test) if data.test else 0)
    own = data.test is None
    if own and settings.test > 0:
        pool, test = _apart(data, pool, settings.test, "test", settings.seed, stratified=True)
    validation = torch.arange(0)
    if settings.validation > 0:
        pool, validation = _apart(data, pool, settings.validation, "validation", settings.seed, stratified=own)
    train = pool
    if settings.samples is not None:
        train = pool[draw_subset(len(pool), settings.samples, generator(settings.seed, "subset"))]
    rest = pool[~torch.isin(pool, train)]
    if len(train) < 2:
        raise DataError(f"{len(train)} images are left to train on; expected at least 2")
    return Splits(train, validation, test, rest, own_test=not own)


def _apart(
    data: DataSet, pool: Tensor, amount: float, purpose: str, seed: int, stratified: bool
) -> tuple[Tensor, Tensor]:
    """Part of the pool set apart; an amount of one and more counts images."""
    wanted = int(amount) if amount >= 1 else amount
    try:
        kept, apart = hold_out(data.train.labels[pool], wanted, generator(seed, purpose), stratified)
    except DataError as error:
        raise DataError(f"{purpose} images cannot be set apart: {error}") from error
    return pool[kept], pool[apart]
