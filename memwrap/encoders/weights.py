"""Weights from a file that somebody else made: tensors alone, of bounded size, and nothing in them runs."""

import argparse
import io
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from memwrap.errors import InputError, brief
from memwrap.storage.files import read_file

# A training's checkpoint has the weights up to four times, with averages and an optimizer's state.
BYTES_PER_WEIGHT = 16
SPARE_BYTES = 2**28  # for the last layer of a network of more classes

# The entry of a checkpoint that holds the weights, the first that is there; as timm looks for them.
_ENTRIES = ("state_dict_ema", "model_ema", "state_dict", "model")


def read_weights(path: Path, elements: int) -> dict[str, Tensor]:
    """The tensors by name in a file of safetensors, or in one that `torch.save` wrote, for a network of that size.

    An InputError for other files, and for NaN or infinity in them.
    """
    limit = BYTES_PER_WEIGHT * elements + SPARE_BYTES
    try:
        content = read_file(path, limit, follow_links=True)  # the hub's cache is made of links
    except OSError as error:
        raise InputError(f"{path}: the weights cannot be read ({brief(error)})") from error
    try:
        stored = load(content) if path.suffix == ".safetensors" else unpickle_tensors(content)
    except Exception as error:  # torch.load raises whatever a damaged file leads to
        raise InputError(
            f"{path}: holds no weights ({brief(error)}); expected a .safetensors file, or tensors alone, by torch.save"
        ) from error
    state = _weights_in(stored)
    if not state:
        raise InputError(f"{path}: holds a {type(stored).__name__}; expected tensors by name")
    for name, tensor in state.items():
        _check_tensor(f"{path}: the tensor {name[:200]!r}", tensor, len(content))
    return {name.removeprefix("module.").removeprefix("_orig_mod."): tensor for name, tensor in state.items()}


def unpickle_tensors(content: bytes) -> Any:
    """What `torch.save` wrote, of tensors and plain values alone; any error for anything else. Nothing in it runs."""
    file = io.BytesIO(content)
    if zipfile.is_zipfile(file):
        # torch writes entries as they are, but would read compressed ones, which may become of any size.
        for entry in zipfile.ZipFile(file).infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(content):
                raise ValueError(f"its entry {entry.filename[:200]!r} is compressed")
    file.seek(0)
    # Trainings by timm store their arguments with the weights.
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(file, map_location="cpu", weights_only=True)


def _weights_in(stored: Any) -> dict[str, Tensor] | None:
    """The tensors by name in what was stored; None if it is something else."""
    if isinstance(stored, dict):
        for entry in _ENTRIES:
            if isinstance(stored.get(entry), dict):
                stored = stored[entry]
                break
    alike = isinstance(stored, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in stored.items()
    )
    return stored if alike else None


def _check_tensor(name: str, tensor: Tensor, content: int) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise InputError(f"{name} is not a plain one ({tensor.layout}, on {tensor.device})")
    # A view can repeat a few numbers as often as it likes.
    if tensor.numel() * tensor.element_size() > content:
        raise InputError(f"{name} has the shape {tuple(tensor.shape)}, more than a file of {content} bytes holds")
    if tensor.is_complex():
        raise InputError(f"{name} is {tensor.dtype}; expected floating-point numbers")
    if tensor.is_floating_point() and not tensor.to(torch.float32).isfinite().all():
        raise InputError(f"{name} has NaN or infinity in it; expected numbers")
