"""What all models share: an encoder, a last layer, a transform for images, and saving."""

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from memwrap.data import Transform
from memwrap.errors import InputError, LoadError, MemwrapWarning, SaveError, brief
from memwrap.models.architectures import describe
from memwrap.models.pass_limit import PassLimit
from memwrap.models.record import ModelRecord
from memwrap.models.surgery.modules import get_logits
from memwrap.nn.checks import check_images, check_logits
from memwrap.nn.modes import exact_evaluation
from memwrap.nn.probabilities import Calibration
from memwrap.nn.reading import MemoryLayer
from memwrap.nn.tracing import checks_enabled
from memwrap.storage import checkpoint, validation


@dataclass(frozen=True)
class Origin:
    """What the classifier was before its last layer was removed."""

    layer: str  # the name of that layer
    num_classes: int  # its output
    image_shape: tuple[int, int, int]  # channels, height and width that it was probed with; it may take others, too


class EncoderModel(nn.Module, ABC):
    """An encoder and a last layer. Images are float tensors, normalised as the encoder expects.

    classes: the names of the classes; None if not given. transform: makes of a Pillow image or a uint8 tensor what the
    model takes; None if not given. calibration: what probabilities are calibrated by; None if they are not. All are
    saved with the model.
    """

    def __init__(self, encoder: nn.Module, layer: MemoryLayer | nn.Linear, origin: Origin) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer = layer
        self.origin = origin
        self.classes: tuple[str, ...] | None = None
        self.transform: Transform | None = None
        self.calibration: Calibration | None = None

    def get_transform(self) -> Transform:
        """The transform; an InputError if none has been set."""
        if self.transform is None:
            raise InputError(
                "the model does not know how its images are normalised; set "
                "model.transform = memwrap.Transform(shape=(3, 32, 32), mean=(...), std=(...))"
            )
        return self.transform

    def class_name(self, label: int) -> str:
        """The name of a class; its number if no names are given."""
        return self.classes[label] if self.classes else str(label)

    @property
    @abstractmethod
    def reference(self) -> Tensor:
        """A weight of the last layer, which has the model's dtype and device."""

    @property
    def channels(self) -> int:
        """How many channels its images have."""
        return self.origin.image_shape[0]

    @property
    def in_features(self) -> int:
        """D, the length of an encoding."""
        return self.layer.in_features

    def encode(self, images: Tensor) -> Tensor:
        """images (B, channels, H, W) -> encodings (B, D)"""
        if checks_enabled(images):
            check_images(images, self.channels)
        return self._encode(images, "images")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Store the model with its memory in a folder of safetensors and JSON, for `memwrap.load`.

        A model in that folder is replaced once the new one is complete; other files stay. The classifier's code is not
        stored: to load a hand-written classifier, pass it to `load`.
        """
        settings, parts = self.pack()
        checkpoint.write(Path(folder), settings, parts)
        if settings["classifier"]["architecture"] is None:
            warnings.warn(
                f"{folder}: the classifier, {settings['classifier']['class']}, cannot be rebuilt from a name; to load "
                "the model, give one that is built like it: memwrap.load(folder, classifier=...)",
                MemwrapWarning,
                stacklevel=2,
            )

    def pack(self, record: ModelRecord | None = None, probe: bool = True) -> tuple[dict[str, Any], checkpoint.Parts]:
        """What `save` stores: settings (JSON values) and tensors.

        record: what `describe` returned before, if only weights, layer and calibration have changed since. probe:
        whether to compute logits that prove a loaded model; without them, loading checks hashes and shapes alone.
        """
        record = record or self.describe()
        record = record.model_copy(update={"layer": self.layer_settings(), "calibration": self.calibration})
        parts = {"weights": dict(_tensors_only(self.state_dict()))}
        if probe:
            parts["probe"] = self._probe(is_rebuilt=record.classifier.architecture is not None)
        return record.model_dump(by_alias=True), parts

    def describe(self) -> ModelRecord:
        """What has to be stored, besides tensors, to rebuild the model. Looks for a name that builds its encoder."""
        if self.classes and len(self.classes) != (outputs := self.layer_settings()["num_classes"]):
            raise SaveError(f"model.classes has {len(self.classes)} names; expected one for each of {outputs} classes")
        architecture = describe(self.encoder, self.origin.layer, self.origin.num_classes, self.origin.image_shape[0])
        kind = type(self.encoder)
        stored = {
            "classifier": {
                "architecture": architecture,
                "class": f"{kind.__module__}.{kind.__qualname__}",
                **asdict(self.origin),
            },
            "layer": self.layer_settings(),
            "classes": None if self.classes is None else tuple(map(str, self.classes)),
            "transform": self.transform,
            "calibration": self.calibration,
            "frozen": tuple(name for name, parameter in self.named_parameters() if not parameter.requires_grad),
            "state_versions": _versions(self.state_dict()),
        }
        try:
            return ModelRecord.model_validate(stored)
        except ValidationError as error:
            raise SaveError(f"the model cannot be saved: {validation.describe(error)}") from error

    @abstractmethod
    def layer_settings(self) -> dict[str, Any]:
        """The arguments that build such a last layer, with its variant."""

    def probe_logits(self, probe: dict[str, Tensor]) -> Tensor:
        """Logits in evaluation mode and full precision, by which two models can be compared.

        probe: images (B, channels, H, W) and memory (M, channels, H, W) -> (B, C)
        """
        with exact_evaluation(self):
            return self._probe_pass(probe)

    @abstractmethod
    def _probe_pass(self, probe: dict[str, Tensor]) -> Tensor:
        """The logits (B, C) of the probe's images, with its memory if there is one."""

    def _probe(self, is_rebuilt: bool) -> dict[str, Tensor]:
        """Images with their logits. is_rebuilt: whether loading rebuilds the network, and bounds what it computes."""
        generator = torch.Generator().manual_seed(0)
        shapes = {"images": (2, *self.origin.image_shape), "memory": (3, *self.origin.image_shape)}
        probe = {name: torch.randn(shape, generator=generator).to(self.reference) for name, shape in shapes.items()}
        try:
            with PassLimit(seconds=math.inf) if is_rebuilt else nullcontext():
                logits = self.probe_logits(probe)
        except LoadError as error:
            raise SaveError(f"the model could not be loaded again ({error}); use smaller images") from error
        check_logits(logits)  # such a model could not be loaded
        return {**probe, "logits": logits}

    def _encode_each(self, images: Tensor) -> Tensor:
        """As `encode`, one image at a time, so that large images take little memory."""
        return torch.cat([self.encode(image) for image in torch.split(images, 1)])

    def _encode(self, images: Tensor, name: str) -> Tensor:
        """(N, channels, H, W) -> (N, D), or (B, M, channels, H, W) -> (B, M, D)"""
        if not checks_enabled(images):
            return _rowwise(lambda rows: get_logits(self.encoder(rows)), images)
        try:
            encodings = _rowwise(lambda rows: get_logits(self.encoder(rows)), images)
        except (torch.OutOfMemoryError, LoadError):  # of `pass_limit`
            raise
        except Exception as error:
            if _describe(images) == self._known_images():
                raise
            raise InputError(
                f"the encoder cannot take {name} of {_describe(images)}; it was built with {self._known_images()}: "
                f"resize, cast or move them ({brief(error)})"
            ) from error
        if encodings.shape != (*images.shape[:-3], self.in_features):
            raise InputError(
                f"{name} of {_describe(images)} are encoded to {tuple(encodings.shape)}; expected encodings of length "
                f"{self.in_features}, as for {self._known_images()}: resize them"
            )
        return encodings

    def _known_images(self) -> str:
        return _describe(self.reference.new_empty(0, *self.origin.image_shape))


def _rowwise(encode: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Encode images (N, channels, H, W), or (B, M, channels, H, W) as B times M of them."""
    if images.ndim != 5:
        return encode(images)
    return encode(images.flatten(0, 1)).reshape(*images.shape[:2], -1)


def _describe(images: Tensor) -> str:
    return f"{tuple(images.shape[-3:])}, {images.dtype}, on {images.device}"


def _tensors_only(state: dict[str, Any]) -> dict[str, Tensor]:
    if others := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise SaveError(f"the classifier keeps state that is not a tensor ({', '.join(others)}); it cannot be saved")
    return state


def _versions(state: dict[str, Any]) -> dict[str, int]:
    """The version of each module's state, by which torch's modules read states of older versions."""
    metadata = getattr(state, "_metadata", {})
    return {name: facts["version"] for name, facts in metadata.items() if "version" in facts}
