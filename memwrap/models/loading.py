"""Load a model: rebuild the classifier, put weights and memory in, and verify the result on a stored probe."""

import math
import os
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from memwrap.errors import LoadError, MemwrapError, brief
from memwrap.models.architectures import build
from memwrap.models.base import Origin
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.confinement import limit_size
from memwrap.models.memory_check import TOLERANCES, check_memory, draw_rows
from memwrap.models.pass_limit import PassLimit
from memwrap.models.record import ModelRecord
from memwrap.models.standard import StandardClassifier
from memwrap.models.surgery.modules import drop_auxiliary_heads, remove_layer
from memwrap.models.wrapping import assemble, copy_of
from memwrap.nn.calibration import VoteCalibration
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.modes import evaluation_mode
from memwrap.nn.probabilities import Calibration
from memwrap.storage import checkpoint
from memwrap.storage.validation import parse

Model = MemoryClassifier | StandardClassifier

# Bounds on the tensors of a model's files: two of AdamW for each weight, and five images of a probe.
OPTIMIZER_TENSORS, PROBE_IMAGES, SLACK = 2, 8, 1 << 20

_GIVE = "give the classifier as it was when it was saved: memwrap.load(..., classifier=...)"


@overload
def load(
    folder: str | os.PathLike[str], classifier: nn.Module | None = None, *, device: str | torch.device = "cpu"
) -> MemoryClassifier: ...


@overload
def load(
    folder: str | os.PathLike[str],
    classifier: nn.Module | None = None,
    *,
    device: str | torch.device = "cpu",
    variant: Literal["standard"],
) -> StandardClassifier: ...


def load(
    folder: str | os.PathLike[str],
    classifier: nn.Module | None = None,
    *,
    device: str | torch.device = "cpu",
    variant: str | None = None,
) -> Model:
    """The model that `save` stored, in evaluation mode, with its memory.

    classifier: one of the same architecture, needed for hand-written ones; its weights do not matter, nor its number of
    classes unless the model was attached, and it is not changed. None rebuilds it by name. Either way the model must
    compute the stored logits of a stored probe. variant: a LoadError if the model is of another variant; None takes
    any. Type checkers take the result for a MemoryClassifier unless variant is "standard".

    >>> from tempfile import TemporaryDirectory
    >>> from memwrap import encoders, wrap
    >>> with TemporaryDirectory() as folder:
    ...     wrap(encoders.create("tiny", num_classes=4)).save(folder)
    ...     load(folder).layer.num_classes
    4
    """
    path = Path(folder)
    manifest, parts = checkpoint.open_parts(path)
    checkpoint.warn_without_root(path, manifest)
    with parts:
        model = unpack(path, manifest.settings, parts, classifier).to(device).eval()
    if variant not in (None, found := model.layer_settings()["variant"]):
        raise LoadError(f"{path}: the model is of variant {found!r}; expected {variant!r}")
    return model


def unpack(
    path: Path, settings: dict[str, Any], parts: checkpoint.StoredParts, classifier: nn.Module | None = None
) -> Model:
    """The model that `pack` gave these settings and tensors for, read from `path`; in training mode."""
    given = None if classifier is None else copy_of(classifier)
    record = parse(ModelRecord, settings, LoadError, path / checkpoint.MANIFEST)
    try:
        with limit_size(parts.elements("weights")):
            model = _assemble(path, record, given)
        _check_sizes(model, parts)
        _load_weights(model, parts["weights"], record.state_versions)
        for name in record.frozen:
            model.get_parameter(name).requires_grad_(False)
        # A network that a file describes is run within bounds. One that was given is trusted.
        limited = PassLimit(parts.elements("weights")) if given is None else nullcontext()
        # Checkpoints within a training have none: there, hashes and shapes have to do.
        if "probe" in parts or "optimizer" not in parts:
            _verify(model, parts["probe"], limited)
        if record.classes and len(record.classes) != (outputs := model.layer_settings()["num_classes"]):
            raise LoadError(f"there are {len(record.classes)} class names for {outputs} classes")
        model.classes, model.transform = record.classes, record.transform
        model.calibration = _checked_calibration(model, record.calibration)
        if isinstance(model, MemoryClassifier) and "memory" in parts:
            # Predictions of the memory, which memwrap 0.1 stored, are computed when they are needed.
            tensors = {name: tensor for name, tensor in parts["memory"].items() if name != "predictions"}
            memory = RememberedMemory(**tensors, names=record.memory_names)
            model.restore(memory)
            with limited:
                check_memory(model, draw_rows(memory))
        _check_transform(model, limited)
    except LoadError as error:
        raise LoadError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, RuntimeError, MemwrapError) as error:
        raise LoadError(f"{path}: the saved model is incomplete or contradicts itself ({brief(error)})") from error
    return model


