"""Weights from a file that somebody else made: safetensors, which run nothing, of bounded size."""

from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from memwrap.errors import InputError, brief
from memwrap.storage.files import read_file

# Twice the network's weights in float64, or its weights with averages of them.
BYTES_PER_WEIGHT = 16
SPARE_BYTES = 2**28  # for the last layer of a network of more classes

SUFFIX = ".safetensors"
CONVERT = (
    'python -c "import torch, safetensors.torch as s; '
    "s.save_file({k: v.contiguous() for k, v in torch.load('FILE', weights_only=True).items()}, 'FILE.safetensors')\""
)


def read_weights(path: Path, elements: int) -> dict[str, Tensor]:
    """The tensors by name in a file of safetensors, for a network of so many weights.

    An InputError for other files, and for NaN or infinity in them.
    """
    if path.suffix != SUFFIX:
        raise InputError(
            f"{path}: holds no safetensors; other formats may run code when they are read. Convert a file that you "
            f"trust: {CONVERT}"
        )
    limit = BYTES_PER_WEIGHT * elements + SPARE_BYTES
    try:
        content = read_file(path, limit, follow_links=True)  # the hub's cache is made of links
    except OSError as error:
        raise InputError(f"{path}: the weights cannot be read ({brief(error)})") from error
    try:
        state: dict[str, Tensor] = load(content)
    except Exception as error:  # of safetensors, or of torch for a type that it does not know
        raise InputError(f"{path}: holds no safetensors ({brief(error)})") from error
    if not state:
        raise InputError(f"{path}: holds no tensors")
    for name, tensor in state.items():
        if tensor.is_complex():
            raise InputError(f"{path}: the tensor {name[:200]!r} is {tensor.dtype}; expected floating-point numbers")
        if tensor.is_floating_point() and not tensor.to(torch.float32).isfinite().all():
            raise InputError(f"{path}: the tensor {name[:200]!r} has NaN or infinity in it; expected numbers")
    return {name.removeprefix("module.").removeprefix("_orig_mod."): tensor for name, tensor in state.items()}
