"""The memory that a model remembers: images, labels, encodings, and what the layer computes from them once."""

import torch
from torch import Tensor, nn

from memwrap.metrics import predict_classes
from memwrap.nn.checks import NormBound
from memwrap.nn.layer import MemoryWrap, PreparedMemory
from memwrap.nn.similarity import Vectors


class RememberedMemory(nn.Module):
    """The memory that a model predicts with when it is given none; it moves with the model.

    images (M, channels, H, W), labels (M,), encodings (M, D) by the model in evaluation mode, and predictions (M,): the
    model's class for each sample, made with the memory without that sample; None for a memory of one.
    """

    images: Tensor
    labels: Tensor
    encodings: Tensor
    predictions: Tensor | None
    _projected: Tensor | None
    _inverse_norms: Tensor
    _hidden: Tensor | None
    _input_weight: Tensor | None
    _bound: NormBound | None

    def __init__(self, images: Tensor, labels: Tensor, encodings: Tensor, predictions: Tensor | None = None) -> None:
        super().__init__()
        # Not part of state_dict, as its length differs from memory to memory; saving a model stores it.
        self.register_buffer("images", images, persistent=False)
        self.register_buffer("labels", labels, persistent=False)
        self.register_buffer("encodings", encodings, persistent=False)
        self.register_buffer("predictions", predictions, persistent=False)

    def extra_repr(self) -> str:
        return f"{len(self)} images of {tuple(self.images.shape[1:])}"

    def __len__(self) -> int:
        return len(self.labels)

    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored, by the names that the constructor takes."""
        named = {"images": self.images, "labels": self.labels, "encodings": self.encodings}
        return named if self.predictions is None else {**named, "predictions": self.predictions}

    def prepare(self, layer: MemoryWrap) -> None:
        """Compute what the layer needs of the memory; again whenever dtype or device have changed."""
        # Tensors made in inference mode could not take part in a gradient later on.
        with torch.inference_mode(False), torch.no_grad():
            prepared = layer.prepare(self.encodings)
        # Not the encodings again: tools for modules, such as torch.jit.trace, refuse a tensor registered twice.
        projected = None if layer.projection is None else prepared.keys.values
        self.register_buffer("_projected", projected, persistent=False)
        self.register_buffer("_inverse_norms", prepared.keys.inverse_norms, persistent=False)
        self.register_buffer("_hidden", prepared.hidden, persistent=False)
        self.register_buffer("_input_weight", prepared.input_weight, persistent=False)
        self._bound = prepared.bound

    @property
    def prepared(self) -> PreparedMemory:
        """The memory as the layer takes it."""
        keys = self.encodings if self._projected is None else self._projected
        return PreparedMemory(Vectors(keys, self._inverse_norms), self._hidden, self._input_weight, self._bound)

    @torch.no_grad()
    def leave_one_out(self, layer: MemoryWrap, chunk_size: int, keep: Tensor | None = None) -> Tensor | None:
        """Classify each sample with the memory without that sample: (M,), or None if none would be left.

        keep: bool (M,); False removes a sample from the memory of all. chunk_size: samples classified at a time.
        """
        if int(len(self) if keep is None else keep.sum()) == 1:
            return None
        rows = torch.arange(len(self), device=self.labels.device)
        logits = [self.logits_without(layer, chunk, keep) for chunk in torch.split(rows, chunk_size)]
        return torch.cat([predict_classes(each) for each in logits])

    @torch.no_grad()
    def logits_without(self, layer: MemoryWrap, rows: Tensor, keep: Tensor | None = None) -> Tensor:
        """Logits (n, C) of the samples at rows (n,), each with the memory without itself; keep as above."""
        keep = torch.ones(len(self), dtype=torch.bool, device=self.labels.device) if keep is None else keep
        others = keep.repeat(len(rows), 1)
        others[torch.arange(len(rows), device=rows.device), rows] = False
        return layer.read(self.encodings[rows], self.prepared, others).logits
