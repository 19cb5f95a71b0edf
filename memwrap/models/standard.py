"""The plain classifier without a memory, for comparison: the paper's Standard."""

from typing import Any

from torch import Tensor, nn

from memwrap.models.base import EncoderModel
from memwrap.nn.calibration import VoteCalibration
from memwrap.nn.probabilities import scaled_softmax
from memwrap.nn.reading import DecidedBy

STANDARD = "standard"


class StandardClassifier(EncoderModel):
    """An encoder and a linear layer, with no memory."""

    layer: nn.Linear

    decided_by: DecidedBy = "classifier"

    @property
    def reference(self) -> Tensor:
        """A weight of the last layer, which has the model's dtype and device."""
        return self.layer.weight

    def forward(self, images: Tensor) -> Tensor:
        """images (B, channels, H, W) -> logits (B, C)"""
        logits: Tensor = self.layer(self.encode(images))
        return logits

    def probabilities(self, logits: Tensor) -> Tensor:
        """logits (B, C) -> probabilities (B, C), calibrated if the model is"""
        assert not isinstance(self.calibration, VoteCalibration)
        return scaled_softmax(logits, self.calibration)

    def layer_settings(self) -> dict[str, Any]:
        """The arguments that build such a layer, and the variant."""
        return {
            "in_features": self.layer.in_features,
            "num_classes": self.layer.out_features,
            "variant": STANDARD,
        }

    def _probe_pass(self, probe: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.layer(self._encode_each(probe["images"]))
        return logits
