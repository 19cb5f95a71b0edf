"""An optimiser's state as named tensors, so that it can be stored without pickling anything."""

from torch import Tensor, nn
from torch.optim import Optimizer


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimiser's state, each tensor by its kind and its parameter's name: "momentum_buffer head.weight"."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{kind} {names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for kind, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put the state back that `optimizer_tensors` gave, for parameters of the same names."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        kind, name = key.split(" ", 1)
        parameter = parameters[name]
        # AdamW counts its steps on the CPU.
        optimizer.state[parameter][kind] = value.clone() if kind == "step" else value.to(parameter, copy=True)
