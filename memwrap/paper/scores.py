"""The scores of a trained run on its test images, by the draws and under the names of `memwrap evaluate`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memwrap.base import EncoderModel, in_evaluation
from memwrap.data.labelled import DataSet, Images
from memwrap.evaluation import Encoded, drawn_scores, draws_of, standard_scores
from memwrap.inference import encode_all
from memwrap.loading import Model
from memwrap.model import MemoryClassifier
from memwrap.paper.records import SHARE
from memwrap.runs.evaluation import SUBSET, WHOLE
from memwrap.runs.splits import Splits
from memwrap.seeds import generator
from memwrap.settings import SettledSettings

# Images (N) -> encodings (N, D), on the model's device.
Encode = Callable[[EncoderModel, Images], Tensor]

# Which draws a source of memories has.
_DRAWS = {SUBSET: 0, WHOLE: 1, SHARE: 2}

# So many images at least, for one of a memory: with fewer, two memories of a batch would have many in common, which
# those of the paper have not.
_POOL = 10


def metrics_of(
    model: Model,
    data: DataSet,
    splits: Splits,
    settings: SettledSettings,
    published_images: int | None = None,
    encode: Encode = encode_all,
) -> dict[str, Any]:
    """All scores. published_images: what the paper's training set had, if the memories shall also be like its own.

    With fewer images than the paper had, the same training subset is a larger share of them; and what a model was
    trained on explains it better than what it never saw.
    """
    with in_evaluation(model):
        test = _encoded(model, data, splits, "test", encode)
        if not isinstance(model, MemoryClassifier):
            return {"images": len(test), "standard": standard_scores(model.layer, test)}
        subset = _encoded(model, data, splits, "train", encode)
        places = _places(splits, published_images, settings)

        def draws(source: str) -> torch.Generator:
            return generator(settings.seed, "evaluation", _DRAWS[source])

        def drawn_from(source: str, labels: Tensor) -> Tensor:
            """All places that are drawn."""
            own = places[source]
            return own[draws_of(len(test), labels[own], settings.memory_size, draws(source)).flatten()]

        labels = data.train.labels[torch.cat([splits.train, splits.rest])]
        needed = [drawn_from(source, labels) for source in places if source != SUBSET]
        everything = _with_others(model, data, splits, subset, needed, encode)
        return {
            "images": len(test),
            "drawn": {
                source: drawn_scores(
                    model.layer,
                    test,
                    Encoded(everything.encodings[own], everything.labels[own]),
                    settings.memory_size,
                    draws(source),
                )
                for source, own in ((source, own.to(test.labels.device)) for source, own in places.items())
            },
        }


def published_share(samples: int, others: int, published_images: int) -> int | None:
    """Of how many samples beside all other images the share is that of all samples in the paper's training set.

    None where the images are as many as the paper's, or more.
    """
    if samples + others >= published_images:
        return None
    return round(others * samples / (published_images - samples))


def _places(splits: Splits, published_images: int | None, settings: SettledSettings) -> Mapping[str, Tensor]:
    """By the source of memories: which images they are drawn from, those trained on counted first, then the others."""
    samples, others = len(splits.train), len(splits.rest)
    places = {SUBSET: torch.arange(samples)}
    if not others:
        return places
    places[WHOLE] = torch.arange(samples + others)
    few = None if published_images is None else published_share(samples, others, published_images)
    if few is not None and few + others >= _POOL * settings.memory_size:
        chosen = torch.randperm(samples, generator=generator(settings.seed, "published share"))[:few]
        places[SHARE] = torch.cat([chosen.sort().values, torch.arange(samples, samples + others)])
    return places


def _with_others(
    model: Model, data: DataSet, splits: Splits, subset: Encoded, needed: Sequence[Tensor], encode: Encode
) -> Encoded:
    """The training subset and all other images, of which only those at the places needed have encodings."""
    if not needed:
        return subset
    others = splits.of(data, "rest")
    labels = torch.cat([subset.labels, others.labels.to(subset.labels.device)])
    encodings = subset.encodings.new_zeros(len(labels), subset.encodings.shape[1])
    encodings[: len(subset)] = subset.encodings
    places = torch.cat(list(needed)).bincount().nonzero().squeeze(1)
    places = places[places >= len(subset)]
    encodings[places.to(encodings.device)] = encode(model, others.images.at(places - len(subset)))
    return Encoded(encodings, labels)


def _encoded(model: Model, data: DataSet, splits: Splits, split_name: str, encode: Encode) -> Encoded:
    images = splits.of(data, split_name)
    encodings = encode(model, images.images)
    return Encoded(encodings, images.labels.to(encodings.device))
