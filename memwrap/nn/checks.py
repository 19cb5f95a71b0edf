"""Checks of types, shapes and values at the entry points, behind `tracing.checks_enabled`.

A compiled, exported or captured step runs without them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.errors import InputError, NonFiniteError
from memwrap.metrics.checks import check_count


def check_sizes(**sizes: int | None) -> None:
    """Whole numbers of at least one, by name; None is left out."""
    for name, size in sizes.items():
        if size is not None:
            check_count(name, size)


def check_encodings(encodings: Tensor, in_features: int) -> None:
    """encodings (B, D), of the layer's width, at least one."""
    _check_vectors("encodings", encodings, in_features, {2: "(B, D)"})


def check_memory(memory: Tensor, in_features: int, encodings: Tensor | None = None) -> None:
    """memory (M, D), or (B, M, D) for encodings (B, D); of the layer's width, not empty, of the encodings' dtype."""
    layouts = {2: "(M, D)"} if encodings is None else {2: "(M, D)", 3: "(B, M, D)"}
    _check_vectors("memory", memory, in_features, layouts)
    if encodings is None:
        return
    if memory.ndim == 3 and len(memory) != len(encodings):
        raise InputError(
            f"memory of shape {tuple(memory.shape)} holds one memory for each of {len(memory)} inputs, but there are "
            f"{len(encodings)} encodings; give (M, D) to share one memory, or (B, M, D) with B = {len(encodings)}"
        )
    if (memory.dtype, memory.device) != (encodings.dtype, encodings.device):
        raise InputError(
            f"memory is {memory.dtype} on {memory.device}, encodings are {encodings.dtype} on {encodings.device}; "
            "give both in one dtype on one device"
        )


