"""Scores of a trained run on its test images: those of `memwrap evaluate`, and with the paper's share of images."""

from typing import Any

import torch
from torch import Tensor

from memwrap.data import DataSet, generator
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.evaluation import standard_scores
from memwrap.models.inference import encode_all
from memwrap.models.loading import Model
from memwrap.nn.modes import evaluation_mode
from memwrap.reproduce.records import SHARE
from memwrap.runs.drawn import Encode, encoded, scores_by_source, sources_of
from memwrap.runs.splits import Splits
from memwrap.training.settings import ResolvedSettings

# Memory samples are drawn from at least this multiple of their number. From fewer images, two memories of a batch would
# share many samples, unlike the paper's.
_LEAST_MULTIPLE = 10


def score_run(
    model: Model,
    data: DataSet,
    splits: Splits,
    settings: ResolvedSettings,
    published_images: int | None = None,
    encode: Encode = encode_all,
) -> dict[str, Any]:
    """All scores. published_images: the size of the paper's training set, to also draw memories like the paper's.

    With fewer images than the paper had, the same training subset is a larger share of them; and images that a model
    was trained on explain it better than those it never saw.
    """
    with evaluation_mode(model):
        test = encoded(model, splits.of(data, "test"), encode)
        if not isinstance(model, MemoryClassifier):
            return {"images": len(test), "standard": standard_scores(model.layer, test)}
        sources = sources_of(splits)
        if (share := _source_with_published_share(splits, settings, published_images)) is not None:
            sources[SHARE] = share
        return {"images": len(test), "drawn": scores_by_source(model, data, splits, settings, test, sources, encode)}


def published_share(samples: int, others: int, published_images: int) -> int | None:
    """How many training samples, among all other images, are as large a share as all of them in the paper's set.

    None if there are as many images as in the paper, or more.
    """
    if samples + others >= published_images:
        return None
    return round(others * samples / (published_images - samples))


def _source_with_published_share(
    splits: Splits, settings: ResolvedSettings, published_images: int | None
) -> Tensor | None:
    """Some of the training images and all others; None if these are too few, or not needed."""
    samples, others = len(splits.train), len(splits.rest)
    few = None if published_images is None else published_share(samples, others, published_images)
    if few is None or few + others < _LEAST_MULTIPLE * settings.memory_size:
        return None
    chosen = torch.randperm(samples, generator=generator(settings.seed, "published share"))[:few]
    return torch.cat([chosen.sort().values, torch.arange(samples, samples + others)])
