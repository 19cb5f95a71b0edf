"""Which images of a data set a run trains on, validates on and is tested on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from memwrap.data import DataSet, LabelledImages, draw_subset, generator, hold_out
from memwrap.errors import DataError, RunError
from memwrap.storage.validation import Record, parse, read_json
from memwrap.training.settings import Settings

SPLITS = "splits.json"
NAMES = ("train", "validation", "test")
IMAGES_LIMIT = 4_000_000  # of a run: the indices of more would be a larger file than is read


@dataclass(frozen=True)
class Splits:
    """Indices in ascending order of the data's training images; of its test images for `test` if `own_test`.

    rest: training images that are in no split, if the run uses only some samples.
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
        """The part of the data that the indices of a split refer to; a RunError if the data is not the run's."""
        own = name == "test" and self.own_test
        source = data.test if own else data.train
        if source is None:
            raise RunError("the data has no test split any more")
        if len(source) != (len(self.test) if own else len(self._all())):
            raise RunError(f"the data has {len(source)} {'test' if own else 'training'} images; the run has others")
        return source

    def _all(self) -> Tensor:
        """All training images, split by split."""
        return torch.cat([self.train, self.validation, self.rest, *([] if self.own_test else [self.test])])

    def content(self) -> bytes:
        """Of splits.json."""
        fields = {**{name: getattr(self, name).tolist() for name in (*NAMES, "rest")}, "own_test": self.own_test}
        return json.dumps(fields, separators=(",", ":")).encode()  # a line for each of millions of images is no help


Index = Annotated[int, Field(ge=0, lt=1 << 63)]


class SplitsRecord(Record, extra="ignore"):
    """The content of splits.json: indices of images."""

    train: list[Index]
    validation: list[Index]
    test: list[Index]
    rest: list[Index]
    own_test: bool


def read_splits(folder: Path) -> Splits:
    """The splits of the run in this folder; a RunError unless every image is in exactly one."""
    path = folder / SPLITS
    try:
        record = parse(SplitsRecord, read_json(path, RunError), RunError, path)
    except FileNotFoundError:
        raise RunError(f"{folder}: is not a run, as it has no {SPLITS}; memwrap train --out makes one") from None
    tensors = {name: torch.tensor(getattr(record, name), dtype=torch.int64) for name in (*NAMES, "rest")}
    splits = Splits(**tensors, own_test=record.own_test)
    for indices in (splits._all().sort().values, *([splits.test] if splits.own_test else [])):
        if not torch.equal(indices, torch.arange(len(indices))):
            raise RunError(f"{path}: is damaged: an image is in two splits, or in none")
    return splits


def split(data: DataSet, settings: Settings) -> Splits:
    """Draw test, then validation, then training images by the seed, each from what is left.

    Stratified if the data has no test split. All variants and encoders get the same splits for a seed.
    """
    if (count := len(data.train) + (len(data.test) if data.test else 0)) > IMAGES_LIMIT:
        raise DataError(f"the data has {count} images; a run stores the splits of {IMAGES_LIMIT} at most")
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
    """Hold part of the pool out; an amount of 1 or more is a number of images."""
    wanted = int(amount) if amount >= 1 else amount
    try:
        kept, apart = hold_out(data.train.labels[pool], wanted, generator(seed, purpose), stratified)
    except DataError as error:
        raise DataError(f"{purpose} images cannot be set apart: {error}") from error
    return pool[kept], pool[apart]