class AsyncScalars:
    """Numbers on their way from a device to the host, while the device computes on."""

    def __init__(self, *numbers: Tensor) -> None:
        together = torch.stack([number.detach().float() for number in numbers])
        self._numbers, self._arrival = together, None
        if together.is_cuda:
            # Into pinned memory, which a device writes to without making the host wait.
            pinned = torch.empty(len(numbers), dtype=torch.float32, device="cpu", pin_memory=True)
            self._numbers = pinned.copy_(together, non_blocking=True)
            self._arrival = torch.cuda.current_stream(together.device).record_event()

    def numbers(self) -> list[float]:
        """Their values; waits until they have arrived."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return [number.item() for number in self._numbers]


@dataclass(frozen=True)
class NormBound:
    """A bound on numbers computed from encodings: none exceeds slope * norm + offset."""

    slope: float
    offset: float

    def with_memory(self, norm: float) -> "NormBound":
        """The bound where a memory vector of up to that norm comes with each encoding."""
        return NormBound(self.slope, self.slope * norm + self.offset)

    def fits(self, norm: float, dtype: torch.dtype) -> bool:
        """Whether all numbers are finite in that type, for encodings of that norm; False if that is not certain."""
        # One more than the norm, for what does not come from encodings; twice, as sums are rounded.
        return 2 * (self.slope * (1 + norm) + self.offset) < torch.finfo(dtype).max


class ValueCheck:
    """Checks the values of one pass: started with the inverse norms (...), by name, finished with the logits."""

    def __init__(self, **inverse_norms: Tensor) -> None:
        self._inverse_norms = inverse_norms
        self._smallest = AsyncScalars(*(each.min() for each in inverse_norms.values()))

    def finish(self, logits: Tensor, bound: NormBound | None = None) -> None:
        """A NonFiniteError for vectors or logits (B, C) that hold NaN or infinity.

        bound: with it, logits that cannot have overflowed need not be waited for.
        """
        smallest = self._smallest.numbers()
        if not all(each > 0 for each in smallest):  # NaN is not larger than zero, either
            for name, each in self._inverse_norms.items():
                check_norms(name, each)
        # A norm beyond float32 comes as zero.
        if bound is None or not smallest[0] > 0 or not bound.fits(1 / smallest[0], logits.dtype):
            check_logits(logits)


def check_norms(name: str, inverse_norms: Tensor) -> None:
    """inverse_norms (...): of vectors that are all finite, and short enough to be squared."""
    if not inverse_norms.min().item() > 0:
        good = inverse_norms > 0
        first = int((~good).flatten().nonzero()[0])
        raise NonFiniteError(
            f"{name}: {int((~good).sum())} of {good.numel()} vectors hold NaN, infinity or values too large to square "
            f"(the first is number {first}); check the images, and whether training diverged"
        )


def check_logits(logits: Tensor, encodings: Tensor | None = None) -> None:
    """logits (B, C): all finite. encodings (B, D): that they were computed from, unless these were checked before."""
    # The sum is one operation; each row is tested only where it is not finite.
    if not math.isfinite(logits.detach().sum().item()) and bool((bad := ~logits.isfinite().all(-1)).any()):
        if encodings is not None:
            check_norms("encodings", encodings.norm(dim=-1).reciprocal())
        raise NonFiniteError(
            f"logits of {int(bad.sum())} of {len(bad)} inputs are not finite although their encodings are; "
            "the head's weights hold NaN or have grown too large: did training diverge?"
        )


def check_keep(keep: Tensor | None, inputs: int, samples: int) -> None:
    """keep (M,) or (B, M), bool, with at least one sample left for every input; None keeps all."""
    if keep is None:
        return
    if not isinstance(keep, Tensor):
        raise InputError(
            f"keep is a {type(keep).__name__}; expected a bool tensor ({samples},) or ({inputs}, {samples})"
        )
    if keep.dtype != torch.bool:
        raise InputError(f"keep has dtype {keep.dtype}; expected torch.bool, False where a sample is removed")
    if keep.shape not in ((samples,), (inputs, samples)):
        raise InputError(
            f"keep has shape {tuple(keep.shape)}; expected ({samples},) for all inputs, or ({inputs}, {samples})"
        )
    empty = ~keep.any(-1)
    if bool(empty.any()):
        where = "" if keep.ndim == 1 else f" for input {int(empty.nonzero()[0])}"
        raise InputError(f"keep removes all {samples} memory samples{where}; keep at least one")


def check_images(images: Tensor, channels: int) -> None:
    """images (N, channels, H, W), floating point, at least one."""
    _check_pixels("images", images, channels, {4: f"(N, {channels}, H, W)"})


def check_memory_images(memory: Tensor, images: Tensor, channels: int) -> None:
    """memory (M, channels, H, W), or (B, M, channels, H, W) for images (B, channels, H, W); as for images."""
    _check_pixels("memory", memory, channels, {4: f"(M, {channels}, H, W)", 5: f"(B, M, {channels}, H, W)"})
    if memory.ndim == 5 and len(memory) != len(images):
        raise InputError(
            f"memory of shape {tuple(memory.shape)} holds one memory for each of {len(memory)} inputs, but there are "
            f"{len(images)} images; give (M, {channels}, H, W) to share one memory, or as many memories as images"
        )


def check_labels(labels: Tensor, images: int, num_classes: int) -> None:
    """labels (M,), integers from 0 to num_classes - 1, one for each image."""
    if not isinstance(labels, Tensor):
        raise InputError(f"labels are a {type(labels).__name__}; expected a tensor of integers: torch.tensor(labels)")
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(
            f"labels have shape {tuple(labels.shape)} and dtype {labels.dtype}; expected integers of shape ({images},)"
        )
    if len(labels) != images:
        raise InputError(f"memory holds {images} images but {len(labels)} labels; each image needs one")
    labels = labels.to(torch.int64)  # a small integer type may not hold the number of classes
    if bool(((labels < 0) | (labels >= num_classes)).any()):
        raise InputError(
            f"labels go from {int(labels.min())} to {int(labels.max())}; "
            f"expected 0 to {num_classes - 1}, as the model has {num_classes} classes"
        )


def _check_pixels(name: str, images: Tensor, channels: int, layouts: dict[int, str]) -> None:
    if not isinstance(images, Tensor):
        raise InputError(
            f"{name} is a {type(images).__name__}; expected a float tensor {' or '.join(layouts.values())}: "
            "torch.stack, torch.from_numpy or torchvision's transforms make one"
        )
    shape = images.shape
    if len(shape) not in layouts or shape[-3] != channels:
        hint = "; for a single image give image.unsqueeze(0)" if len(shape) == 3 else ""
        if len(shape) == 4 and shape[-1] == channels:
            hint = "; channels come first: images.permute(0, 3, 1, 2)"
        raise InputError(f"{name} has shape {tuple(shape)}; expected {' or '.join(layouts.values())}{hint}")
    if not images.is_floating_point():
        raise InputError(
            f"{name} has dtype {images.dtype}; expected floating point, normalised as the classifier was trained: "
            "for uint8 pixels, (images / 255 - mean) / std"
        )
    if 0 in shape:
        raise InputError(f"{name} is empty: its shape is {tuple(shape)}; give at least one image")


def _check_vectors(name: str, vectors: Tensor, in_features: int, layouts: dict[int, str]) -> None:
    if isinstance(vectors, Tensor) and vectors.ndim in layouts and vectors.shape[-1] == in_features:
        if not vectors.is_floating_point():
            raise InputError(f"{name} has dtype {vectors.dtype}; expected floating point")
        if 0 in vectors.shape:
            raise InputError(f"{name} is empty: its shape is {tuple(vectors.shape)}; give at least one")
        return
    given = f"has shape {tuple(vectors.shape)}" if isinstance(vectors, Tensor) else f"is a {type(vectors).__name__}"
    expected = f"a float tensor {' or '.join(layouts.values())} with D = {in_features}"
    raise InputError(f"{name} {given}; expected {expected}")
