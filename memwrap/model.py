"""A classifier with a memory: it predicts, remembers and saves itself."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memwrap import store
from memwrap.architectures import describe
from memwrap.checks import check_images, check_labels, check_memory_images, check_sizes
from memwrap.errors import InputError, NoMemoryError, SaveError, StaleMemoryError, brief
from memwrap.layer import MemoryWrap, Reading
from memwrap.memory import RememberedMemory, Snapshot
from memwrap.precision import exact_convolutions, exact_products, without_autocast
from memwrap.surgery import logits_of, modes_kept
from memwrap.tracing import eager


@dataclass(frozen=True)
class Origin:
    """What the classifier was before its last layer was taken out."""

    layer: str  # the name of that layer
    num_classes: int  # its output
    image_shape: tuple[int, int, int]  # channels, height and width that it was tried on; others may do as well


class MemoryClassifier(nn.Module):
    """An encoder and a memory layer. Images are float tensors, normalised as the encoder wants them.

    In training a memory is given with each batch, and encoded in a pass of its own: batch normalisation never mixes the
    two. For inference `remember` encodes one memory for good.
    """

    def __init__(self, encoder: nn.Module, layer: MemoryWrap, origin: Origin) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer = layer
        self.origin = origin
        self.remembered: RememberedMemory | None = None
        self._snapshot: Snapshot | None = None

    def forward(self, images: Tensor, memory: Tensor | None = None) -> Tensor:
        """images (B, channels, H, W) -> logits (B, C). memory: see `read`."""
        if memory is None and not self._head_learns():
            remembered = self._usable_memory(images)
            return self.layer.forward_prepared(self.encode(images), remembered.prepared())
        return self.read(images, memory).logits

    def read(self, images: Tensor, memory: Tensor | None = None, keep: Tensor | None = None) -> Reading:
        """Logits, with the weight of each memory sample.

        memory: images (M, channels, H, W), or (B, M, channels, H, W) for one memory to each input; None takes the
        remembered one. keep: bool (M,) or (B, M); False takes a sample out.
        """
        if memory is not None:
            if eager(images):
                check_memory_images(memory, images, self.origin.image_shape[0])
            return self.layer.read(self.encode(images), self._encode(memory, "memory"), keep)
        remembered = self._usable_memory(images)
        if self._head_learns():
            return self.layer.read(self.encode(images), remembered.encodings, keep)
        return self.layer.read_prepared(self.encode(images), remembered.prepared(), keep)

    def encode(self, images: Tensor) -> Tensor:
        """images (B, channels, H, W) -> encodings (B, D), as the layer takes them"""
        if eager(images):
            check_images(images, self.origin.image_shape[0])
        return self._encode(images, "images")

    def remember(self, images: Tensor, labels: Tensor | Sequence[int], chunk_size: int = 128) -> None:
        """Encode a memory once, in evaluation mode, in full precision, and keep it for all later predictions.

        images (M, channels, H, W), labels (M,) of classes from 0. chunk_size: how many images are encoded at a time.
        Labels are kept for those who look at the memory; predictions do not depend on them. When weights or buffers
        change afterwards, the next prediction raises a StaleMemoryError; compiled, exported and captured models do not
        check, and writes through `.data` are never noticed.
        """
        labels = _as_labels(labels)
        check_images(images, self.origin.image_shape[0])
        check_labels(labels, len(images), self.layer.num_classes)
        check_sizes(chunk_size=chunk_size)
        device = self.layer.head.first.weight.device
        with _in_evaluation(self):
            chunks = torch.split(images, chunk_size)
            encodings = torch.cat([self.encode(chunk.to(device)) for chunk in chunks])
            images = images.detach().to(device, copy=True)
            remembered = RememberedMemory(images, labels.to(device, torch.int64, copy=True), encodings)
            remembered.prepare(self.layer)
            remembered.predict_itself(self.layer, chunk_size)
        self._keep(remembered)

    def restore(self, remembered: RememberedMemory) -> None:
        """Take a memory that these weights, as they are now, have encoded before."""
        check_images(remembered.images, self.origin.image_shape[0])
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

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Store the model, its memory included, in a folder of safetensors and JSON that `memwrap.load` reads.

        A model that the folder holds is replaced, once the new one is whole; other files stay. The classifier's code is
        not stored: to load a hand-written one, it has to be given again.
        """
        self._refuse_if_stale()
        architecture = describe(self.encoder, self.origin.layer, self.origin.num_classes, self.origin.image_shape[0])
        kind, state = type(self.encoder), self.state_dict()
        settings = {
            "classifier": {
                "architecture": None if architecture is None else asdict(architecture),
                "class": f"{kind.__module__}.{kind.__qualname__}",
                **asdict(self.origin),
            },
            "layer": self.layer.settings(),
            "frozen": [name for name, parameter in self.named_parameters() if not parameter.requires_grad],
            "state_versions": _versions(state),
        }
        parts = {"weights": _tensors_only(state), "probe": self._probe()}
        if self.remembered is not None:
            parts["memory"] = self.remembered.tensors()
        store.write(Path(folder), settings, parts)

    def probe_logits(self, images: Tensor, memory: Tensor) -> Tensor:
        """What tells whether two models compute the same: logits in evaluation mode and full precision.

        images (B, channels, H, W), memory (M, channels, H, W) -> (B, C)
        """
        with _in_evaluation(self), exact_products(images), exact_convolutions(images):
            return self.read(images, memory).logits

    def _keep(self, remembered: RememberedMemory) -> None:
        self.remembered = remembered
        self._snapshot = Snapshot(self.encoder, self.layer)

    def _probe(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        weight = self.layer.head.first.weight
        images = torch.randn(2, *self.origin.image_shape, generator=generator).to(weight)
        memory = torch.randn(3, *self.origin.image_shape, generator=generator).to(weight)
        return {"images": images, "memory": memory, "logits": self.probe_logits(images, memory)}

    def _head_learns(self) -> bool:
        """Whether a gradient may be asked for: then the prepared half of the head, a constant, cannot serve."""
        return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.layer.parameters())

    def _usable_memory(self, images: Tensor) -> RememberedMemory:
        if self.remembered is None:
            raise NoMemoryError(
                "the model has no memory; give one, model(images, memory=memory_images), "
                "or let it keep one: model.remember(memory_images, labels)"
            )
        if eager(images):
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

    def _encode(self, images: Tensor, name: str) -> Tensor:
        """(N, channels, H, W) -> (N, D), or (B, M, channels, H, W) -> (B, M, D)"""
        if not eager(images):
            return _rowwise(lambda rows: logits_of(self.encoder(rows)), images)
        try:
            encodings = _rowwise(lambda rows: logits_of(self.encoder(rows)), images)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if _described(images) == self._known_images():
                raise
            raise InputError(
                f"the encoder cannot take {name} of {_described(images)}; it is known to take {self._known_images()}: "
                f"resize, cast or move them ({brief(error)})"
            ) from error
        if encodings.shape != (*images.shape[:-3], self.layer.in_features):
            raise InputError(
                f"{name} of {_described(images)} are encoded to {tuple(encodings.shape)}; expected encodings of length "
                f"{self.layer.in_features}, as for {self._known_images()}: resize them"
            )
        return encodings

    def _known_images(self) -> str:
        return _described(self.layer.head.first.weight.new_empty(0, *self.origin.image_shape))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MemoryClassifier":
        """Moves and casts go through here: what was fresh before stays fresh, as encodings move with the weights."""
        fresh = self._is_fresh()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if fresh and self.remembered is not None:
            self.remembered.prepare(self.layer)
            self._keep(self.remembered)
        return self


