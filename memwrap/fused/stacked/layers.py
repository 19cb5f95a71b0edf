"""A network's layers with the weights of several runs, in place: what the network does with them stays.

On a GPU, kernels do what would be slow there: normalisation with the activation after it, depthwise convolutions with
the normalisations around them, the gathering of what the first convolution sees, means, gates, and dropout that draws
from seeds on the device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.efficientnet import MobileBlock, SqueezeExcitation
from memwrap.encoders.mobilenet import InvertedResidual
from memwrap.encoders.resnet import ResidualBlock
from memwrap.fused.kernels.norms import Norm
from memwrap.fused.stacked import run_by_run
from memwrap.fused.stacked.convolutions import convolution, pointwise
from memwrap.fused.stacked.products import linear

Layer = Callable[[Tensor], Tensor]
Block = ResidualBlock | InvertedResidual | MobileBlock
Named = tuple[str, nn.Module]

_ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.SiLU: "silu"}


@dataclass
class PassContext:
    """What the layers are told of each pass.

    seeds (S,), int64: what dropout draws from. first: how many of a run's images belong to the first part, if
    the others have statistics of their own; None if there is one part.
    """

    seeds: Tensor
    first: int | None = None
    used: set[str] = field(default_factory=set)  # the normalisations that have been in a pass


def stack_layers(network: nn.Module, values: Mapping[str, Tensor], told: PassContext, kernels: bool) -> None:
    """Let the layers of a network, which `unstackable` finds nothing in, use stacked values, by their names."""
    _Stacking(values, told, kernels).stack(network)


@dataclass(frozen=True)
class _Stacking:
    values: Mapping[str, Tensor]
    told: PassContext
    kernels: bool

    def stack(self, network: nn.Module) -> None:
        """Layers first, then what brings several of them together."""
        modules = list(network.named_modules())
        for number, (name, module) in enumerate(modules):
            if (forward := self._stacked(number, name, module)) is not None:
                module.forward = forward
        for name, module in modules:
            if self.kernels and isinstance(module, Block):
                self._stack_block(name, module)
            elif isinstance(module, nn.Sequential):
                module.forward = self._chain(_flat(name, module))  # type: ignore[method-assign]

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
        if self.kernels and _is_depthwise(layer):
            from memwrap.fused.kernels.depthwise import depthwise  # Triton is there where there is a GPU

            return lambda maps: depthwise(maps, weight, layer.stride[0])
        if _is_pointwise(layer):
            return lambda maps: pointwise(maps, weight, bias)
        return lambda maps: convolution(maps, weight, bias, layer, self.kernels)

    def _normalisation(
        self, name: str, layer: nn.BatchNorm2d, activation: str = "none", added: list[Tensor] | None = None
    ) -> Layer:
        """added: where a block leaves what is to be added before the activation, if it does; only with kernels."""
        own = self._norm(name, layer)
        normalise: Callable[..., Tensor] = run_by_run.batch_norm
        if self.kernels:
            from memwrap.fused.kernels.normalisation import batch_norm

            normalise = batch_norm

        def run(maps: Tensor) -> Tensor:
            self.told.used.add(name)
            more = {} if added is None else {"added": added.pop()}
            return normalise(maps, own, activation, self.told.first, **more)

        return run

    def _depthwise_between(
        self, before: "_Normalisation", name: str, layer: nn.Conv2d, after: "_Normalisation"
    ) -> Layer:
        """Two normalisations, with their activations, and the convolution between them; only with kernels."""
        from memwrap.fused.kernels.depthwise import normalised_depthwise
        from memwrap.fused.kernels.normalisation import batch_norm

        kernel, stride = self.values[f"{name}.weight"], layer.stride[0]
        of_before, of_after = (self._norm(each.name, each.layer) for each in (before, after))

        def run(maps: Tensor) -> Tensor:
            self.told.used.update((before.name, after.name))
            first = self.told.first
            maps, moments = normalised_depthwise(maps, of_before, before.activation, first, kernel, stride)
            return batch_norm(maps, of_after, after.activation, first, moments=moments)

        return run

    def _norm(self, name: str, layer: nn.BatchNorm2d) -> Norm:
        """What a normalisation has of its own."""
        weight, bias, mean, var = (
            self.values[f"{name}.{each}"] for each in ("weight", "bias", "running_mean", "running_var")
        )
        assert layer.momentum is not None  # as `unstackable` has seen
        return Norm(weight, bias, mean, var, layer.momentum, layer.eps)

    def _dropout(self, layer: nn.Dropout, number: int) -> Layer:
        if layer.p == 0:
            return lambda values: values
        drop: Callable[..., Tensor] = run_by_run.dropout
        if self.kernels:
            from memwrap.fused.kernels.dropout import dropout

            drop = dropout
        return lambda values: drop(values, layer.p, self.told.seeds, number)

    def _stack_block(self, name: str, block: Block) -> None:
        """With its shortcut, if it has one, added where its last normalisation writes its maps anyway."""
        places, activation, shortcut = _ways(block)
        layers = [each for place in places for each in _flat(_within(name, place), block.get_submodule(place))]
        if shortcut is None:
            block.forward = self._chain(layers)  # type: ignore[method-assign, assignment]
            return
        added, (last_name, last) = list[Tensor](), layers[-1]
        assert isinstance(last, nn.BatchNorm2d)
        assert not _is_depthwise(layers[-2][1])  # with which this would be done, and nothing added
        last.forward = self._normalisation(  # type: ignore[method-assign, assignment]
            last_name, last, activation, added
        )
        chain = self._chain(layers)

        def run(maps: Tensor) -> Tensor:
            added.append(shortcut(maps))
            return chain(maps)

        block.forward = run  # type: ignore[method-assign]

    def _chain(self, layers: Sequence[Named]) -> Layer:
        """Layers one after the other, and as one those that a kernel does together."""
        together = []
        while layers:
            count, run = self._together(layers)
            together.append(run)
            layers = layers[count:]

        def run_all(maps: Tensor) -> Tensor:
            for run in together:
                maps = run(maps)
            return maps

        return run_all

    def _together(self, layers: Sequence[Named]) -> tuple[int, Layer]:
        """How many of the layers at the front are done together, and by what: a normalisation and its activation; or
        two of these with a depthwise convolution between them."""
        before = _normalisation_at(layers, 0)
        if before is None:
            return 1, layers[0][1]
        if self.kernels and (after := _normalisation_at(layers, before.count + 1)) is not None:
            name, layer = layers[before.count]
            if _is_depthwise(layer):
                return before.count + 1 + after.count, self._depthwise_between(before, name, layer, after)
        if before.count == 1:
            return 1, before.layer
        return before.count, self._normalisation(before.name, before.layer, before.activation)


def _with_means(module: SqueezeExcitation | Classifier) -> Layer:
    """What these do, with means over all positions whose gradients stay in the layout of the maps."""
    from memwrap.fused.kernels.gating import gated, means

    if isinstance(module, SqueezeExcitation):
        return lambda maps: gated(maps, module.gate(means(maps)))
    return lambda images: module.head(module.dropout(means(module.features(images)).flatten(1)))


def _ways(block: Block) -> tuple[list[str], str, Layer | None]:
    """The chains that lead through a block, one after the other; the activation of what comes out; and what is added
    before that, if anything."""
    if isinstance(block, ResidualBlock):
        return ["residual"], "relu", block.shortcut
    if isinstance(block, InvertedResidual):
        return ["bottleneck"], "none", block.shortcut if block.has_shortcut else None
    return ["expand", "body"] if block.expands else ["body"], "none", _itself if block.has_shortcut else None


def _itself(maps: Tensor) -> Tensor:
    return maps


def _flat(name: str, module: nn.Module) -> list[Named]:
    """The layers of a chain, and of the chains in it."""
    if not isinstance(module, nn.Sequential):
        return [(name, module)]
    return [each for own_name, child in module.named_children() for each in _flat(_within(name, own_name), child)]


@dataclass(frozen=True)
class _Normalisation:
    """A normalisation in a chain, with the activation after it."""

    name: str
    layer: nn.BatchNorm2d
    activation: str
    count: int  # of layers


def _normalisation_at(layers: Sequence[Named], position: int) -> _Normalisation | None:
    """The one that is there, if one is."""
    if position >= len(layers) or not isinstance(layer := layers[position][1], nn.BatchNorm2d):
        return None
    after = layers[position + 1][1] if position + 1 < len(layers) else None
    activation = _ACTIVATIONS.get(type(after))
    return _Normalisation(layers[position][0], layer, activation or "none", 1 if activation is None else 2)


def _within(name: str, own_name: str) -> str:
    """The whole name of what has this name within a module."""
    return f"{name}.{own_name}" if name else own_name


def _is_depthwise(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Such as the kernels know."""
    if not isinstance(layer, nn.Conv2d):
        return False
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
