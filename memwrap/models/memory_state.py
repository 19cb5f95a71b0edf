"""The remembered memory as a part of a model's state_dict, for those who ask for it.

Torch's own way, buffers, would need a memory of the same length before it can be loaded.
"""

import json
from typing import Any

import torch
from torch import Tensor

from memwrap.nn.memory import RememberedMemory

PREFIX = "remembered."
NAMES = "names"  # as JSON in bytes: a state_dict is made of tensors


def memory_tensors(memory: RememberedMemory) -> dict[str, Tensor]:
    """The entries of a state_dict that hold this memory."""
    tensors = memory.tensors()
    if memory.names is not None:
        tensors[NAMES] = torch.frombuffer(bytearray(json.dumps(memory.names).encode()), dtype=torch.uint8)
    return {PREFIX + name: tensor for name, tensor in tensors.items()}


def take_tensors(state: dict[str, Any], prefix: str) -> dict[str, Tensor]:
    """Remove the entries of a memory from a state_dict, before torch looks for them among a model's tensors."""
    start = prefix + PREFIX
    return {key.removeprefix(start): state.pop(key) for key in list(state) if key.startswith(start)}


def memory_from(tensors: dict[str, Tensor], device: torch.device) -> RememberedMemory:
    """The memory that was stored as these tensors, by name."""
    names = tensors.pop(NAMES, None)
    listed = None if names is None else json.loads(bytes(names.cpu().tolist()))
    copies = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
    return RememberedMemory(**copies, names=listed)
