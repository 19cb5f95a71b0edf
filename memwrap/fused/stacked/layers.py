"""Replace the `forward` of a network's layers by versions that use the stacked weights of several runs.

The network's own code stays. On a GPU, Triton kernels replace what torch does slowly: batch normalisation with the
activation after it, depthwise convolutions with the normalisations around them, im2col of the first convolution, global
average pooling, squeeze-and-excitation, and dropout from seeds on the device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.efficientnet import MobileBlock, SqueezeExcitation
from memwrap.encoders.mobilenet import InvertedResidual
from memwrap.encoders.resnet import ResidualBlock
from memwrap.fused.kernels.norm import Norm
from memwrap.fused.stacked import fallback
from memwrap.fused.stacked.convolution import convolution, pointwise
from memwrap.fused.stacked.linear import linear

Layer = Callable[[Tensor], Tensor]
Block = ResidualBlock | InvertedResidual | MobileBlock
Named = tuple[str, nn.Module]

_ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.SiLU: "silu"}


@dataclass
class PassContext:
    """What the layers need to know about a forward pass.

    seeds (S,), int64: for dropout. first: how many images of each run form the first batch for batch normalisation, the
    others being the second; None if there is one batch.
    """

    seeds: Tensor
    first: int | None = None
    used: set[str] = field(default_factory=set)  # names of the normalisations that were called


def stack_layers(network: nn.Module, values: Mapping[str, Tensor], context: PassContext, kernels: bool) -> None:
    """Let the layers of a network use stacked values (by name). `unsupported_layer(network)` must be None."""
    _Stacker(values, context, kernels).stack(network)


@dataclass(frozen=True)
class _Stacker:
    values: Mapping[str, Tensor]
    context: PassContext
    kernels: bool

    def stack(self, network: nn.Module) -> None:
        """Replace single layers first, then the containers that fuse several of them."""
        modules = list(network.named_modules())
        for number, (name, module) in enumerate(modules):
            if (forward := self._stacked_forward(number, name, module)) is not None:
                module.forward = forward
        for name, module in modules:
            if self.kernels and isinstance(module, Block):
                self._stack_block(name, module)
            elif isinstance(module, nn.Sequential):
                module.forward = self._chain(_flatten(name, module))  # type: ignore[method-assign]

    def _stacked_forward(self, number: int, name: str, module: nn.Module) -> Layer | None:
        """The stacked version of a layer; None if the layer has no values and stays as it is."""
        if isinstance(module, nn.Dropout):
            return self._dropout(module, number)
        if isinstance(module, nn.BatchNorm2d):
            return self._normalisation(name, module)
        if isinstance(module, nn.Conv2d | nn.Linear):
            return self._product(name, module)
        if isinstance(module, SqueezeExcitation | Classifier) and self.kernels:
            return _pooling_forward(module)
        return None

    def _product(self, name: str, layer: nn.Conv2d | nn.Linear) -> Layer:
        weight, bias = self.values[f"{name}.weight"], self.values.get(f"{name}.bias")
        if isinstance(layer, nn.Linear):
            return lambda rows: linear(rows, weight, bias)
        if self.kernels and _is_depthwise(layer):
            from memwrap.fused.kernels.depthwise import depthwise  # Triton may be missing

            return lambda maps: depthwise(maps, weight, layer.stride[0])
        if _is_pointwise(layer):
            return lambda maps: pointwise(maps, weight, bias)
        return lambda maps: convolution(maps, weight, bias, layer, self.kernels)

    def _normalisation(
        self, name: str, layer: nn.BatchNorm2d, activation: str = "none", added: list[Tensor] | None = None
    ) -> Layer:
        """added: holds the shortcut to add before the activation, if the block has one; only with kernels."""
        norm = self._norm(name, layer)
        normalise: Callable[..., Tensor] = fallback.batch_norm
        if self.kernels:
            from memwrap.fused.kernels.batch_norm import batch_norm

            normalise = batch_norm

        def run(maps: Tensor) -> Tensor:
            self.context.used.add(name)
            more = {} if added is None else {"added": added.pop()}
            return normalise(maps, norm, activation, self.context.first, **more)

        return run

    def _depthwise_between(
        self, before: "_NormAndActivation", name: str, layer: nn.Conv2d, after: "_NormAndActivation"
    ) -> Layer:
        """Normalisation, depthwise convolution and normalisation, with activations; only with kernels."""
        from memwrap.fused.kernels.batch_norm import batch_norm
        from memwrap.fused.kernels.depthwise import normalised_depthwise

        kernel, stride = self.values[f"{name}.weight"], layer.stride[0]
        norm_before, norm_after = (self._norm(each.name, each.layer) for each in (before, after))

        def run(maps: Tensor) -> Tensor:
            self.context.used.update((before.name, after.name))
            first = self.context.first
            maps, moments = normalised_depthwise(maps, norm_before, before.activation, first, kernel, stride)
            return batch_norm(maps, norm_after, after.activation, first, moments=moments)

        return run

    def _norm(self, name: str, layer: nn.BatchNorm2d) -> Norm:
        weight, bias, mean, var = (
            self.values[f"{name}.{each}"] for each in ("weight", "bias", "running_mean", "running_var")
        )
        assert layer.momentum is not None  # `unsupported_layer` has checked it
        return Norm(weight, bias, mean, var, layer.momentum, layer.eps)

    def _dropout(self, layer: nn.Dropout, number: int) -> Layer:
        if layer.p == 0:
            return lambda values: values
        drop: Callable[..., Tensor] = fallback.dropout
        if self.kernels:
            from memwrap.fused.kernels.dropout import dropout

            drop = dropout
        return lambda values: drop(values, layer.p, self.context.seeds, number)

    def _stack_block(self, name: str, block: Block) -> None:
        """Fuse a block's layers. Its last normalisation adds the shortcut, if there is one."""
        branches, activation, shortcut = _structure(block)
        layers = [each for own in branches for each in _flatten(_join(name, own), block.get_submodule(own))]
        if shortcut is None:
            block.forward = self._chain(layers)  # type: ignore[method-assign, assignment]
            return
        added, (last_name, last) = list[Tensor](), layers[-1]
        assert isinstance(last, nn.BatchNorm2d)
        assert not _is_depthwise(layers[-2][1])  # its fused kernel cannot add a shortcut
        last.forward = self._normalisation(  # type: ignore[method-assign, assignment]
            last_name, last, activation, added
        )
        chain = self._chain(layers)

        def run(maps: Tensor) -> Tensor:
            added.append(shortcut(maps))
            return chain(maps)

        block.forward = run  # type: ignore[method-assign]

    def _chain(self, layers: Sequence[Named]) -> Layer:
        """The layers in sequence, with those fused that one kernel computes."""
        steps = []
        while layers:
            count, run = self._fuse_front(layers)
            steps.append(run)
            layers = layers[count:]

        def run_all(maps: Tensor) -> Tensor:
            for run in steps:
                maps = run(maps)
            return maps

        return run_all

    def _fuse_front(self, layers: Sequence[Named]) -> tuple[int, Layer]:
        """How many of the first layers are fused, and the function that computes them.

        Fused are a normalisation and its activation, or two such pairs with a depthwise convolution between them.
        """
        before = _match_normalisation(layers, 0)
        if before is None:
            return 1, layers[0][1]
        if self.kernels and (after := _match_normalisation(layers, before.count + 1)) is not None:
            name, layer = layers[before.count]
            if _is_depthwise(layer):
                return before.count + 1 + after.count, self._depthwise_between(before, name, layer, after)
        if before.count == 1:
            return 1, before.layer
        return before.count, self._normalisation(before.name, before.layer, before.activation)


