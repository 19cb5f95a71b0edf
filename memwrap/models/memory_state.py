"""The remembered memory as a part of a model's state_dict, for those who ask for it.

Torch's own way, buffers, would need a memory of the same length before it can be loaded.
"""

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from memwrap.errors import InputError
from memwrap.models.record import MemoryRecord
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.similarity import CosineSimilarity
from memwrap.nn.vote_layer import VoteLayer
from memwrap.storage.validation import parse

if TYPE_CHECKING:
    from memwrap.models.classifier import MemoryClassifier

PREFIX = "remembered."
PARTS = ("images", "labels", "encodings")
RECORD = "record"  # as JSON in bytes: a state_dict is made of tensors


def memory_tensors(model: "MemoryClassifier") -> dict[str, Tensor]:
    """The entries of a state_dict that hold the model's memory; none if it has no memory."""
    memory = model.remembered
    if memory is None:
        return {}
    record = MemoryRecord(
        names=memory.names,
        classes=None if model.classes is None else tuple(map(str, model.classes)),
        num_classes=model.layer.num_classes,
        decided_by=model.decided_by,
        scale=model.layer.similarity.scale,
        calibration=model.calibration,
    )
    content = bytearray(json.dumps(record.model_dump()).encode())
    tensors = {**memory.tensors(), RECORD: torch.frombuffer(content, dtype=torch.uint8)}
    return {PREFIX + name: tensor for name, tensor in tensors.items()}


def take_tensors(state: dict[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Remove the entries of a memory from a state_dict, before torch looks for them among a model's tensors."""
    start = prefix + PREFIX
    return {key.removeprefix(start): state.pop(key) for key in list(state) if key.startswith(start)}


def restore_tensors(model: "MemoryClassifier", tensors: dict[str, Tensor]) -> None:
    """Give the model, whose weights are loaded, the memory that was stored as these tensors, by name."""
    if set(tensors) != {*PARTS, RECORD}:
        raise InputError(f"the memory in the state_dict has {sorted(tensors)}; expected {sorted([*PARTS, RECORD])}")
    record = parse(MemoryRecord, _read_json(tensors[RECORD]), InputError, "the memory in the state_dict")
    added = record.num_classes - model.layer.num_classes
    if record.decided_by != model.decided_by or (added and not (added > 0 and isinstance(model.layer, VoteLayer))):
        raise InputError(
            f"the memory in the state_dict is of a model of {record.num_classes} classes that is decided by the "
            f"{record.decided_by}; this one has {model.layer.num_classes} classes, and the {model.decided_by} decides"
        )
    if isinstance(model.layer, VoteLayer):
        model.layer.add_classes(added)
    model.layer.similarity = CosineSimilarity(record.scale)
    model.classes, model.calibration = record.classes, record.calibration
    copies = {name: tensors[name].to(model.reference.device, copy=True) for name in PARTS}
    model.restore(RememberedMemory(**copies, names=record.names))


def _read_json(content: Tensor) -> Any:
    """None, which is no record, for what is not JSON."""
    try:
        return json.loads(bytes(content.cpu().tolist()))
    except (ValueError, TypeError):
        return None