def _rowwise(encode: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Encode images (N, channels, H, W), or (B, M, channels, H, W) as B times M of them."""
    if images.ndim != 5:
        return encode(images)
    return encode(images.flatten(0, 1)).reshape(*images.shape[:2], -1)


def _described(images: Tensor) -> str:
    return f"{tuple(images.shape[-3:])}, {images.dtype}, on {images.device}"


def _as_labels(labels: Tensor | Sequence[int]) -> Tensor:
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"labels cannot be read as integers ({brief(error)}); expected one class number each"
        ) from error


def _tensors_only(state: dict[str, Any]) -> dict[str, Tensor]:
    if others := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise SaveError(f"the classifier keeps state that is no tensor ({', '.join(others)}); it cannot be saved")
    return state


def _versions(state: dict[str, Any]) -> dict[str, int]:
    """The version of each module's state, by which torch's modules recognise the states of older ones."""
    metadata = getattr(state, "_metadata", {})
    return {name: facts["version"] for name, facts in metadata.items() if "version" in facts}


@contextmanager
def _in_evaluation(model: MemoryClassifier) -> Iterator[None]:
    """Evaluation mode without gradients and autocast; afterwards every module is in the mode that it was in."""
    weight = model.layer.head.first.weight
    # Tensors made in inference mode could not serve in training later on.
    with modes_kept(model), torch.inference_mode(False), torch.no_grad(), without_autocast(weight):
        model.eval()
        yield
