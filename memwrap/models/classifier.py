"""A classifier with a memory: it predicts, explains, remembers and saves itself."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from memwrap.errors import InputError, LoadError, NoMemoryError, SaveError, StaleMemoryError, brief
from memwrap.explain.ablation import Ablation
from memwrap.explain.explanation import Explanation, explain
from memwrap.explain.model import ExplainableModel
from memwrap.models.base import EncoderModel, Origin
from memwrap.models.memory_check import check_memory, draw_rows
from memwrap.models.record import ModelRecord
from memwrap.nn.checks import check_images, check_keep, check_labels, check_memory_images, check_sizes
from memwrap.nn.layer import BATCH, MemoryWrap, Reading, first_half
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.modes import evaluation_mode
from memwrap.nn.precision import exact_convolutions, exact_products
from memwrap.nn.staleness import WeightSnapshot
from memwrap.nn.tracing import checks_enabled
from memwrap.storage.checkpoint import Parts

CHUNK_SIZE = 128  # images encoded at a time


class MemoryClassifier(EncoderModel, ExplainableModel):
    """An encoder and a memory layer. Images are float tensors, normalised as the encoder expects.

    In training a memory is given with each batch, and encoded in a pass of its own: batch normalisation never mixes the
    two. For inference `remember` encodes one memory once.
    """

    layer: MemoryWrap

    def __init__(self, encoder: nn.Module, layer: MemoryWrap, origin: Origin) -> None:
        super().__init__(encoder, layer, origin)
        self.remembered: RememberedMemory | None = None
        self._snapshot: WeightSnapshot | None = None

    @property
    def reference(self) -> Tensor:
        """A weight of the last layer, which has the model's dtype and device."""
        return self.layer.head.first.weight

    def forward(self, images: Tensor, memory: Tensor | Literal["batch"] | None = None) -> Tensor:
        """images (B, channels, H, W) -> logits (B, C)

        memory: as for `read`, or "batch": each half of the batch is the memory of the other half, encoded by itself.
        """
        if isinstance(memory, str):
            return self._forward_halves(images, memory)
        if memory is not None:
            self._check_memory(memory, images)
            return self.layer(self.encode(images), self._encode(memory, "memory"))
        encodings, remembered = self._encode_with_memory(images)
        return self.layer(encodings, remembered.encodings if self._head_learns() else remembered.prepared)

    def read(self, images: Tensor, memory: Tensor | None = None, keep: Tensor | None = None) -> Reading:
        """Logits, with the weight of each memory sample.

        memory: images (M, channels, H, W), or (B, M, channels, H, W) for one memory to each input; None takes the
        remembered one. keep: bool (M,) or (B, M); False removes a sample.
        """
        if memory is not None:
            self._check_memory(memory, images)
            return self.layer.read(self.encode(images), self._encode(memory, "memory"), keep)
        encodings, remembered = self._encode_with_memory(images)
        return self.layer.read(encodings, remembered.encodings if self._head_learns() else remembered.prepared, keep)

    def explain(self, images: Tensor, effects: bool = True, keep: Tensor | None = None) -> list[Explanation]:
        """The memory samples behind the prediction for each image (B, channels, H, W), by the remembered memory.

        Computed in evaluation mode and full precision, without gradients. effects: whether to compute what removing
        each used sample would change. keep: bool (M,) or (B, M); False removes a sample before anything is computed:
        predictions of the memory, effects, flip set and `uncertain` refer to what is left, while indices stay those of
        the whole memory.
        """
        with evaluation_mode(self), exact_products(self.reference), exact_convolutions(self.reference):
            memory = self._usable_memory(images)
            encodings = self.encode(images)
            if keep is None:
                return self._explain(encodings, memory, effects, None)
            check_keep(keep, len(images), len(memory))
            keep = keep.to(memory.labels.device)
            if keep.ndim == 1:
                return self._explain(encodings, memory, effects, keep)
            rows = zip(torch.split(encodings, 1), keep, strict=True)
            return [self._explain(row, memory, effects, kept)[0] for row, kept in rows]

    def remember(self, images: Tensor, labels: Tensor | Sequence[int], chunk_size: int = CHUNK_SIZE) -> None:
        """Encode a memory once, in evaluation mode and full precision, and keep it for all later predictions.

        images (M, channels, H, W), labels (M,) of classes from 0; predictions do not depend on the labels. chunk_size:
        how many images are encoded at a time. When weights or buffers change afterwards, the next prediction raises a
        StaleMemoryError; compiled, exported and captured models do not check, and writes through `.data` go unnoticed.
        """
        labels = _as_labels(labels)
        check_images(images, self.channels)
        check_labels(labels, len(images), self.layer.num_classes)
        check_sizes(chunk_size=chunk_size)
        device = self.reference.device
        with evaluation_mode(self), exact_products(self.reference), exact_convolutions(self.reference):
            encodings = torch.cat([self.encode(chunk.to(device)) for chunk in torch.split(images, chunk_size)])
            images = images.detach().to(device, copy=True)
            remembered = RememberedMemory(images, labels.to(device, torch.int64, copy=True), encodings)
            remembered.prepare(self.layer)
            remembered.predictions = remembered.leave_one_out(self.layer, chunk_size)
        self._keep(remembered)

    def restore(self, remembered: RememberedMemory) -> None:
        """Take a memory that these weights, as they are now, have encoded before."""
        count = len(remembered.images)
        check_images(remembered.images, self.channels)
        check_labels(remembered.labels, count, self.layer.num_classes)
        if len(remembered.encodings) != count:
            raise InputError(
                f"memory holds {count} images but {len(remembered.encodings)} encodings; each image needs one"
            )
        if remembered.predictions is not None:
            check_labels(remembered.predictions, count, self.layer.num_classes)
        remembered.prepare(self.layer)
        self._keep(remembered)

    def forget(self) -> None:
        """Drop the remembered memory."""
        self.remembered, self._snapshot = None, None

    def pack(self, record: ModelRecord | None = None, probe: bool = True) -> tuple[dict[str, Any], Parts]:
        """What `save` stores: settings (JSON values) and tensors, with the remembered memory."""
        self._check_fresh()
        settings, parts = super().pack(record, probe)
        if self.remembered is None:
            return settings, parts
        try:
            check_memory(self, draw_rows(self.remembered))
        except LoadError as error:
            raise SaveError(
                "the model could not be loaded again, as it encodes an image differently together with others than "
                f"alone: does it normalise over the batch in evaluation mode? ({error})"
            ) from error
        return settings, {**parts, "memory": self.remembered.tensors()}

    def layer_settings(self) -> dict[str, Any]:
        """The arguments that build such a layer."""
        return self.layer.settings()

    def _probe_pass(self, probe: dict[str, Tensor]) -> Tensor:
        return self.layer.read(self._encode_each(probe["images"]), self._encode_each(probe["memory"])).logits

    def _forward_halves(self, images: Tensor, memory: str) -> Tensor:
        """Encode each half apart, so that batch normalisation does not mix inputs with their memory.

        Where it did, models predicted worse from the memories of later on.
        """
        if memory != BATCH:
            raise InputError(f"memory is {memory!r}; expected images, {BATCH!r}, or None for the remembered memory")
        halves = torch.split(images, first_half(len(images)))
        return self.layer(torch.cat([self.encode(half) for half in halves]), BATCH)

    def _explain(
        self, encodings: Tensor, memory: RememberedMemory, effects: bool, keep: Tensor | None
    ) -> list[Explanation]:
        """keep: bool (M,)"""
        reading = self.layer.read(encodings, memory.prepared, keep)
        own = memory.predictions if keep is None else memory.leave_one_out(self.layer, CHUNK_SIZE, keep)
        return explain(reading, Ablation(self.layer, encodings, memory, keep), own, effects)

    def _check_memory(self, memory: Tensor, images: Tensor) -> None:
        if checks_enabled(images):
            check_memory_images(memory, images, self.channels)

    def _keep(self, remembered: RememberedMemory) -> None:
        self.remembered = remembered
        self._snapshot = WeightSnapshot(self.encoder, self.layer)

    def _head_learns(self) -> bool:
        """Whether a gradient may be asked for: then what was prepared from the head, a constant, cannot serve."""
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return True  # torch checks a trace without gradients
        return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.layer.parameters())

    def _encode_with_memory(self, images: Tensor) -> tuple[Tensor, RememberedMemory]:
        """The images' encodings (B, D), and the memory to classify them with."""
        on_gpu = isinstance(images, Tensor) and images.is_cuda
        if on_gpu and self.remembered is not None and not self.training:
            # Staleness is checked while the GPU is at work. (In training mode, the pass itself makes the memory stale.)
            encodings = self.encode(images)
            return encodings, self._usable_memory(images)
        remembered = self._usable_memory(images)
        return self.encode(images), remembered

    def _usable_memory(self, images: Tensor) -> RememberedMemory:
        if self.remembered is None:
            raise NoMemoryError(
                "the model has no memory; give one, model(images, memory=memory_images), "
                "or let it keep one: model.remember(memory_images, labels)"
            )
        if checks_enabled(images):
            self._check_fresh()
            if self.training:
                warnings.warn(
                    "the model predicts with its remembered memory in training mode: dropout acts, and batch "
                    "normalisation mixes the batch; call model.eval() first",
                    stacklevel=4,
                )
        return self.remembered

    def _is_fresh(self) -> bool:
        return self._snapshot is not None and self._snapshot.holds(self.encoder, self.layer)

    def _check_fresh(self) -> None:
        if self._snapshot is not None and not self._is_fresh():
            raise StaleMemoryError(
                "the remembered memory is stale: weights or buffers have changed since it was encoded (by an optimizer "
                "or load_state_dict, or by a pass in training mode, if model.eval() was forgotten); "
                "call model.remember(images, labels) again or model.forget()"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MemoryClassifier":
        """Move or cast; what was fresh before stays fresh, as encodings move with the weights."""
        fresh = self._is_fresh()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if fresh and self.remembered is not None:
            self.remembered.prepare(self.layer)
            self._keep(self.remembered)
        return self


def _as_labels(labels: Tensor | Sequence[int]) -> Tensor:
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"labels cannot be read as integers ({brief(error)}); expected one class number each"
        ) from error
