"""The encodings of earlier steps, as a further memory of a training step."""

from dataclasses import dataclass

import torch
from torch import Tensor

EMPTY = -1  # the label of a place that holds nothing yet


@dataclass(frozen=True)
class Queue:
    """The last Q encodings, without gradients: encodings (Q, D), float32, labels (Q,), the newest first."""

    encodings: Tensor
    labels: Tensor

    @classmethod
    def empty(cls, size: int, width: int, device: torch.device | str = "cpu") -> "Queue":
        """A queue of so many places for encodings of this length."""
        return cls(torch.zeros(size, width, device=device), torch.full((size,), EMPTY, device=device))

    @property
    def filled(self) -> Tensor:
        """Which places hold an encoding: bool (Q,)"""
        return self.labels != EMPTY

    def push(self, encodings: Tensor, labels: Tensor) -> "Queue":
        """A queue of the same size with these encodings (B, D) in front of its own."""
        size = len(self.labels)
        new = encodings.detach().to(self.encodings.dtype)
        return Queue(torch.cat([new, self.encodings])[:size], torch.cat([labels, self.labels])[:size])
