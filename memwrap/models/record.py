"""What a saved model's `model.json` says about the model, besides its files."""

from typing import Any

from pydantic import Field

from memwrap.data.transform import Transform
from memwrap.models.architectures import Architecture
from memwrap.storage.validation import Record


class ClassifierRecord(Record):
    """The classifier whose last layer was replaced."""

    architecture: Architecture | None  # None: it cannot be rebuilt by name
    class_name: str = Field(alias="class")
    layer: str  # the name of the layer that was removed
    num_classes: int
    image_shape: tuple[int, int, int]


class ModelRecord(Record, extra="ignore"):
    """The classifier, the arguments of the last layer, and what else is needed to rebuild the model."""

    classifier: ClassifierRecord
    layer: dict[str, Any]
    classes: tuple[str, ...] | None
    transform: Transform | None
    frozen: tuple[str, ...]  # names of parameters that do not learn
    state_versions: dict[str, Any]  # by module, for torch's migrations of old state dicts
