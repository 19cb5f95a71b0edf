"""The state of a training as named tensors, so that it can be stored without pickling."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from memwrap.errors import NonFiniteError
from memwrap.nn.queue import EMPTY, Queue


def check_finite(model: nn.Module) -> None:
    """Raise a NonFiniteError if a parameter holds NaN or infinity, or a buffer NaN: it could not be resumed.

    A buffer may hold infinity on purpose, as a mask does.
    """
    state, learnt = model.state_dict().items(), dict(model.named_parameters())
    tensors = {name: tensor for name, tensor in state if isinstance(tensor, Tensor) and tensor.is_floating_point()}
    checked = [tensor.isfinite() if name in learnt else ~tensor.isnan() for name, tensor in tensors.items()]
    finite = torch.stack([each.all() for each in checked]).tolist()
    if broken := [name for name, is_finite in zip(tensors, finite, strict=True) if not is_finite]:
        raise NonFiniteError(f"{broken[0]} holds NaN or infinity")


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state, each tensor by its kind and its parameter's name: "momentum_buffer head.weight"."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{kind} {names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for kind, value in state.items()
        if isinstance(value, Tensor)
    }


def queue_tensors(queue: Queue) -> dict[str, Tensor]:
    """The queue's content."""
    return {"encodings": queue.encodings, "labels": queue.labels}


def restore_queue(empty: Queue, tensors: dict[str, Tensor], classes: int) -> Queue:
    """A queue of the size of an empty one, with the content that `queue_tensors` returned."""
    expected = queue_tensors(empty)
    if {name: (each.shape, each.dtype) for name, each in tensors.items()} != {
        name: (each.shape, each.dtype) for name, each in expected.items()
    }:
        raise ValueError("the queue is of another size than the settings say")
    encodings, labels = (tensors[name].to(each.device) for name, each in expected.items())
    if not (bool(encodings.isfinite().all()) and int(labels.min()) >= EMPTY and int(labels.max()) < classes):
        raise ValueError("the queue holds NaN, infinity or unknown labels")
    return Queue(encodings, labels)


def restore_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], steps: int) -> None:
    """Restore what `optimizer_tensors` returned after this many steps, for parameters of the same names."""
    kinds = _kinds(optimizer)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for key, value in tensors.items():
        kind, name = key.split(" ", 1)
        if kind not in kinds:
            raise ValueError(f"{kind} is not part of the state of {type(optimizer).__name__}")
        parameter = parameters[name]
        shape, dtype = ((), torch.float32) if kind == "step" else (parameter.shape, parameter.dtype)
        if value.shape != shape or value.dtype != dtype:
            raise ValueError(
                f"{key} is of {value.dtype} and shape {tuple(value.shape)}; expected {dtype} and {tuple(shape)}"
            )
        # AdamW counts its steps on the CPU.
        optimizer.state[parameter][kind] = value.clone() if kind == "step" else value.to(parameter, copy=True)
    if steps and kinds:
        _check_complete(set(parameters), set(tensors), kinds)


def _check_complete(learning: set[str], keys: set[str], kinds: set[str]) -> None:
    """A ValueError if something is missing. A part of an encoder may have no state, as no gradient reaches it."""
    layer = {name for name in learning if name.startswith("layer.")}
    restored = {key.split(" ", 1)[1] for key in keys}
    if lacking := {f"{kind} {name}" for name in layer | restored for kind in kinds} - keys:
        raise ValueError(f"the state of the optimizer lacks {min(lacking)}")
    if learning > layer and restored == layer:
        raise ValueError("the state of the optimizer lacks all of the encoder")


def _kinds(optimizer: Optimizer) -> set[str]:
    """The kinds of tensors that the optimizer keeps for a parameter."""
    if isinstance(optimizer, torch.optim.AdamW):
        return {"step", "exp_avg", "exp_avg_sq"}
    return {"momentum_buffer"} if optimizer.defaults["momentum"] else set()
