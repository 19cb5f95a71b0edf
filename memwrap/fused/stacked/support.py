"""Which networks can be stacked: those made of layers with a stacked version."""

from torch import nn

_SUPPORTED = {
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


def unsupported_layer(network: nn.Module) -> str | None:
    """Describe the first part of a network that cannot be stacked; None if all of it can.

    Layers must be of an exact type: a subclass may use its weights differently, mix images, or draw at random. The
    blocks of `memwrap.encoders` do none of this.
    """
    for name, module in network.named_modules():
        own_block = type(module).__module__.startswith("memwrap.encoders.")
        if not (own_block or (type(module) in _SUPPORTED and _has_supported_options(module))):
            return f"a layer of the kind {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            return f"a hook on {name or 'itself'}"
    modules = [id(module) for _, module in network.named_modules(remove_duplicate=False)]
    weights = [id(weight) for _, weight in network.named_parameters(remove_duplicate=False)]
    if len(set(modules)) < len(modules) or len(set(weights)) < len(weights):
        return "a layer or a weight in two places"
    return None


def _has_supported_options(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.BatchNorm2d):
        return module.affine and module.track_running_stats and bool(module.momentum)
    return True
