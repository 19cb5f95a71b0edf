"""An encoder's slow layers replaced by kernels, in place: parameters and buffers stay where they are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from memwrap.kernels.depthwise import depthwise
from memwrap.kernels.dropout import dropout
from memwrap.kernels.normalisation import batch_norm

Layer = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}


@dataclass
class Swapped:
    """What the kernels of one encoder are told in each pass.

    first: how many images belong to the first part, inputs, if the others are a memory with statistics of its own.
    seed (1,), int64: what dropout draws from. in_parts: whether a pass may hold both parts, as every layer that looks
    at more than one image knows of them. used: the normalisations that have been in a pass.
    """

    seed: Tensor
    first: int | None = None
    in_parts: bool = True
    used: set[nn.BatchNorm2d] = field(default_factory=set)

    def count(self, batches: int) -> None:
        """Note how many batches the normalisations have seen, which the kernels do not."""
        for layer in self.used:
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.add_(batches)


def swap(encoder: nn.Module, device: torch.device) -> Swapped:
    """Replace what there are kernels for, in training mode only."""
    swapped = Swapped(torch.zeros(1, dtype=torch.int64, device=device))
    known: set[nn.Module] = set()
    for module in encoder.modules():
        if isinstance(module, nn.Sequential):
            layers = list(module)
            module.forward = _chain(list(_replaced(layers, swapped, known)))  # type: ignore[method-assign]
    for number, module in enumerate(each for each in encoder.modules() if isinstance(each, nn.Dropout)):
        if module.p > 0:
            module.forward = _dropout(module.p, swapped, number)  # type: ignore[method-assign, assignment]
    swapped.in_parts = {each for each in encoder.modules() if isinstance(each, _BatchNorm)} <= known
    return swapped


def _replaced(layers: list[nn.Module], swapped: Swapped, known: set[nn.Module]) -> Iterator[Layer]:
    """The layers of a chain, with a normalisation and the activation after it as one."""
    position = 0
    while position < len(layers):
        layer, after = layers[position], layers[position + 1 : position + 2]
        position += 1
        if _is_plain_normalisation(layer):
            activation = _ACTIVATIONS.get(type(after[0]), "none") if after else "none"
            position += activation != "none"
            known.add(layer)
            yield _normalisation(layer, activation, swapped)
        elif isinstance(layer, nn.Conv2d) and _is_plain_depthwise(layer):
            yield _depthwise(layer)
        elif isinstance(layer, nn.Conv2d) and _is_pointwise(layer):
            yield _pointwise(layer)
        else:
            yield layer


def _chain(layers: list[Layer]) -> Layer:
    def run(maps: Tensor) -> Tensor:
        for layer in layers:
            maps = layer(maps)
        return maps

    return run


def _normalisation(layer: nn.Module, activation: str, swapped: Swapped) -> Layer:
    assert isinstance(layer, nn.BatchNorm2d)

    def run(maps: Tensor) -> Tensor:
        swapped.used.add(layer)
        return batch_norm(
            maps,
            layer.weight,
            layer.bias,
            layer.running_mean,  # type: ignore[arg-type]
            layer.running_var,  # type: ignore[arg-type]
            layer.momentum or 0.0,
            layer.eps,
            activation,
            swapped.first,
        )

    return run


def _depthwise(layer: nn.Conv2d) -> Layer:
    return lambda maps: depthwise(maps, layer.weight, layer.stride[0])


def _pointwise(layer: nn.Conv2d) -> Layer:
    """As the matrix product that it is."""
    return lambda maps: functional.linear(maps.permute(0, 2, 3, 1), layer.weight.flatten(1), layer.bias).permute(
        0, 3, 1, 2
    )


def _dropout(share: float, swapped: Swapped, number: int) -> Layer:
    return lambda values: dropout(values, share, swapped.seed, number)


def _is_plain_normalisation(layer: nn.Module) -> bool:
    return isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.track_running_stats and bool(layer.momentum)


def _is_plain_depthwise(layer: nn.Conv2d) -> bool:
    kernel, stride = layer.kernel_size, layer.stride
    return (
        layer.groups == layer.in_channels == layer.out_channels > 1
        and kernel in ((3, 3), (5, 5))
        and stride in ((1, 1), (2, 2))
        and layer.padding == (kernel[0] // 2, kernel[0] // 2)
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and layer.bias is None
    )


def _is_pointwise(layer: nn.Conv2d) -> bool:
    return layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.groups == 1 and layer.padding == (0, 0)
