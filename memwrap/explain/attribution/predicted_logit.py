"""The function that heatmaps attribute: the score of the predicted class, of the pixels of input and memory samples."""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.errors import InputError, NoMemoryError
from memwrap.explain.model import ExplainableModel
from memwrap.metrics import predict_classes
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.modes import exact_evaluation


@dataclass(frozen=True, eq=False)
class PredictedLogit:
    """f(x, m_1 .. m_k): the score of the class `target` that the model predicts for an image.

    Where a head reads the memory, its logit. Where samples vote, or stand next to a classifier, how similar the image
    is to the samples of that class, by their weights; their vote itself may not change at all. The memory is cut to the
    samples that the image uses, which leaves the prediction as it is. `moved` are those whose pixels are arguments of
    f; `still` are the others, which stay as they are remembered. image (C, H, W)
    """

    model: ExplainableModel
    memory: RememberedMemory
    image: Tensor
    target: int
    moved: tuple[int, ...]
    still: tuple[int, ...]
    weights: Tensor  # (M,), of the image

    def __call__(self, images: Tensor, samples: Tensor | None = None) -> Tensor:
        """images (N, C, H, W), samples (N, k, C, H, W) -> f of each row, (N,). None where no sample moves."""
        # Each row has its own memory. In one that all rows share, as in the published code, the samples of
        # different steps of a path would compete for one row's attention.
        pixels = images.unsqueeze(1) if samples is None else torch.cat([images.unsqueeze(1), samples], dim=1)
        encodings = self.model.encode(pixels.flatten(0, 1)).reshape(*pixels.shape[:2], -1)
        if pixels.requires_grad and torch.is_grad_enabled() and not encodings.requires_grad:
            raise InputError(
                "the encoder lets no gradient through to its images, as under torch.no_grad; "
                "use method='occlusion', which needs none"
            )
        still = self.memory.encodings[list(self.still)].expand(len(images), -1, -1)
        memory = torch.cat([encodings[:, 1:], still], dim=1)
        if self.model.layer.decided_by != "head":
            return self._similarity(encodings[:, 0], memory)
        logits: Tensor = self.model.layer(encodings[:, 0], memory)
        return logits[:, self.target]

    def _similarity(self, inputs: Tensor, memory: Tensor) -> Tensor:
        """inputs (N, D), memory (N, n, D) of the samples moved, then still -> (N,)"""
        layer, used = self.model.layer, [*self.moved, *self.still]
        queries, keys = (layer.similarity.vectors(layer.compared(each)) for each in (inputs, memory))
        voting = self.memory.labels[used] == self.target
        weights = self.weights[used] * (voting if bool(voting.any()) else torch.ones_like(voting))
        return (layer.similarity.scores(queries, keys) * weights.to(inputs.dtype)).sum(1)

    def arguments(self) -> tuple[Tensor, ...]:
        """The point at which f is attributed: the image (1, C, H, W) and, if any move, the samples (1, k, C, H, W)."""
        # A copy, as tensors made in inference mode could not take part in a gradient.
        image = self.image.detach().clone().unsqueeze(0)
        if not self.moved:
            return (image,)
        moved = torch.tensor(self.moved, device=self.memory.labels.device)
        return image, self.memory.inputs(moved, self.model.get_transform).unsqueeze(0)


@contextmanager
def with_gradients(model: ExplainableModel) -> Iterator[None]:
    """Evaluation mode in full precision, with gradients for those who ask; afterwards all modes are as before."""
    with exact_evaluation(model), torch.enable_grad():
        yield


def predicted_logit(
    model: ExplainableModel, image: Tensor, shown: int | None, asked: Sequence[int] | None, name: str
) -> PredictedLogit:
    """The function to attribute for one image (C, H, W), in evaluation mode.

    asked: the samples that move; None for as many of the strongest as `shown` says, and for all used if that is None.
    name: of `asked`, for errors.
    """
    memory = model.remembered
    if memory is None:
        raise NoMemoryError("the model has no memory to explain; model.remember(memory_images, labels) gives it one")
    with torch.no_grad():
        reading = model.read(image.unsqueeze(0))
    used = _used(reading.weights[0])
    moved = used[:shown] if asked is None else _among(used, asked, name, len(memory))
    still = tuple(index for index in used if index not in set(moved))
    target = int(predict_classes(reading.logits))
    return PredictedLogit(model, memory, image, target, moved, still, reading.weights[0])


def _used(weights: Tensor) -> tuple[int, ...]:
    """The samples of positive weight, the strongest first, of equal ones the lower index. weights (M,)"""
    order = weights.argsort(descending=True, stable=True)
    return tuple(order[: int((weights > 0).sum())].tolist())


def _among(used: tuple[int, ...], asked: Sequence[int], name: str, samples: int) -> tuple[int, ...]:
    """The samples asked for, if the image uses all of them."""
    try:
        indices = tuple(operator.index(index) for index in asked)
    except TypeError:
        raise InputError(f"{name} is {asked!r}; expected the indices of memory samples") from None
    if unused := [index for index in indices if index not in used]:
        raise InputError(
            f"{name} asks for memory sample {unused[0]}, which has no weight for its image and so no part in the "
            f"prediction; used are {', '.join(map(str, sorted(used)))} of {samples}"
        )
    if len(set(indices)) < len(indices):
        raise InputError(f"{name} is {list(indices)}; expected each memory sample once")
    return indices
