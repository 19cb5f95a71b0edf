"""The memory that a model remembers: images, labels, encodings, and what the layer computes from them once."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from memwrap.errors import InputError
from memwrap.metrics import predict_classes
from memwrap.nn.checks import NormBound
from memwrap.nn.precision import exact_products
from memwrap.nn.reading import MemoryLayer, PreparedMemory, Reading
from memwrap.nn.similarity import SCORES_AT_ONCE, Vectors
from memwrap.nn.voting import sum_by_label

UNKNOWN = -1  # a prediction that has not been asked for


class RememberedMemory(nn.Module):
    """The memory that a model predicts with when it is given none; it moves with the model.

    images (M, channels, H, W): as the model takes them, or uint8 pixels that its transform makes such images of. labels
    (M,), encodings (M, D) by the model in evaluation mode. names: of the images; None if they have none.
    """

    images: Tensor
    labels: Tensor
    encodings: Tensor
    _predictions: Tensor
    _projected: Tensor | None
    _inverse_norms: Tensor
    _hidden: Tensor | None
    _input_weight: Tensor | None
    _bound: NormBound | None

    def __init__(self, images: Tensor, labels: Tensor, encodings: Tensor, names: Sequence[str] | None = None) -> None:
        super().__init__()
        # Empty ones are those of images without a name; no names at all are an error that `restore` finds.
        self.names = None if names is None or (len(names) > 0 and not any(names)) else tuple(names)
        # Not part of state_dict, as its length differs from memory to memory; saving a model stores it.
        self.register_buffer("images", images, persistent=False)
        self.register_buffer("labels", labels, persistent=False)
        self.register_buffer("encodings", encodings, persistent=False)
        predictions = torch.full((len(labels),), UNKNOWN, device=labels.device)
        self.register_buffer("_predictions", predictions, persistent=False)

    def extra_repr(self) -> str:
        return f"{len(self)} images of {tuple(self.images.shape[1:])}"

    def __len__(self) -> int:
        return len(self.labels)

    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored, by the names that the constructor takes."""
        return {"images": self.images, "labels": self.labels, "encodings": self.encodings}

    def at(self, rows: Tensor) -> "RememberedMemory":
        """The samples at these rows (n,), in this order; to be prepared."""
        names = None if self.names is None else [self.names[row] for row in rows.tolist()]
        return RememberedMemory(self.images[rows], self.labels[rows], self.encodings[rows], names)

    def joined(self, other: "RememberedMemory") -> "RememberedMemory":
        """These samples, followed by the other's; to be prepared."""
        if self.images.shape[1:] != other.images.shape[1:] or self.images.dtype != other.images.dtype:
            raise InputError(
                f"the memory holds images of {tuple(self.images.shape[1:])}, {self.images.dtype}, and those to add are "
                f"of {tuple(other.images.shape[1:])}, {other.images.dtype}; expected the same"
            )
        mine, others = self.tensors(), other.tensors()
        columns = {name: torch.cat([mine[name], others[name]]) for name in mine}
        names = [name for each in (self, other) for name in each.names or [""] * len(each)]
        return RememberedMemory(**columns, names=names)

    def votes(self, weights: Tensor) -> Tensor:
        """weights (B, M) summed by label: (B, C)"""
        return sum_by_label(weights, self.labels, self._layer[0].num_classes)

    def inputs(self, rows: Tensor, transform: Callable[[], Callable[[Tensor], Tensor]]) -> Tensor:
        """The images at these rows (n,) as the model takes them; `transform()` returns its transform, for pixels."""
        images = self.images[rows]
        return images if images.is_floating_point() else transform()(images).to(self.encodings.dtype)

    def prepare(self, layer: MemoryLayer) -> None:
        """Compute what the layer needs of the memory; again when dtype, device or the layer's scale have changed."""
        # Tensors made in inference mode could not take part in a gradient later on.
        with torch.inference_mode(False), torch.no_grad():
            prepared = layer.prepare(self.encodings, self.labels)
        # Not the encodings again: tools for modules, such as torch.jit.trace, refuse a tensor registered twice.
        projected = None if layer.projection is None else prepared.keys.values
        self.register_buffer("_projected", projected, persistent=False)
        self.register_buffer("_inverse_norms", prepared.keys.inverse_norms, persistent=False)
        self.register_buffer("_hidden", prepared.hidden, persistent=False)
        self.register_buffer("_input_weight", prepared.input_weight, persistent=False)
        self._bound = prepared.bound
        self._predictions = torch.full_like(self._predictions, UNKNOWN)
        self._layer = (layer,)  # in a tuple, as it is no part of this module

    @property
    def prepared(self) -> PreparedMemory:
        """The memory as the layer takes it."""
        keys = self.encodings if self._projected is None else self._projected
        return PreparedMemory(
            Vectors(keys, self._inverse_norms), self._hidden, self._input_weight, self._bound, self.labels
        )

    @property
    def predictions(self) -> Tensor | None:
        """(M,): the model's class for each sample, made with the memory without that sample; None in a memory of one.

        Computed when first asked for, as that takes M times M comparisons; `predictions_of` computes some.
        """
        return self.predictions_of(torch.arange(len(self), device=self.labels.device))

    def predictions_of(self, rows: Tensor, keep: Tensor | None = None) -> Tensor | None:
        """The predictions (n,) of the samples at rows (n,); None if none would be left to predict one with.

        keep: bool (M,); False removes a sample from the memory of all.
        """
        if int(len(self) if keep is None else keep.sum()) == 1:
            return None
        if keep is not None:
            known, places = rows.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            return self._predict(known, keep)[places]
        unknown = rows[self._predictions[rows] == UNKNOWN].unique()  # type: ignore[no-untyped-call]
        if len(unknown):
            # Not in place: the tensor may have been made, or moved, in inference mode.
            self._predictions = self._predictions.index_copy(0, unknown, self._predict(unknown, None))
        return self._predictions[rows]

    @property
    def classes(self) -> Tensor | None:
        """(M,): the class by which a sample is an example or a counterfactual: its label, or the model's prediction.

        Labels where the samples vote or stand next to a classifier, as there the labels count; None in a memory of one.
        """
        return self.classes_of(torch.arange(len(self), device=self.labels.device))

    def classes_of(self, rows: Tensor, keep: Tensor | None = None) -> Tensor | None:
        """The same of the samples at rows (n,); keep as in `predictions_of`."""
        return self.predictions_of(rows, keep) if self._layer[0].decided_by == "head" else self.labels[rows]

    def is_uncertain(self, reading: Reading, keep: Tensor | None = None) -> Tensor | None:
        """Whether each prediction is doubtful, bool (B,): its strongest sample is a counterfactual, or head and vote
        differ where there are both. None in a memory of one. keep: with which the memory was read.
        """
        predictions = predict_classes(reading.logits)
        strongest = self.classes_of(reading.weights.argmax(1), keep)
        if strongest is None:
            return None
        differs = strongest != predictions
        if reading.head_logits is not None and reading.votes is not None:
            head, vote = predict_classes(reading.head_logits), predict_classes(reading.votes)
            differs |= (head != vote) & (vote < reading.head_logits.shape[1])  # of classes that the head knows
        return differs

    def _predict(self, rows: Tensor, keep: Tensor | None) -> Tensor:
        at_once = max(1, SCORES_AT_ONCE // (8 * max(len(self), self._layer[0].hidden_width)))
        with exact_products(self.encodings):
            logits = (self.logits_without(chunk, keep) for chunk in torch.split(rows, at_once))
            return torch.cat([predict_classes(each) for each in logits])

    @torch.no_grad()
    def logits_without(self, rows: Tensor, keep: Tensor | None = None) -> Tensor:
        """Logits (n, C) of the samples at rows (n,), each with the memory without itself; keep as above."""
        keep = torch.ones(len(self), dtype=torch.bool, device=self.labels.device) if keep is None else keep
        others = keep.repeat(len(rows), 1)
        others[torch.arange(len(rows), device=rows.device), rows] = False
        return self._layer[0].read(self.encodings[rows], self.prepared, others).logits