def _pooling_forward(module: SqueezeExcitation | Classifier) -> Layer:
    """The module's forward, by kernels: the gradient of a mean stays in channels_last."""
    from memwrap.fused.kernels.squeeze_excitation import global_average_pool, scale_channels

    if isinstance(module, SqueezeExcitation):
        return lambda maps: scale_channels(maps, module.gate(global_average_pool(maps)))
    return lambda images: module.head(module.dropout(global_average_pool(module.features(images)).flatten(1)))


def _structure(block: Block) -> tuple[list[str], str, Layer | None]:
    """The names of a block's parts in order, its last activation, and its shortcut, which is added before that."""
    if isinstance(block, ResidualBlock):
        return ["residual"], "relu", block.shortcut
    if isinstance(block, InvertedResidual):
        return ["bottleneck"], "none", block.shortcut if block.has_shortcut else None
    return ["expand", "body"] if block.expands else ["body"], "none", _identity if block.has_shortcut else None


def _identity(maps: Tensor) -> Tensor:
    return maps


def _flatten(name: str, module: nn.Module) -> list[Named]:
    """The layers of a Sequential, nested ones included."""
    if not isinstance(module, nn.Sequential):
        return [(name, module)]
    return [each for own_name, child in module.named_children() for each in _flatten(_join(name, own_name), child)]


@dataclass(frozen=True)
class _NormAndActivation:
    """A normalisation in a sequence of layers, with the activation after it."""

    name: str
    layer: nn.BatchNorm2d
    activation: str
    count: int  # of layers


def _match_normalisation(layers: Sequence[Named], position: int) -> _NormAndActivation | None:
    """The normalisation at a position, or None."""
    if position >= len(layers) or not isinstance(layer := layers[position][1], nn.BatchNorm2d):
        return None
    after = layers[position + 1][1] if position + 1 < len(layers) else None
    activation = _ACTIVATIONS.get(type(after))
    return _NormAndActivation(layers[position][0], layer, activation or "none", 1 if activation is None else 2)


def _join(name: str, own_name: str) -> str:
    """The qualified name of a child."""
    return f"{name}.{own_name}" if name else own_name


def _is_depthwise(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a layer is a depthwise convolution that the kernels support."""
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
