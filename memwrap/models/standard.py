"""The plain classifier without a memory, for comparison: the paper's Standard."""

from typing import Any

from torch import Tensor, nn

from memwrap.models.base import EncoderModel

STANDARD = "standard"


class StandardClassifier(EncoderModel):
    """An encoder and a linear layer, with no memory."""

    layer: nn.Linear

    @property
    def reference(self) -> Tensor:
        """A weight of the last layer, which has the model's dtype and device."""
        return self.layer.weight

    def forward(self, images: Tensor) -> Tensor:
        """images (B, channels, H, W) -> logits (B, C)"""
        logits: Tensor = self.layer(self.encode(images))
        return logits

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
