"""The scores of a trained run on its test images: those of `memwrap evaluate`, and with memories like the paper's."""

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

# So many images at least, for one of a memory: with fewer, two memories of a batch would have many in common, which
# those of the paper have not.
_POOL = 10


def metrics_of(
    model: Model,
    data: DataSet,
    splits: Splits,
    settings: ResolvedSettings,
    published_images: int | None = None,
    encode: Encode = encode_all,
) -> dict[str, Any]:
    """All scores. published_images: what the paper's training set had, if the memories shall also be like its own.

    With fewer images than the paper had, the same training subset is a larger share of them; and what a model was
    trained on explains it better than what it never saw.
    """
    with evaluation_mode(model):
        test = encoded(model, splits.of(data, "test"), encode)
        if not isinstance(model, MemoryClassifier):
            return {"images": len(test), "standard": standard_scores(model.layer, test)}
        sources = sources_of(splits)
        if (share := _with_published_share(splits, settings, published_images)) is not None:
            sources[SHARE] = share
        return {"images": len(test), "drawn": scores_by_source(model, data, splits, settings, test, sources, encode)}


def published_share(samples: int, others: int, published_images: int) -> int | None:
    """Of how many samples beside all other images the share is that of all samples in the paper's training set.

    None where the images are as many as the paper's, or more.
    """
    if samples + others >= published_images:
        return None
    return round(others * samples / (published_images - samples))


def _with_published_share(splits: Splits, settings: ResolvedSettings, published_images: int | None) -> Tensor | None:
    """A source of memories: some of the images trained on, and all others; None if there are too few, or no need."""
    samples, others = len(splits.train), len(splits.rest)
    few = None if published_images is None else published_share(samples, others, published_images)
    if few is None or few + others < _POOL * settings.memory_size:
        return None
    chosen = torch.randperm(samples, generator=generator(settings.seed, "published share"))[:few]
    return torch.cat([chosen.sort().values, torch.arange(samples, samples + others)])
