"""A classifier with a memory: `wrap` makes one of any classifier, `MemoryClassifier` predicts, remembers and saves."""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memwrap import store
from memwrap.architectures import describe
from memwrap.attention import without_autocast, without_tf32
from memwrap.checks import check_images, check_labels, check_logits
from memwrap.errors import InputError, NoMemoryError, SaveError, StaleMemoryError, WrapError
from memwrap.layer import MemoryWrap, Reading
from memwrap.memory import RememberedMemory, Snapshot
from memwrap.probes import probe_images
from memwrap.surgery import find_last_layer, logits_of, take_out
from memwrap.tracing import eager


@dataclass(frozen=True)
class Origin:
    """What the classifier was before its last layer was taken out."""

    layer: str  # the name of that layer
    num_classes: int  # its output
    image_shape: tuple[int, int, int]  # channels, height and width that it was tried on; others may do as well


def wrap(
    classifier: nn.Module,
    variant: str = "memory_wrap",
    *,
    head: str = "mlp",
    project: int | None = None,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> "MemoryClassifier":
    """A copy of `classifier` whose last layer is replaced by a memory; all other weights are kept.

    The classifier maps images (B, channels, H, W) to logits (B, C), or to an object with `.logits`; auxiliary outputs
    are ignored. variant, head, project: see `MemoryWrap`. num_classes: None keeps the classifier's.
    layer: the name of the layer to replace, as in "head.fc"; None finds it. example: images of a shape that the
    classifier takes, any values; None tries likely shapes.
    """
    encoder = _private_copy(classifier)
    images = probe_images(encoder, example)
    last = find_last_layer(encoder, images, layer)
    take_out(encoder, last.name)
    classes = last.num_classes if num_classes is None else num_classes
    memory_layer = MemoryWrap(last.in_features, classes, variant, head, project).to(images)
    channels, height, width = images.shape[1:]
    model = MemoryClassifier(encoder, memory_layer, Origin(last.name, last.num_classes, (channels, height, width)))
    return model.train(classifier.training)


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
            return self.layer.read(self.encode(images), self._encode_memory(memory), keep)
        remembered = self._usable_memory(images)
        if self._head_learns():
            return self.layer.read(self.encode(images), remembered.encodings, keep)
        return self.layer.read_prepared(self.encode(images), remembered.prepared(), keep)

    def encode(self, images: Tensor) -> Tensor:
        """images (B, channels, H, W) -> encodings (B, D), as the layer takes them"""
        if not eager(images):
            return logits_of(self.encoder(images))
        check_images("images", images, self.origin.image_shape[0])
        return self._encode_checked(images)

    def remember(self, images: Tensor, labels: Tensor | Sequence[int], chunk_size: int = 128) -> None:
        """Encode a memory once, in evaluation mode and without gradients, and keep it for all later predictions.

        images (M, channels, H, W), labels (M,). chunk_size: how many images are encoded at a time.
        """
        check_images("images", images, self.origin.image_shape[0])
        labels = torch.as_tensor(labels)
        check_labels(labels, len(images), self.layer.num_classes)
        if chunk_size < 1:
            raise InputError(f"chunk_size is {chunk_size}; expected at least 1")
        device = self.layer.head.first.weight.device
        with _in_evaluation(self):
            chunks = torch.split(images, chunk_size)
            encodings = torch.cat([self.encode(chunk.to(device)) for chunk in chunks])
            remembered = RememberedMemory(
                images.detach().to(device, copy=True), labels.to(device, torch.int64, copy=True), encodings
            )
            remembered.prepare(self.layer)
            remembered.predict_itself(self.layer, chunk_size)
        self.restore(remembered)

    def restore(self, remembered: RememberedMemory) -> None:
        """Take a memory that these weights, as they are now, have encoded before."""
        remembered.prepare(self.layer)
        self.remembered = remembered
        self._snapshot = Snapshot(self.encoder, self.layer)

    def forget(self) -> None:
        """Drop the remembered memory."""
        self.remembered, self._snapshot = None, None

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Store the model, its memory included, in a folder of safetensors and JSON that `memwrap.load` reads.

        Until the new model is whole, the folder holds the old one.
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
            "state_versions": _versions(state),
        }
        parts = {"weights": _tensors_only(state), "probe": self._probe()}
        if self.remembered is not None:
            parts["memory"] = self.remembered.tensors()
        store.write(Path(folder), settings, parts)

    def probe_logits(self, images: Tensor, memory: Tensor) -> Tensor:
        """Logits in evaluation mode and full precision, to tell whether two models compute the same."""
        with _in_evaluation(self), without_autocast(images), without_tf32(images, convolutions=True):
            return self(images, memory)  # type: ignore[no-any-return]

    def _probe(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        weight = self.layer.head.first.weight
        images = torch.randn(2, *self.origin.image_shape, generator=generator).to(weight)
        memory = torch.randn(3, *self.origin.image_shape, generator=generator).to(weight)
        logits = self.probe_logits(images, memory)
        check_logits(logits)
        return {"images": images, "memory": memory, "logits": logits}

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
        return self.remembered

    def _refuse_if_stale(self) -> None:
        if self._snapshot is not None and not self._snapshot.holds():
            raise StaleMemoryError(
                "the remembered memory is stale: weights or buffers have changed since it was encoded (by an optimiser "
                "or load_state_dict, or in a training pass); "
                "call model.remember(images, labels) again or model.forget()"
            )

    def _encode_memory(self, memory: Tensor) -> Tensor:
        """memory (M, channels, H, W) -> (M, D), or (B, M, channels, H, W) -> (B, M, D)"""
        if eager(memory):
            check_images("memory", memory, self.origin.image_shape[0], layouts=(4, 5))
        if memory.ndim == 4:
            return self.encode(memory)
        return self.encode(memory.flatten(0, 1)).reshape(*memory.shape[:2], -1)

    def _encode_checked(self, images: Tensor) -> Tensor:
        try:
            encodings = logits_of(self.encoder(images))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            given, known = _kind(images), self._known_images()
            if given == known:
                raise
            raise InputError(
                f"the encoder cannot take {given}; it is known to take {known} ({str(error).splitlines()[0]})"
            ) from error
        if encodings.shape != (len(images), self.layer.in_features):
            raise InputError(
                f"{_kind(images)} are encoded to {tuple(encodings.shape)}; expected ({len(images)}, "
                f"{self.layer.in_features}), as for {self._known_images()}: resize them"
            )
        return encodings

    def _known_images(self) -> str:
        return _kind(self.layer.head.first.weight.new_empty(0, *self.origin.image_shape))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MemoryClassifier":
        """Moves and casts go through here: what was fresh before stays fresh, as encodings move with the weights."""
        fresh = self._snapshot is not None and self._snapshot.holds()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if fresh and self.remembered is not None:
            self.restore(self.remembered)
        return self


def _kind(images: Tensor) -> str:
    return f"images of {tuple(images.shape[1:])}, {images.dtype}, on {images.device}"


def _private_copy(classifier: nn.Module) -> nn.Module:
    if not isinstance(classifier, nn.Module):
        raise WrapError(f"classifier is a {type(classifier).__name__}; expected a torch.nn.Module")
    if isinstance(classifier, MemoryClassifier):
        raise WrapError("classifier has a memory already; give the classifier that it was made from")
    # torch.compile's shell around a module; the wrapped model can be compiled in its turn.
    classifier = getattr(classifier, "_orig_mod", classifier)
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in classifier.parameters()):
        raise WrapError("classifier has lazy layers without weights yet; run one batch through it first")
    try:
        return copy.deepcopy(classifier)
    except Exception as error:
        raise WrapError(f"the classifier cannot be copied ({type(error).__name__}: {error})") from error


def _tensors_only(state: dict[str, Any]) -> dict[str, Tensor]:
    if others := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise SaveError(f"the classifier keeps state that is no tensor ({', '.join(others)}); it cannot be saved")
    return state


def _versions(state: dict[str, Any]) -> dict[str, int]:
    """The version of each module's state, by which torch's modules recognise the states of older ones."""
    metadata = getattr(state, "_metadata", {})
    return {name: facts["version"] for name, facts in metadata.items() if "version" in facts}


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        # Tensors made in inference mode could not serve in training later on.
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
