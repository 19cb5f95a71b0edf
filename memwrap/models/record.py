"""What a saved model's `model.json` says about the model, besides its files."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from memwrap.data.transform import Transform
from memwrap.encoders.arguments import MAX_NUMBER, MAX_TEXT, check_plain
from memwrap.models.architectures import Architecture
from memwrap.nn.probabilities import Calibration
from memwrap.nn.reading import DecidedBy
from memwrap.storage.validation import Record

MAX_SIDE = 2**14 - 1  # pixels: a WebP, as reports hold, has no more
MAX_IMAGE = 2**26  # numbers in an image
MAX_NAMES = 2**20  # of classes, modules or weights

Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


def _check_name(name: str) -> str:
    if len(name) > MAX_TEXT:
        raise ValueError(f"is {len(name)} characters long; allowed are {MAX_TEXT}")
    return name


# Not pydantic's own bound on strings, which refuses surrogates; those stand for bytes of names that are not UTF-8.
Name = Annotated[str, AfterValidator(_check_name)]


def _check_shape(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    if math.prod(shape) > MAX_IMAGE:
        raise ValueError(f"is {shape}, {math.prod(shape)} numbers; allowed are {MAX_IMAGE}")
    return shape


def _check_transform(transform: Transform) -> Transform:
    if max(transform.shape) > MAX_SIDE:
        raise ValueError(f"is for images of {transform.shape}; allowed are sides up to {MAX_SIDE}")
    _check_shape(transform.shape)
    return transform


def _check_layer(settings: dict[str, Any]) -> dict[str, Any]:
    check_plain(settings)
    return settings


class ClassifierRecord(Record):
    """The classifier whose last layer was replaced."""

    architecture: Architecture | None  # None: it cannot be rebuilt by name
    class_name: Name = Field(alias="class")
    layer: Name  # the name of the layer that was removed
    num_classes: int = Field(ge=1, le=MAX_NUMBER)
    image_shape: Annotated[tuple[Side, Side, Side], AfterValidator(_check_shape)]


class MemoryRecord(Record):
    """What a state_dict that holds a memory says about it: what the weights alone do not tell of its predictions."""

    names: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)] | None
    classes: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)] | None
    num_classes: int = Field(ge=1, le=MAX_NUMBER)
    decided_by: DecidedBy
    scale: float
    calibration: Calibration | None


class ModelRecord(Record, extra="ignore"):
    """The classifier, the arguments of the last layer, and what else is needed to rebuild the model."""

    classifier: ClassifierRecord
    layer: Annotated[dict[str, Any], AfterValidator(_check_layer)]
    classes: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)] | None
    transform: Annotated[Transform, AfterValidator(_check_transform)] | None
    calibration: Calibration | None = None  # none in files of memwrap 0.1
    memory_names: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)] | None = None
    frozen: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]  # names of parameters that do not learn
    state_versions: Annotated[dict[Name, int], Field(max_length=MAX_NAMES)]  # by module, to read old state dicts
