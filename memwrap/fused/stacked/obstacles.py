"""Which networks can be stacked: those of which it is known what each of their layers does."""

from torch import nn

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
