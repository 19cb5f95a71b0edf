"""A classifier with a memory: it predicts, remembers and saves itself."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from memwrap.errors import InputError, NoMemoryError, StaleMemoryError, brief
from memwrap.explain.ablation import Ablation
from memwrap.explain.explanation import Explanation, explain
from memwrap.explain.model import ExplainableModel
from memwrap.models.base import EncoderModel, Origin
from memwrap.nn.checks import check_images, check_labels, check_memory_images, check_sizes
from memwrap.nn.layer import MemoryWrap, Reading, first_half
from memwrap.nn.memory import RememberedMemory, Snapshot
from memwrap.nn.modes import evaluation_mode
from memwrap.nn.precision import exact_convolutions, exact_products
from memwrap.nn.tracing import checks_enabled
from memwrap.storage.checkpoint import Parts


class MemoryClassifier(EncoderModel, ExplainableModel):
    """An encoder and a memory layer. Images are float tensors, normalised as the encoder wants them.

    In training a memory is given with each batch, and encoded in a pass of its own: batch normalisation never mixes the
    two. For inference `remember` encodes one memory for good.
    """

    layer: MemoryWrap

    def __init__(self, encoder: nn.Module, layer: MemoryWrap, origin: Origin) -> None:
        super().__init__(encoder, layer, origin)
        self.remembered: RememberedMemory | None = None
        self._snapshot: Snapshot | None = None

    @property
    def reference(self) -> Tensor:
        """A weight of the last layer, which tells the model's dtype and device."""
        return self.layer.head.first.weight

    def forward(self, images: Tensor, memory: Tensor | Literal["batch"] | None = None) -> Tensor:
        """images (B, channels, H, W) -> logits (B, C)

        memory: see `read`; "batch" makes each half of the batch the memory of the other. Each half is encoded by
        itself: when batch normalisation mixed them, models predicted worse from the memories of later on.
        """
        logits: Tensor
        if isinstance(memory, str):
            if memory != "batch" or len(images) < 2:
                raise InputError(
                    f'memory is {memory!r} for a batch of {len(images)}; expected images, or "batch" for at least two'
                )
            halves = images.tensor_split([first_half(len(images))])
            logits = self.layer(torch.cat([self.encode(half) for half in halves]), "batch")
        elif memory is not None:
            if checks_enabled(images):
                check_memory_images(memory, images, self.channels)
            logits = self.layer(self.encode(images), self._encode(memory, "memory"))
        elif self._head_learns():
            logits = self.read(images).logits
        else:
            encodings, remembered = self._encoded_beside_memory(images)
            logits = self.layer.forward_prepared(encodings, remembered.prepared())
        return logits

    def read(self, images: Tensor, memory: Tensor | None = None, keep: Tensor | None = None) -> Reading:
        """Logits, with the weight of each memory sample.

        memory: images (M, channels, H, W), or (B, M, channels, H, W) for one memory to each input; None takes the
        remembered one. keep: bool (M,) or (B, M); False takes a sample out.
        """
        if memory is not None:
            if checks_enabled(images):
                check_memory_images(memory, images, self.channels)
            return self.layer.read(self.encode(images), self._encode(memory, "memory"), keep)
        encodings, remembered = self._encoded_beside_memory(images)
        if self._head_learns():
            return self.layer.read(encodings, remembered.encodings, keep)
        return self.layer.read_prepared(encodings, remembered.prepared(), keep)

    def explain(self, images: Tensor, effects: bool = True) -> list[Explanation]:
        """Why each image (B, channels, H, W) is judged as it is, by the remembered memory.

        In evaluation mode and full precision, without gradients. effects: whether to compute, beside each used sample's
        weight, what taking it out would change.
        """
        with evaluation_mode(self), exact_products(self.reference), exact_convolutions(self.reference):
            memory = self._usable_memory(images)
            encodings = self.encode(images)
            reading = self.layer.read_prepared(encodings, memory.prepared())
            return explain(reading, Ablation(self.layer, encodings, memory), effects)

    def remember(self, images: Tensor, labels: Tensor | Sequence[int], chunk_size: int = 128) -> None:
        """Encode a memory once, in evaluation mode, in full precision, and keep it for all later predictions.

        images (M, channels, H, W), labels (M,) of classes from 0. chunk_size: how many images are encoded at a time.
        Labels are kept for those who look at the memory; predictions do not depend on them. When weights or buffers
        change afterwards, the next prediction raises a StaleMemoryError; compiled, exported and captured models do not
        check, and writes through `.data` are never noticed.
        """
        labels = _as_labels(labels)
        check_images(images, self.channels)
        check_labels(labels, len(images), self.layer.num_classes)
        check_sizes(chunk_size=chunk_size)
        device = self.reference.device
        with evaluation_mode(self), exact_products(self.reference), exact_convolutions(self.reference):
            chunks = torch.split(images, chunk_size)
            encodings = torch.cat([self.encode(chunk.to(device)) for chunk in chunks])
            images = images.detach().to(device, copy=True)
            remembered = RememberedMemory(images, labels.to(device, torch.int64, copy=True), encodings)
            remembered.prepare(self.layer)
            remembered.predict_itself(self.layer, chunk_size)
        self._keep(remembered)

    def restore(self, remembered: RememberedMemory) -> None:
        """Take a memory that these weights, as they are now, have encoded before."""
        check_images(remembered.images, self.channels)
        check_labels(remembered.labels, len(remembered.images), self.layer.num_classes)
        if len(remembered.encodings) != len(remembered.images):
            raise InputError(
                f"memory holds {len(remembered.images)} images but {len(remembered.encodings)} encodings; "
                "each image needs one"
            )
        if remembered.predictions is not None:
            check_labels(remembered.predictions, len(remembered.images), self.layer.num_classes)
        remembered.prepare(self.layer)
        self._keep(remembered)

    def forget(self) -> None:
        """Drop the remembered memory."""
        self.remembered, self._snapshot = None, None

    def pack(self) -> tuple[dict[str, Any], Parts]:
        """What `save` stores: settings (JSON values) and tensors, the remembered memory among them."""
        self._refuse_if_stale()
        settings, parts = super().pack()
        return settings, parts if self.remembered is None else {**parts, "memory": self.remembered.tensors()}

    def layer_settings(self) -> dict[str, Any]:
        """The arguments that build such a layer."""
        return self.layer.settings()

    def _probe_pass(self, probe: dict[str, Tensor]) -> Tensor:
        return self.read(probe["images"], probe["memory"]).logits

    def _keep(self, remembered: RememberedMemory) -> None:
        self.remembered = remembered
        self._snapshot = Snapshot(self.encoder, self.layer)

    def _head_learns(self) -> bool:
        """Whether a gradient may be asked for: then the prepared half of the head, a constant, cannot serve."""
        return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.layer.parameters())

    def _encoded_beside_memory(self, images: Tensor) -> tuple[Tensor, RememberedMemory]:
        """The images' encodings (B, D), and the memory to judge them by."""
        on_gpu = isinstance(images, Tensor) and images.is_cuda
        if on_gpu and self.remembered is not None and not self.training:
            # Whether the memory is stale is looked at while the GPU is at work. In training mode, the pass itself makes
            # it so.
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
            self._refuse_if_stale()
            if self.training:
                warnings.warn(
                    "the model predicts with its remembered memory in training mode: dropout acts, and batch "
                    "normalisation mixes the batch; call model.eval() first",
                    stacklevel=4,
                )
        return self.remembered

    def _is_fresh(self) -> bool:
        return self._snapshot is not None and self._snapshot.holds(self.encoder, self.layer)

    def _refuse_if_stale(self) -> None:
        if self._snapshot is not None and not self._is_fresh():
            raise StaleMemoryError(
                "the remembered memory is stale: weights or buffers have changed since it was encoded (by an optimiser "
                "or load_state_dict, or by a pass in training mode, if model.eval() was forgotten); "
                "call model.remember(images, labels) again or model.forget()"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MemoryClassifier":
        """Moves and casts go through here: what was fresh before stays fresh, as encodings move with the weights."""
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
