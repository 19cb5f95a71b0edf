"""A model back from its folder: the classifier rebuilt, its weights and memory put in, and the result proved."""

import copy
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memwrap import store
from memwrap.architectures import Architecture, build
from memwrap.errors import LoadError, MemwrapError
from memwrap.layer import MemoryWrap
from memwrap.memory import RememberedMemory
from memwrap.model import MemoryClassifier, Origin
from memwrap.surgery import take_out

# How far logits may lie from the stored ones, relative to the largest: other machines round differently, other
# architectures differ by far more.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 5e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def load(
    folder: str | os.PathLike[str], classifier: nn.Module | None = None, device: str | torch.device = "cpu"
) -> MemoryClassifier:
    """The model that `save` stored, in evaluation mode, with its memory.

    classifier: one of the same architecture, needed for hand-written ones; its weights do not matter, and it is not
    changed. None rebuilds it by name. Either way the stored logits of a stored probe must come out.
    """
    path = Path(folder)
    settings, parts = store.read(path)
    try:
        model = _assemble(path, settings, classifier)
        _put_in(model, parts["weights"], settings["state_versions"])
        _prove(model, parts["probe"], given=classifier is not None)
        if "memory" in parts:
            model.restore(RememberedMemory(**parts["memory"]))
    except LoadError as error:
        raise LoadError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, MemwrapError) as error:
        raise LoadError(
            f"{path}: the saved model is incomplete or contradicts itself ({type(error).__name__}: {error})"
        ) from error
    return model.to(device).eval()


def _assemble(path: Path, settings: dict[str, Any], given: nn.Module | None) -> MemoryClassifier:
    saved = settings["classifier"]
    if given is not None:
        encoder = copy.deepcopy(given)
    elif saved["architecture"] is not None:
        encoder = build(Architecture(**saved["architecture"]))
    else:
        raise LoadError(
            f"its classifier, {saved['class']}, has no name that it could be rebuilt by; "
            f'give one: memwrap.load("{path}", classifier={saved["class"].split(".")[-1]}(...))'
        )
    try:
        take_out(encoder, saved["layer"])
    except AttributeError as error:
        raise LoadError(f"the classifier given has no layer {saved['layer']!r}, which the saved one had") from error
    origin = Origin(saved["layer"], saved["num_classes"], tuple(saved["image_shape"]))
    return MemoryClassifier(encoder, MemoryWrap(**settings["layer"]), origin)


def _put_in(model: MemoryClassifier, weights: dict[str, Tensor], versions: dict[str, int]) -> None:
    dtypes = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    state: Any = OrderedDict(weights)
    state._metadata = {name: {"version": version} for name, version in versions.items()}
    try:
        model.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines()[:4]]
        raise LoadError(
            f"the saved weights do not fit the classifier ({' '.join(lines)}); "
            "give one of the architecture that was saved: memwrap.load(..., classifier=...)"
        ) from error


def _prove(model: MemoryClassifier, probe: dict[str, Tensor], given: bool) -> None:
    """The stored logits must come out for the stored images."""
    expected = probe["logits"]
    logits = model.probe_logits(probe["images"], probe["memory"])
    allowed = TOLERANCES[expected.dtype] * float(expected.abs().max())
    difference = float((logits - expected).abs().max()) if logits.shape == expected.shape else float("inf")
    if not difference <= allowed:
        which = "given" if given else "rebuilt by its name"
        raise LoadError(
            f"the classifier {which} takes the saved weights but computes something else: the logits of the stored "
            f"probe differ by {difference:.2g}, allowed is {allowed:.2g}; give the classifier as it was when it was "
            "saved: memwrap.load(..., classifier=...)"
        )
