"""A remembered memory: what is kept of it, and how a change of the weights that encoded it is noticed."""

import functools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from memwrap.metrics import predict_classes
from memwrap.nn.checks import NormBound
from memwrap.nn.layer import MemoryWrap, PreparedMemory

_version = operator.attrgetter("_version")


class RememberedMemory(nn.Module):
    """The memory that a model predicts with when it is given none; it moves with the model.

    images (M, channels, H, W), labels (M,), encodings (M, D) by the model in evaluation mode, and predictions (M,), the
    model's own class for each sample, made with the memory less that sample; None for a memory of one.
    """

    images: Tensor
    labels: Tensor
    encodings: Tensor
    predictions: Tensor | None
    _keys: Tensor
    _scales: Tensor
    _first_layer: Tensor | None
    _growth: NormBound | None

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
        """Do the memory's part of the layer's arithmetic; again whenever dtype or device have changed."""
        # Tensors made in inference mode could not take part in a gradient later on.
        with torch.inference_mode(False), torch.no_grad():
            prepared = layer.prepare(self.encodings)
        self.register_buffer("_keys", prepared.encodings, persistent=False)
        self.register_buffer("_scales", prepared.scales, persistent=False)
        self.register_buffer("_first_layer", prepared.first_layer, persistent=False)
        self._growth = prepared.growth

    def prepared(self) -> PreparedMemory:
        """The memory as `MemoryWrap.read_prepared` takes it."""
        return PreparedMemory(self._keys, self._scales, self._first_layer, self._growth)

    @torch.no_grad()
    def predict_itself(self, layer: MemoryWrap, chunk_size: int) -> None:
        """Classify each sample with the memory less that sample, so many samples at a time."""
        count = len(self)
        if count == 1:
            return
        chunks = []
        for start in range(0, count, chunk_size):
            encodings = self.encodings[start : start + chunk_size]
            others = torch.ones(len(encodings), count, dtype=torch.bool, device=encodings.device)
            others.diagonal(start).fill_(False)
            chunks.append(predict_classes(layer.read_prepared(encodings, self.prepared(), others).logits))
        self.predictions = torch.cat(chunks)


class Snapshot:
    """Which tensors some modules held at one moment, and how often each had been written to.

    Torch counts the writes to a tensor: those of optimisers, of `load_state_dict`, of batch normalisation's counter in
    training. It does not count writes through `.data`, those of a CUDA graph when it is replayed, those that
    `F.batch_norm` makes to statistics without such a counter, nor any to tensors made in inference mode.
    """

    def __init__(self, *modules: nn.Module) -> None:
        _count_writes_of_fused_optimisers()
        self._modules = modules
        self._tables = [table for module in modules for table in _tables(module)]
        self._copies = [dict(table) for table in self._tables]
        self._note_versions(written=False)

    def holds(self, *modules: nn.Module) -> bool:
        """Whether these are the modules of then, as they were: nothing exchanged or removed, no tensor written to."""
        if any(now is not then for now, then in zip(modules, self._modules, strict=True)):
            return False
        try:
            # Runs before every prediction. Tables are equal at once where they hold the same objects; two tensors that
            # are not the same object are compared by value, which fails for those of more than one element.
            same_objects = self._tables == self._copies
        except RuntimeError:
            return False
        return same_objects and list(map(_version, self._tensors)) == self._versions

    def _note_versions(self, written: bool) -> None:
        tensors = [item for table in self._copies for item in table.values() if isinstance(item, Tensor)]
        # Tensors made in inference mode have no version; nor can they be trained.
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]
        self._versions = [_version(tensor) - written for tensor in self._tensors]

    # A copy's tensors count from zero; whether the original still held is what a copy has to know.
    def __getstate__(self) -> dict[str, Any]:
        state = {"modules": self._modules, "tables": self._tables, "copies": self._copies}
        return {**state, "holds": self.holds(*self._modules)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._modules, self._tables, self._copies = state["modules"], state["tables"], state["copies"]
        self._note_versions(written=not state["holds"])


@functools.cache
def _count_writes_of_fused_optimisers() -> None:
    """Make fused optimisers count as the others do: their kernels write without telling torch."""

    def count(optimizer: Optimizer, args: object, kwargs: object) -> None:
        for group in optimizer.param_groups:
            if group.get("fused"):
                written = [parameter for parameter in group["params"] if parameter.grad is not None]
                torch.autograd.graph.increment_version(written)

    register_optimizer_step_post_hook(count)


def _tables(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Where torch keeps the parameters, buffers and children of a module and all below it."""
    for part in module.modules():
        yield from (table for table in (part._parameters, part._buffers, part._modules) if table)
