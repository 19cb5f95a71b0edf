"""A network's layers with the weights of several runs, in place: what the network does with them stays.

On a GPU, kernels do what would be slow there: normalisation with the activation after it, depthwise convolutions, and
dropout that draws from seeds on the device.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.efficientnet import MobileBlock, SqueezeExcitation
from memwrap.encoders.mobilenet import InvertedResidual
from memwrap.encoders.resnet import ResidualBlock
from memwrap.stacked import products

Layer = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}
_KNOWN = {
    nn.Sequential,
    nn.ModuleList,
    nn.Conv2d,
    nn.Linear,
    nn.BatchNorm2d,
    nn.Dropout,
    nn.Identity,
    nn.ReLU,
    nn.SiLU,
    nn.Sigmoid,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.Flatten,
}
_ACTIVATED: dict[str, Layer] = {"none": lambda maps: maps, "relu": functional.relu, "silu": functional.silu}


@dataclass
class Told:
    """What the layers are told of each pass.

    seeds (S,), int64: what dropout draws from. first: how many of a run's images belong to the first part, inputs, if
    the others are a memory with statistics of its own; None if there is one part.
    """

    seeds: Tensor
    first: int | None = None
    used: set[str] = field(default_factory=set)  # the normalisations that have been in a pass


def unstackable(network: nn.Module) -> str | None:
    """What keeps a network from being stacked, in words; None if nothing does.

    Layers are known by their exact kind: others might do something else with their weights, look across images, or
    draw at random. Blocks of our own encoders do none of this.
    """
    for name, module in network.named_modules():
        of_ours = type(module).__module__.startswith("memwrap.encoders.")
        if not (of_ours or (type(module) in _KNOWN and _is_plain(module))):
            return f"a layer of the kind {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            return f"a hook on {name or 'itself'}"
    places = [id(module) for _, module in network.named_modules(remove_duplicate=False)]
    weights = [id(weight) for _, weight in network.named_parameters(remove_duplicate=False)]
    if len(set(places)) < len(places) or len(set(weights)) < len(weights):
        return "a layer or a weight in two places"
    return None


def _is_plain(module: nn.Module) -> bool:
    """Without options that a stacked layer does not have."""
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.BatchNorm2d):
        return module.affine and module.track_running_stats and bool(module.momentum)
    return True


def stack_layers(network: nn.Module, values: Mapping[str, Tensor], told: Told, kernels: bool) -> None:
    """Let the layers of a network, which `unstackable` finds nothing in, use stacked values, by their names."""
    for number, (name, module) in enumerate(list(network.named_modules())):
        if isinstance(module, nn.Dropout):
            module.forward = _dropout(module, told, number, kernels)  # type: ignore[method-assign, assignment]
        elif isinstance(module, nn.BatchNorm2d):
            module.forward = _normalisation(name, module, values, told, "none", kernels)  # type: ignore[method-assign, assignment]
        elif isinstance(module, nn.Conv2d | nn.Linear):
            module.forward = _product(name, module, values, kernels)  # type: ignore[method-assign, assignment]
        elif isinstance(module, SqueezeExcitation | Classifier) and kernels:
            module.forward = _with_means(module)  # type: ignore[method-assign, assignment]
    for name, module in list(network.named_modules()):
        if kernels and isinstance(module, ResidualBlock | InvertedResidual | MobileBlock):
            _sum_in_last_normalisation(name, module, values, told)
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Sequential):
            layers = list(_fused(name, module, values, told, kernels))
            module.forward = _chain(layers)  # type: ignore[method-assign]


def _fused(name: str, chain: nn.Sequential, values: Mapping[str, Tensor], told: Told, kernels: bool) -> Iterator[Layer]:
    """The layers of a chain, with a normalisation and the activation after it as one."""
    layers = list(chain.named_children())
    position = 0
    while position < len(layers):
        own_name, layer = layers[position]
        after = layers[position + 1][1] if position + 1 < len(layers) else None
        activation = None if after is None else _ACTIVATIONS.get(type(after))
        if isinstance(layer, nn.BatchNorm2d) and activation is not None:
            place = f"{name}.{own_name}" if name else own_name
            yield _normalisation(place, layer, values, told, activation, kernels)
            position += 2
        else:
            yield layer
            position += 1


def _chain(layers: list[Layer]) -> Layer:
    def run(maps: Tensor) -> Tensor:
        for layer in layers:
            maps = layer(maps)
        return maps

    return run


def _product(name: str, layer: nn.Conv2d | nn.Linear, values: Mapping[str, Tensor], kernels: bool) -> Layer:
    weight, bias = values[f"{name}.weight"], values.get(f"{name}.bias")
    if isinstance(layer, nn.Linear):
        return lambda rows: products.linear(rows, weight, bias)
    if kernels and _is_plain_depthwise(layer):
        from memwrap.kernels.depthwise import depthwise  # Triton is there where there is a GPU

        return lambda maps: depthwise(maps, weight, layer.stride[0])
    if _is_pointwise(layer):
        return lambda maps: products.pointwise(maps, weight, bias)
    return lambda maps: products.convolution(maps, weight, bias, layer)


def _normalisation(
    name: str,
    layer: nn.BatchNorm2d,
    values: Mapping[str, Tensor],
    told: Told,
    activation: str,
    kernels: bool,
    added: list[Tensor] | None = None,
) -> Layer:
    """added: where a block leaves what is to be added before the activation, if it does; only with kernels."""
    own = [values[f"{name}.{each}"] for each in ("weight", "bias", "running_mean", "running_var")]
    momentum, epsilon = layer.momentum, layer.eps
    normalise: Callable[..., Tensor] = _normalised_part_by_part
    if kernels:
        from memwrap.kernels.normalisation import batch_norm

        normalise = batch_norm

    def run(maps: Tensor) -> Tensor:
        told.used.add(name)
        more = {} if added is None else {"added": added.pop()}
        return normalise(maps, *own, momentum, epsilon, activation, told.first, **more)

    return run


def _sum_in_last_normalisation(
    name: str, block: ResidualBlock | InvertedResidual | MobileBlock, values: Mapping[str, Tensor], told: Told
) -> None:
    """Let a block with a shortcut add it where its last normalisation writes its maps anyway."""
    added: list[Tensor] = []

    def prepare(place: str, activation: str) -> None:
        last_name, last = _last_layer(f"{name}.{place}" if name else place, block.get_submodule(place))
        assert isinstance(last, nn.BatchNorm2d)
        last.forward = _normalisation(  # type: ignore[method-assign, assignment]
            last_name, last, values, told, activation, True, added
        )

    def run(chain: nn.Module, maps: Tensor, shortcut: Tensor) -> Tensor:
        added.append(shortcut)
        out: Tensor = chain(maps)
        return out

    forward: Layer
    if isinstance(block, ResidualBlock):
        prepare("residual", "relu")
        forward = lambda maps: run(block.residual, maps, block.shortcut(maps))  # noqa: E731
    elif isinstance(block, InvertedResidual) and block.has_shortcut:
        prepare("bottleneck", "none")
        forward = lambda maps: run(block.bottleneck, maps, block.shortcut(maps))  # noqa: E731
    elif isinstance(block, MobileBlock) and block.has_shortcut:
        prepare("body", "none")
        forward = lambda maps: run(block.body, block.expand(maps) if block.expands else maps, maps)  # noqa: E731
    else:
        return
    block.forward = forward  # type: ignore[method-assign]


def _last_layer(name: str, module: nn.Module) -> tuple[str, nn.Module]:
    """The last layer of a chain, or of a chain that is the last of a chain; with its name."""
    while isinstance(module, nn.Sequential):
        own_name, module = list(module.named_children())[-1]
        name = f"{name}.{own_name}"
    return name, module


def _normalised_part_by_part(
    maps: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    epsilon: float,
    activation: str,
    first: int | None,
) -> Tensor:
    """What the kernel does, by torch: arguments as for `memwrap.kernels.normalisation.batch_norm`"""
    done = []
    for run, images in enumerate(maps.chunk(len(weight))):
        statistics = running_mean[run], running_var[run], weight[run], bias[run]
        for part in images.tensor_split([first] if first is not None and first < len(images) else []):
            done.append(functional.batch_norm(part, *statistics, True, momentum, epsilon))
    return _ACTIVATED[activation](torch.cat(done))


def _dropout(layer: nn.Dropout, told: Told, number: int, kernels: bool) -> Layer:
    if layer.p == 0:
        return lambda values: values
    if kernels:
        from memwrap.kernels.dropout import dropout

        return lambda values: dropout(values, layer.p, told.seeds, number)
    return lambda values: _dropped_run_by_run(values, layer.p, told.seeds, number)


def _dropped_run_by_run(values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
    """values (S * N, ...); each run draws from a seed of its own."""
    kept = [
        torch.rand(part.shape, generator=torch.Generator().manual_seed(int(seed) + number)) >= share
        for part, seed in zip(values.chunk(len(seeds)), seeds, strict=True)
    ]
    return torch.where(torch.cat(kept), values / (1 - share), 0.0)


def _with_means(module: SqueezeExcitation | Classifier) -> Layer:
    """What these do, with means over all positions whose gradients stay in the layout of the maps."""
    from memwrap.kernels.gating import gated, means

    if isinstance(module, SqueezeExcitation):
        return lambda maps: gated(maps, module.gate(means(maps)))
    return lambda images: module.head(module.dropout(means(module.features(images)).flatten(1)))


def _is_plain_depthwise(layer: nn.Conv2d) -> bool:
    kernel, stride = layer.kernel_size, layer.stride
    return (
        layer.groups == layer.in_channels == layer.out_channels > 1
        and kernel in ((3, 3), (5, 5))
        and stride in ((1, 1), (2, 2))
        and layer.padding == (kernel[0] // 2, kernel[0] // 2)
        and layer.dilation == (1, 1)
        and layer.bias is None
    )


def _is_pointwise(layer: nn.Conv2d) -> bool:
    return layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.groups == 1 and layer.padding == (0, 0)
