"""What explaining needs of a model, so that any classifier with a memory can be explained."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from memwrap.data import Transform
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.reading import MemoryLayer, Reading


class ExplainableModel(nn.Module, ABC):
    """An encoder, a memory layer, and the memory that it remembers; `memwrap.MemoryClassifier` is one."""

    layer: MemoryLayer
    remembered: RememberedMemory | None

    @property
    @abstractmethod
    def channels(self) -> int:
        """How many channels its images have."""

    @property
    @abstractmethod
    def reference(self) -> Tensor:
        """A weight of the last layer, which has the model's dtype and device."""

    @abstractmethod
    def get_transform(self) -> Transform:
        """How its images are normalised; an InputError if that is not known."""

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """images (B, channels, H, W) -> encodings (B, D)"""

    @abstractmethod
    def read(self, images: Tensor, memory: Tensor | None = None, keep: Tensor | None = None) -> Reading:
        """Logits and the weight of each memory sample."""
