"""Scores with memories drawn from a run's training images; only images that are drawn are encoded."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from memwrap.data import DataSet, Images, LabelledImages, generator
from memwrap.models.base import EncoderModel
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.evaluation import Encoded, draw_memories, drawn_scores
from memwrap.models.inference import encode_all
from memwrap.runs.splits import Splits
from memwrap.training.settings import ResolvedSettings

SUBSET = "training_subset"
WHOLE = "whole_training_set"

# Images (N) -> encodings (N, D), on the model's device.
Encode = Callable[[EncoderModel, Images], Tensor]


def encoded(model: EncoderModel, images: LabelledImages, encode: Encode = encode_all) -> Encoded:
    """The images with their labels, on the model's device."""
    encodings = encode(model, images.images)
    return Encoded(encodings, images.labels.to(encodings.device))


def sources_of(splits: Splits) -> dict[str, Tensor]:
    """What memories are drawn from, by name: positions in the training images, followed by the rest.

    The whole training set is included only if the run was not trained on all of it.
    """
    samples, others = len(splits.train), len(splits.rest)
    return {SUBSET: torch.arange(samples)} | ({WHOLE: torch.arange(samples + others)} if others else {})


def scores_by_source(
    model: MemoryClassifier,
    data: DataSet,
    splits: Splits,
    settings: ResolvedSettings,
    test: Encoded,
    sources: Mapping[str, Tensor],
    encode: Encode = encode_all,
) -> dict[str, dict[str, Any]]:
    """The scores on the test images with memories drawn from each of the sources."""
    source, order = splits.source(data, "train"), torch.cat([splits.train, splits.rest])
    labels = source.labels[order]

    draws = {
        name: draw_memories(
            len(test), labels[places], settings.memory_size, generator(settings.seed, "evaluation", number)
        )
        for number, (name, places) in enumerate(sources.items())
    }
    needed = torch.cat([sources[name][draws[name].flatten()] for name in sources]).bincount().nonzero().squeeze(1)
    found = encode(model, source.images.at(order[needed]))
    encodings = found.new_zeros(len(order), found.shape[1])
    encodings[needed.to(found.device)] = found

    def scores(name: str) -> dict[str, Any]:
        places = sources[name]
        images = Encoded(encodings[places.to(found.device)], labels[places].to(found.device))
        return drawn_scores(model.layer, test, images, draws[name])

    return {name: scores(name) for name in sources}
