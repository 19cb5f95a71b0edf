"""Hashes by which tensors are compared."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def fingerprint(tensors: Mapping[str, Tensor], settings: Any = None) -> str:
    """SHA-256 of tensors with their names, shapes and dtypes, and of settings (JSON values)."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
