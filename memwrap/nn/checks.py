"""What is refused at the door: wrong types, shapes and values, before they become a wrong prediction.

The checks read values, so the eager entry points alone call them, behind `tracing.eager`: a compiled, exported or
captured step runs without them.
"""

import math
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.errors import InputError, NonFiniteError


def check_sizes(**sizes: int | None) -> None:
    """Whole numbers of at least one, by name; None is left out."""
    for name, size in sizes.items():
        if size is None:
            continue
        try:
            whole = operator.index(size)
        except TypeError:
            raise InputError(f"{name} is a {type(size).__name__}; expected a whole number") from None
        if whole < 1:
            raise InputError(f"{name} is {whole}; expected at least 1")


def check_encodings(encodings: Tensor, in_features: int) -> None:
    """encodings (B, D), of the layer's width, at least one."""
    _check_vectors("encodings", encodings, in_features, {2: "(B, D)"})


def check_memory(memory: Tensor, in_features: int, encodings: Tensor | None = None) -> None:
    """memory (M, D), or (B, M, D) beside encodings (B, D); of the layer's width, not empty, of the encodings' dtype."""
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
    """Numbers of a device, on their way to the host while the device goes on with what it is given next."""

    def __init__(self, *numbers: Tensor) -> None:
        together = torch.stack([number.detach().float() for number in numbers])
        self._numbers, self._arrival = together, None
        if together.is_cuda:
            # Into memory that a device can write to by itself: any other would make the host wait.
            there = torch.empty(len(numbers), dtype=torch.float32, device="cpu", pin_memory=True)
            self._numbers = there.copy_(together, non_blocking=True)
            self._arrival = torch.cuda.current_stream(together.device).record_event()

    def numbers(self) -> list[float]:
        """What they are; waits until they have come."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return [number.item() for number in self._numbers]


@dataclass(frozen=True)
class NormBound:
    """How large numbers may become that are made of encodings: none is larger than by_length * length + rest."""

    by_length: float
    rest: float

    def beside(self, length: float) -> "NormBound":
        """Where each encoding comes with something of that length."""
        return NormBound(self.by_length, self.by_length * length + self.rest)

    def fits(self, length: float, dtype: torch.dtype) -> bool:
        """Whether all are finite in that type, for encodings of that length; False if that is not sure."""
        # One more than the length, for what comes into being without encodings; twice, as sums are rounded.
        return 2 * (self.by_length * (1 + length) + self.rest) < torch.finfo(dtype).max


def check_glanced(least: float, growth: NormBound | None, logits: Tensor, scales: Tensor) -> None:
    """As `check_judgement` of encodings, by the least of their scales, which somebody has glanced at.

    Logits that cannot have grown too large need not be waited for.
    """
    if least > 0 and growth is not None and growth.fits(1 / least, logits.dtype):
        return
    check_scales("encodings", scales)
    check_logits(logits)


def check_judgement(logits: Tensor, **scales: Tensor) -> None:
    """logits (B, C), and by name the inverse norms of what they were made from: as `check_scales` and `check_logits`.

    Once, when all is done: this runs with every prediction, and a GPU has nothing to do while somebody looks.
    """
    looks = [logits.detach().sum(), *(each.detach().min() for each in scales.values())]
    total, *least = (each.item() for each in torch.stack([each.float() for each in looks]).cpu())
    if math.isfinite(total) and all(scale > 0 for scale in least):
        return
    for name, each in scales.items():
        check_scales(name, each)
    check_logits(logits)


def check_scales(name: str, scales: Tensor) -> None:
    """scales (...): inverse norms of vectors that are all finite, and short enough to be squared."""
    if not scales.min().item() > 0:  # NaN is not larger than zero, either
        good = scales > 0
        first = int((~good).flatten().nonzero()[0])
        raise NonFiniteError(
            f"{name}: {int((~good).sum())} of {good.numel()} vectors hold NaN, infinity or values too large to square "
            f"(the first is number {first}); check the images, and whether training diverged"
        )


def check_logits(logits: Tensor) -> None:
    """logits (B, C): all finite."""
    # One operation; only a sum that is not finite makes the closer look worth its time.
    if not math.isfinite(logits.sum().item()) and bool((bad := ~logits.isfinite().all(-1)).any()):
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
        raise InputError(f"keep has dtype {keep.dtype}; expected torch.bool, False where a sample is taken out")
    if keep.shape not in ((samples,), (inputs, samples)):
        raise InputError(
            f"keep has shape {tuple(keep.shape)}; expected ({samples},) for all inputs, or ({inputs}, {samples})"
        )
    empty = ~keep.any(-1)
    if bool(empty.any()):
        where = "" if keep.ndim == 1 else f" for input {int(empty.nonzero()[0])}"
        raise InputError(f"keep takes all {samples} memory samples out{where}; leave at least one")


def check_images(images: Tensor, channels: int) -> None:
    """images (N, channels, H, W), floating point, at least one."""
    _check_pixels("images", images, channels, {4: f"(N, {channels}, H, W)"})


def check_memory_images(memory: Tensor, images: Tensor, channels: int) -> None:
    """memory (M, channels, H, W), or (B, M, channels, H, W) beside images (B, channels, H, W); as for images."""
    _check_pixels("memory", memory, channels, {4: f"(M, {channels}, H, W)", 5: f"(B, M, {channels}, H, W)"})
    if memory.ndim == 5 and len(memory) != len(images):
        raise InputError(
            f"memory of shape {tuple(memory.shape)} holds one memory for each of {len(memory)} inputs, but there are "
            f"{len(images)} images; give (M, {channels}, H, W) to share one memory, or as many memories as images"
        )


def check_labels(labels: Tensor, images: int, num_classes: int) -> None:
    """labels (M,), integers from 0 to num_classes - 1, one for each image."""
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
