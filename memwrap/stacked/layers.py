"""A network's layers with the weights of several runs, in place: what the network does with them stays.

On a GPU, kernels do what would be slow there: normalisation with the activation after it, depthwise convolutions, the
gathering of what the first convolution sees, means, gates, and dropout that draws from seeds on the device.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.efficientnet import MobileBlock, SqueezeExcitation
from memwrap.encoders.mobilenet import InvertedResidual
from memwrap.encoders.resnet import ResidualBlock
from memwrap.stacked import run_by_run
from memwrap.stacked.convolutions import convolution, pointwise
from memwrap.stacked.products import linear

Layer = Callable[[Tensor], Tensor]
Block = ResidualBlock | InvertedResidual | MobileBlock

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}


@dataclass
class Told:
    """What the layers are told of each pass.

    seeds (S,), int64: what dropout draws from. first: how many of a run's images belong to the first part, if
    the others have statistics of their own; None if there is one part.
    """

    seeds: Tensor
    first: int | None = None
    used: set[str] = field(default_factory=set)  # the normalisations that have been in a pass


def stack_layers(network: nn.Module, values: Mapping[str, Tensor], told: Told, kernels: bool) -> None:
    """Let the layers of a network, which `unstackable` finds nothing in, use stacked values, by their names."""
    _Stacking(values, told, kernels).stack(network)


@dataclass(frozen=True)
class _Stacking:
    values: Mapping[str, Tensor]
    told: Told
    kernels: bool

    def stack(self, network: nn.Module) -> None:
        """Layers first, then what brings several of them together."""
        modules = list(network.named_modules())
        for number, (name, module) in enumerate(modules):
            if (forward := self._stacked(number, name, module)) is not None:
                module.forward = forward
        for name, module in modules:
            if self.kernels and isinstance(module, Block):
                self._sum_in_last_normalisation(name, module)
        for name, module in modules:
            if isinstance(module, nn.Sequential):
                module.forward = _chain(list(self._fused(name, module)))  # type: ignore[method-assign]

    def _stacked(self, number: int, name: str, module: nn.Module) -> Layer | None:
        """What a layer does with stacked values; None if it has none, and goes on as it is."""
        if isinstance(module, nn.Dropout):
            return self._dropout(module, number)
        if isinstance(module, nn.BatchNorm2d):
            return self._normalisation(name, module)
        if isinstance(module, nn.Conv2d | nn.Linear):
            return self._product(name, module)
        if isinstance(module, SqueezeExcitation | Classifier) and self.kernels:
            return _with_means(module)
        return None

    def _product(self, name: str, layer: nn.Conv2d | nn.Linear) -> Layer:
        weight, bias = self.values[f"{name}.weight"], self.values.get(f"{name}.bias")
        if isinstance(layer, nn.Linear):
            return lambda rows: linear(rows, weight, bias)
        if self.kernels and _is_plain_depthwise(layer):
            from memwrap.kernels.depthwise import depthwise  # Triton is there where there is a GPU

            return lambda maps: depthwise(maps, weight, layer.stride[0])
        if _is_pointwise(layer):
            return lambda maps: pointwise(maps, weight, bias)
        return lambda maps: convolution(maps, weight, bias, layer, self.kernels)

    def _normalisation(
        self, name: str, layer: nn.BatchNorm2d, activation: str = "none", added: list[Tensor] | None = None
    ) -> Layer:
        """added: where a block leaves what is to be added before the activation, if it does; only with kernels."""
        own = [self.values[f"{name}.{each}"] for each in ("weight", "bias", "running_mean", "running_var")]
        normalise: Callable[..., Tensor] = run_by_run.batch_norm
        if self.kernels:
            from memwrap.kernels.normalisation import batch_norm

            normalise = batch_norm

        def run(maps: Tensor) -> Tensor:
            self.told.used.add(name)
            more = {} if added is None else {"added": added.pop()}
            return normalise(maps, *own, layer.momentum, layer.eps, activation, self.told.first, **more)

        return run

    def _dropout(self, layer: nn.Dropout, number: int) -> Layer:
        if layer.p == 0:
            return lambda values: values
        drop: Callable[..., Tensor] = run_by_run.dropout
        if self.kernels:
            from memwrap.kernels.dropout import dropout

            drop = dropout
        return lambda values: drop(values, layer.p, self.told.seeds, number)

    def _fused(self, name: str, chain: nn.Sequential) -> Iterator[Layer]:
        """The layers of a chain, with a normalisation and the activation after it as one."""
        layers = list(chain.named_children())
        position = 0
        while position < len(layers):
            own_name, layer = layers[position]
            after = layers[position + 1][1] if position + 1 < len(layers) else None
            activation = None if after is None else _ACTIVATIONS.get(type(after))
            if isinstance(layer, nn.BatchNorm2d) and activation is not None:
                yield self._normalisation(_within(name, own_name), layer, activation)
                position += 2
            else:
                yield layer
                position += 1

    def _sum_in_last_normalisation(self, name: str, block: Block) -> None:
        """Let a block with a shortcut add it where its last normalisation writes its maps anyway."""
        if not (isinstance(block, ResidualBlock) or block.has_shortcut):
            return
        place, activation, parts = _summands(block)
        chain, added = block.get_submodule(place), list[Tensor]()
        last_name, last = _last_layer(_within(name, place), chain)
        assert isinstance(last, nn.BatchNorm2d)
        last.forward = self._normalisation(  # type: ignore[method-assign, assignment]
            last_name, last, activation, added
        )

        def run(maps: Tensor) -> Tensor:
            given, shortcut = parts(maps)
            added.append(shortcut)
            out: Tensor = chain(given)
            return out

        block.forward = run  # type: ignore[method-assign]


def _summands(block: Block) -> tuple[str, str, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    """Of a block with a shortcut: the chain whose result it is added to, the activation of the sum, and what both are
    given: maps -> (what the chain takes, the shortcut)"""
    if isinstance(block, ResidualBlock):
        return "residual", "relu", lambda maps: (maps, block.shortcut(maps))
    if isinstance(block, InvertedResidual):
        return "bottleneck", "none", lambda maps: (maps, block.shortcut(maps))
    return "body", "none", lambda maps: (block.expand(maps) if block.expands else maps, maps)


def _with_means(module: SqueezeExcitation | Classifier) -> Layer:
    """What these do, with means over all positions whose gradients stay in the layout of the maps."""
    from memwrap.kernels.gating import gated, means

    if isinstance(module, SqueezeExcitation):
        return lambda maps: gated(maps, module.gate(means(maps)))
    return lambda images: module.head(module.dropout(means(module.features(images)).flatten(1)))


def _chain(layers: list[Layer]) -> Layer:
    def run(maps: Tensor) -> Tensor:
        for layer in layers:
            maps = layer(maps)
        return maps

    return run


def _last_layer(name: str, module: nn.Module) -> tuple[str, nn.Module]:
    """The last layer of a chain, or of a chain that is the last of a chain; with its name."""
    while isinstance(module, nn.Sequential):
        own_name, module = list(module.named_children())[-1]
        name = f"{name}.{own_name}"
    return name, module


def _within(name: str, own_name: str) -> str:
    """The whole name of what has this name within a module."""
    return f"{name}.{own_name}" if name else own_name


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