def _assemble(path: Path, record: ModelRecord, given: nn.Module | None) -> Model:
    saved = record.classifier
    if given is not None:
        encoder = given
    elif saved.architecture is not None:
        encoder = build(saved.architecture)
    else:
        raise LoadError(
            f"its classifier, {saved.class_name}, cannot be rebuilt from a name and arguments; "
            f'give one that is built as it was: memwrap.load("{path}", classifier=...)'
        )
    head = dict(encoder.named_modules()).get(saved.layer) if saved.layer else None
    try:
        remove_layer(encoder, saved.layer)
    except AttributeError as error:
        raise LoadError(f"the classifier has no layer {saved.layer!r}, which the saved one had; {_GIVE}") from error
    if not any(name.lower().startswith("encoder.aux") for name in record.state_versions):  # memwrap 0.1 saved them
        drop_auxiliary_heads(encoder)
    return assemble(encoder, record.layer, Origin(saved.layer, saved.num_classes, saved.image_shape), head)


def _checked_calibration(model: Model, calibration: Calibration | None) -> Calibration | None:
    """A LoadError if what decides cannot be calibrated like this."""
    is_vote = isinstance(model, MemoryClassifier) and model.decided_by == "vote"
    if isinstance(calibration, VoteCalibration) != is_vote and calibration is not None:
        raise LoadError(f"the calibration is a {type(calibration).__name__}, which does not fit what decides")
    return calibration


def _check_sizes(model: Model, parts: checkpoint.StoredParts) -> None:
    """Refuse files with far more tensors than the model has use for, before they are read."""
    weights = sum(tensor.numel() for tensor in model.state_dict().values())
    images = math.prod(model.origin.image_shape) + model.layer_settings()["num_classes"]
    most = {"weights": weights, "optimizer": OPTIMIZER_TENSORS * weights, "probe": PROBE_IMAGES * images}
    for part, expected in most.items():
        if part in parts and (found := parts.elements(part)) > expected + SLACK:
            raise LoadError(f"the {part} hold {found} numbers; expected {expected} at most, by the classifier; {_GIVE}")


def _check_transform(model: Model, limited: AbstractContextManager[object]) -> None:
    """Refuse images of a size that the model cannot take, or takes gigabytes for."""
    if model.transform is None or model.transform.shape == model.origin.image_shape:
        return
    memory = model.remembered if isinstance(model, MemoryClassifier) else None
    if memory is not None and tuple(memory.images.shape[1:]) == model.transform.shape:
        return  # encoded before
    with limited, evaluation_mode(model):
        model.encode(model.reference.new_zeros(1, *model.transform.shape))


def _load_weights(model: Model, weights: dict[str, Tensor], versions: dict[str, int]) -> None:
    _match_dtypes(model, weights)
    state: Any = OrderedDict(weights)
    state._metadata = {name: {"version": version} for name, version in versions.items()}
    try:
        model.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        lines = " ".join(line.strip() for line in str(error).splitlines()[:4])
        raise LoadError(f"the saved weights do not fit the classifier ({lines}); {_GIVE}") from error


def _match_dtypes(model: Model, weights: dict[str, Tensor]) -> None:
    """Cast the model to the precision that was saved, tensor by tensor where it is mixed."""
    dtypes = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())  # with buffers that are not saved
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in weights:
            if tensor.is_floating_point() and weights[name].dtype not in TOLERANCES:
                raise LoadError(f"the saved weights {name} are {weights[name].dtype}; expected {tensor.dtype}")
            tensor.data = tensor.data.to(weights[name].dtype)


def _verify(model: Model, probe: dict[str, Tensor], limited: AbstractContextManager[object]) -> None:
    """Check that the model computes the stored logits of the stored images."""
    expected = probe["logits"]
    if expected.numel() == 0 or not expected.is_floating_point() or not expected.isfinite().all():
        raise LoadError("the stored logits of the probe are empty or not finite: the saved model is damaged")
    try:
        with limited:
            logits = model.probe_logits(probe)
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(f"the classifier takes the saved weights but fails ({brief(error)}); {_GIVE}") from error
    alike = (logits.shape, logits.dtype) == (expected.shape, expected.dtype)
    allowed = TOLERANCES[logits.dtype] * float(expected.abs().max())
    difference = float((logits - expected).abs().max()) if alike else float("inf")
    if not difference <= allowed:
        raise LoadError(
            "the classifier takes the saved weights but computes something else: the logits of the stored probe differ "
            f"by {difference:.2g}, allowed is {allowed:.2g}; {_GIVE}"
        )
