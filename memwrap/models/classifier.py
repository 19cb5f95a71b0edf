"""A classifier with a memory: it predicts, explains, remembers and saves itself."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from memwrap.errors import InputError, LoadError, NoMemoryError, SaveError, StaleMemoryError, brief
from memwrap.explain.ablation import Ablation
from memwrap.explain.explanation import Explanation, explain
from memwrap.explain.model import ExplainableModel
from memwrap.models.base import EncoderModel, Origin
from memwrap.models.memory_check import check_memory, draw_rows
from memwrap.models.memory_state import memory_tensors, restore_tensors, take_tensors
from memwrap.models.record import ModelRecord
from memwrap.models.samples import ImageSource, check_one_kind, read_batches
from memwrap.nn.checks import check_images, check_keep, check_labels, check_memory_images, check_sizes
from memwrap.nn.layer import BATCH, MemoryWrap, first_half
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.modes import evaluation_mode, exact_evaluation
from memwrap.nn.probabilities import reading_probabilities, temperature_of
from memwrap.nn.queue import Queue
from memwrap.nn.reading import DecidedBy, MemoryLayer, PreparedMemory, Reading
from memwrap.nn.staleness import WeightSnapshot
from memwrap.nn.tracing import checks_enabled
from memwrap.nn.vote_layer import VoteLayer
from memwrap.storage.checkpoint import Parts

CHUNK_SIZE = 128  # images encoded at a time


class MemoryClassifier(EncoderModel, ExplainableModel):
    """An encoder and a memory layer. Images are float tensors, normalised as the encoder expects.

    In training a memory is given with each batch, and encoded in a pass of its own: batch normalisation never mixes the
    two. For inference `remember` encodes one memory once. A vote is trained without a memory: `model(images)`.
    memory_in_state_dict: whether state_dict() holds the remembered memory, too, with its classes, scale and
    calibration, so that checkpoints of other libraries bring it back; False by default.
    """

    layer: MemoryLayer

    def __init__(self, encoder: nn.Module, layer: MemoryLayer, origin: Origin) -> None:
        super().__init__(encoder, layer, origin)
        self.remembered: RememberedMemory | None = None
        self._snapshot: WeightSnapshot | None = None
        self.memory_in_state_dict = False
        self._loaded_memory: dict[str, Tensor] = {}  # between reading a state_dict and the weights in it
        self.register_load_state_dict_post_hook(_restore_loaded)  # type: ignore[no-untyped-call]

    @property
    def reference(self) -> Tensor:
        """A weight of the last layer, which has the model's dtype and device."""
        return self.layer.reference

    @property
    def decided_by(self) -> DecidedBy:
        """What decides: "vote" of the memory, "head" that reads the memory, or "classifier" that does not."""
        return self.layer.decided_by

    @property
    def trains_with_memory(self) -> bool:
        """Whether each training step needs a memory."""
        return isinstance(self.layer, MemoryWrap)

    def forward(self, images: Tensor, memory: Tensor | Queue | Literal["batch"] | None = None) -> Tensor:
        """images (B, channels, H, W) -> logits (B, C)

        memory: as for `read`; or "batch": each half of the batch is the memory of the other half, encoded by itself; or
        a `Queue` of encodings of earlier steps, which joins the other half.
        A vote gives the logits of its head in training mode, and those of the vote, the logarithm of its shares, in
        evaluation mode. Logits are not calibrated; `probabilities` are.
        """
        if memory is None and isinstance(self.layer, VoteLayer) and (self.training or self.decided_by == "classifier"):
            return self.layer(self.encode(images))
        if isinstance(memory, str | Queue):
            return self._forward_halves(images, memory)
        if memory is not None:
            self._check_memory(memory, images)
            return self.layer(self.encode(images), self._encode(memory, "memory"))
        encodings, remembered = self._encode_with_memory(images)
        return self.layer(encodings, self._readable(remembered))

    def read(self, images: Tensor, memory: Tensor | None = None, keep: Tensor | None = None) -> Reading:
        """Logits, with the weight of each memory sample.

        memory: images (M, channels, H, W), or (B, M, channels, H, W) for one memory to each input; None takes the
        remembered one. keep: bool (M,) or (B, M); False removes a sample.
        """
        keep = keep.to(images.device) if isinstance(keep, Tensor) else keep
        if memory is not None:
            self._check_memory(memory, images)
            return self.layer.read(self.encode(images), self._encode(memory, "memory"), keep)
        encodings, remembered = self._encode_with_memory(images)
        reading = self.layer.read(encodings, self._readable(remembered), keep)
        return reading if reading.votes is not None else replace(reading, votes=remembered.votes(reading.weights))

    def probabilities(self, reading: Reading) -> Tensor:
        """The probabilities (B, C) of a reading: calibrated, if the model is, and of the same class."""
        return reading_probabilities(reading, self.calibration)

    def predict(self, images: Tensor) -> Tensor:
        """The probabilities (B, C) of images (B, channels, H, W), in evaluation mode."""
        with evaluation_mode(self):
            return self.probabilities(self.read(images))

    def explain(self, images: Tensor, effects: bool = True, keep: Tensor | None = None) -> list[Explanation]:
        """The memory samples behind the prediction for each image (B, channels, H, W), by the remembered memory.

        Computed in evaluation mode and full precision, without gradients. effects: whether to compute what removing
        each used sample would change. keep: bool (M,) or (B, M); False removes a sample before anything is computed:
        predictions of the memory, effects, flip set and `uncertain` refer to what is left, while indices stay those of
        the whole memory.
        """
        with exact_evaluation(self):
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

    def remember(
        self,
        images: ImageSource,
        labels: Tensor | Sequence[int] | None = None,
        chunk_size: int = CHUNK_SIZE,
        *,
        names: Sequence[str] | None = None,
        extend: bool = False,
    ) -> None:
        """Encode a memory once, in evaluation mode and full precision, and keep it for all later predictions.

        images (M, channels, H, W) with labels (M,) of classes from 0; or a Dataset, DataLoader or other iterable of
        (image, label). Images are as the model takes them, or Pillow images and uint8 pixels, which model.transform
        converts. chunk_size: how many are encoded at a time. names: of the images, for people. extend: add to the
        memory that is there, instead of replacing it.
        When weights or buffers change afterwards, the next prediction raises a StaleMemoryError; compiled, exported and
        captured models do not check, and writes through `.data` go unnoticed.
        """
        check_sizes(chunk_size=chunk_size)
        if extend:
            self._check_fresh()
        remembered = self._encode_memory(images, labels, chunk_size, names)
        if extend and self.remembered is not None:
            remembered = self.remembered.joined(remembered)
        remembered.prepare(self.layer)
        self._keep(remembered)

    def _encode_memory(
        self,
        source: ImageSource,
        labels: Tensor | Sequence[int] | None,
        chunk_size: int,
        names: Sequence[str] | None,
    ) -> RememberedMemory:
        device = self.reference.device
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        with exact_evaluation(self):
            for images, numbers in read_batches(source, labels, self.transform, chunk_size):
                is_pixels = images.dtype == torch.uint8
                inputs = self.get_transform()(images) if is_pixels else images
                check_images(inputs, self.channels)
                check_one_kind([images[0], *(part[0][0] for part in parts[:1])])
                check_labels(numbers, len(images), self.layer.num_classes)
                encodings = self.encode(inputs.to(device, self.reference.dtype) if is_pixels else inputs.to(device))
                parts.append((images.detach().to(device, copy=True), numbers.to(device, torch.int64), encodings))
            if not parts:
                raise InputError("there are no images to remember; give at least one")
            all_images, all_labels, encodings = (torch.cat(each) for each in zip(*parts, strict=True))
        if names is not None and len(names) != len(all_labels):
            raise InputError(f"names has {len(names)} entries; expected one for each of the {len(all_labels)} images")
        return RememberedMemory(all_images, all_labels, encodings, names)

    def add_class(self, name: str) -> int:
        """Let the memory have a class that the model was not trained on; the label of its images.

        Only for votes: remember images of it with `remember(images, labels, extend=True)`.
        """
        if not isinstance(self.layer, VoteLayer) or self.decided_by != "vote":
            raise InputError(
                "only a model that decides by the vote of its memory takes a class without training; train on it, or "
                'attach the classifier anew with decide="vote"'
            )
        if self.classes is not None:
            if name in self.classes:
                raise InputError(f"there is a class {name!r} already; give its images the label of that class")
            self.classes = (*self.classes, name)
        self.layer.add_classes(1)
        return self.layer.num_classes - 1

    def drop_empty_classes(self) -> None:
        """Undo `add_class` for the last classes, as far as the memory holds no image of them."""
        memory, layer = self._require_memory(), self.layer
        if not isinstance(layer, VoteLayer) or not layer.head_classes:
            return
        needed = max(layer.head_classes, int(memory.labels.max()) + 1)
        layer.add_classes(needed - layer.num_classes)
        self.classes = None if self.classes is None else tuple(self.classes)[:needed]

    def restore(self, remembered: RememberedMemory) -> None:
        """Take a memory that these weights, as they are now, have encoded before."""
        count = len(remembered.images)
        if remembered.images.dtype != torch.uint8:
            check_images(remembered.images, self.channels)
        elif tuple(remembered.images.shape[1:]) != self.get_transform().shape:
            raise InputError(
                f"memory holds pixels of {tuple(remembered.images.shape[1:])}; expected {self.get_transform().shape}"
            )
        check_labels(remembered.labels, count, self.layer.num_classes)
        if len(remembered.encodings) != count or (remembered.names is not None and len(remembered.names) != count):
            raise InputError(
                f"memory holds {count} images but {len(remembered.encodings)} encodings, or other names; each image "
                "needs one"
            )
        remembered.prepare(self.layer)
        self._keep(remembered)

    def fresh_memory(self) -> RememberedMemory:
        """The remembered memory; a NoMemoryError without one, a StaleMemoryError if weights have changed since."""
        self._check_fresh()
        return self._require_memory()

    def forget(self, rows: Sequence[int] | Tensor | None = None) -> None:
        """Drop the remembered memory, or the samples at these rows of it; at least one is kept."""
        if rows is None:
            self.remembered, self._snapshot = None, None
            return
        self._check_fresh()
        memory = self._require_memory()
        try:
            given = torch.as_tensor(rows, device=memory.labels.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"rows cannot be read as whole numbers ({brief(error)}); expected as [0, 5]") from error
        if given.numel() and (given.dtype == torch.bool or given.is_floating_point()):
            raise InputError(f"rows are of {given.dtype}; expected whole numbers, the rows to drop: mask.nonzero()")
        dropped = given.long().reshape(-1)
        if len(dropped) and not (int(dropped.min()) >= 0 and int(dropped.max()) < len(memory)):
            raise InputError(f"rows go from {int(dropped.min())} to {int(dropped.max())}; the memory has {len(memory)}")
        kept = torch.ones(len(memory), dtype=torch.bool, device=dropped.device).index_fill(0, dropped, False)
        if not bool(kept.any()):
            raise InputError(f"all {len(memory)} memory images would be dropped; keep at least one, or call forget()")
        remembered = memory.at(kept.nonzero().squeeze(1))
        remembered.prepare(self.layer)
        self._keep(remembered)

    def pack(self, record: ModelRecord | None = None, probe: bool = True) -> tuple[dict[str, Any], Parts]:
        """What `save` stores: settings (JSON values) and tensors, with the remembered memory."""
        self._check_fresh()
        settings, parts = super().pack(record, probe)
        take_tensors(parts["weights"])  # the memory has a file of its own
        if self.remembered is None:
            return settings, parts
        try:
            check_memory(self, draw_rows(self.remembered))
        except LoadError as error:
            raise SaveError(
                "the model could not be loaded again, as it encodes an image differently together with others than "
                f"alone: does it normalise over the batch in evaluation mode? ({error})"
            ) from error
        settings["memory_names"] = self.remembered.names
        return settings, {**parts, "memory": self.remembered.tensors()}

    def layer_settings(self) -> dict[str, Any]:
        """The arguments that build such a layer."""
        return self.layer.settings()

    def _probe_pass(self, probe: dict[str, Tensor]) -> Tensor:
        encodings, memory = self._encode_each(probe["images"]), self._encode_each(probe["memory"])
        if not isinstance(self.layer, VoteLayer):
            return self.layer.read(encodings, memory).logits
        labels = torch.arange(len(memory), device=memory.device) % self.layer.num_classes
        reading = self.layer.read(encodings, self.layer.prepare(memory, labels))
        assert reading.votes is not None
        votes = reading.votes.to(encodings.dtype)
        return votes if reading.head_logits is None else torch.cat([reading.head_logits, votes], dim=1)

    def _forward_halves(self, images: Tensor, memory: Queue | str) -> Tensor:
        """Encode each half apart, so that batch normalisation does not mix inputs with their memory.

        Where it did, models predicted worse from the memories of later on.
        """
        if isinstance(memory, str) and memory != BATCH:
            raise InputError(f"memory is {memory!r}; expected images, {BATCH!r}, or None for the remembered memory")
        halves = torch.split(images, first_half(len(images)))
        return self.layer(torch.cat([self.encode(half) for half in halves]), memory)

    def _explain(
        self, encodings: Tensor, memory: RememberedMemory, effects: bool, keep: Tensor | None
    ) -> list[Explanation]:
        """keep: bool (M,)"""
        reading = self.layer.read(encodings, memory.prepared, keep)
        ablation = Ablation(self.layer, encodings, memory, keep)
        return explain(reading, ablation, self.probabilities(reading), effects, temperature_of(self.calibration))

    def _check_memory(self, memory: Tensor, images: Tensor) -> None:
        if checks_enabled(images):
            check_memory_images(memory, images, self.channels)

    def _keep(self, remembered: RememberedMemory) -> None:
        self.remembered = remembered
        self._snapshot = WeightSnapshot(self.encoder, self.layer)

    def _readable(self, remembered: RememberedMemory) -> Tensor | PreparedMemory:
        """The memory as the layer is to read it."""
        if isinstance(self.layer, VoteLayer) or not self._head_learns():
            return remembered.prepared
        return remembered.encodings

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
        memory = self._require_memory()
        if checks_enabled(images):
            self._check_fresh()
            if self.training:
                warnings.warn(
                    "the model predicts with its remembered memory in training mode: dropout acts, and batch "
                    "normalisation mixes the batch; call model.eval() first",
                    stacklevel=4,
                )
        return memory

    def _require_memory(self) -> RememberedMemory:
        if self.remembered is None:
            raise NoMemoryError(
                "the model has no memory; let it keep one, model.remember(memory_images, labels), or, if its head "
                "reads the memory, give one: model(images, memory=memory_images)"
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

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.memory_in_state_dict:
            destination.update({prefix + key: tensor for key, tensor in memory_tensors(self).items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        self._loaded_memory = take_tensors(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MemoryClassifier":
        """Move or cast; what was fresh before stays fresh, as encodings move with the weights."""
        fresh = self._is_fresh()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if fresh and self.remembered is not None:
            self.remembered.prepare(self.layer)
            self._keep(self.remembered)
        return self


def _restore_loaded(model: MemoryClassifier, _incompatible: object) -> None:
    """Restore a memory that came with a state_dict, once the weights that it belongs to are loaded."""
    if model._loaded_memory:
        found, model._loaded_memory = model._loaded_memory, {}
        restore_tensors(model, found)
        model.memory_in_state_dict = True
