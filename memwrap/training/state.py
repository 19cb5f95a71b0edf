"""The state of a training as named tensors, so that it can be stored without pickling."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from memwrap.errors import NonFiniteError


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


def restore_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore what `optimizer_tensors` returned, for parameters of the same names."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        kind, name = key.split(" ", 1)
        parameter = parameters[name]
        if value.shape != (() if kind == "step" else parameter.shape):
            raise ValueError(f"{key} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}")
        # AdamW counts its steps on the CPU.
        optimizer.state[parameter][kind] = value.clone() if kind == "step" else value.to(parameter, copy=True)
