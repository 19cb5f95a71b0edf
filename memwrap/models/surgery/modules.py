"""Copy a classifier, run it without side effects, and replace its layers."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from memwrap.errors import WrapError, brief


def get_logits(output: object) -> Tensor:
    """The logits (B, C) in a classifier's output, or the encodings (B, D) in a backbone's.

    The output is a tensor, or an object of transformers with `.logits` or `.pooler_output`.
    """
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "pooler_output"):
        if isinstance(found := getattr(output, name, None), Tensor):
            return found.flatten(1) if found.shape[2:] == (1, 1) else found
    raise WrapError(
        f"the classifier returns a {type(output).__name__}; expected a tensor (B, C), or an object with .logits, or "
        "with .pooler_output if it has no last layer"
    )


def returns_encodings(output: object) -> bool:
    """Whether an output is that of a backbone of transformers, which has no logits."""
    return not isinstance(output, Tensor) and not isinstance(getattr(output, "logits", None), Tensor)


def copy_module(classifier: nn.Module) -> nn.Module:
    """A deep copy of a classifier; a WrapError if it cannot be copied."""
    if not isinstance(classifier, nn.Module):
        raise WrapError(f"classifier is a {type(classifier).__name__}; expected a torch.nn.Module")
    # torch.compile's shell around a module; what is made of the copy can be compiled in its turn.
    classifier = getattr(classifier, "_orig_mod", classifier)
    if isinstance(classifier, torch.jit.ScriptModule):
        raise WrapError(
            "classifier is a ScriptModule, whose layers cannot be replaced; give the module it was made from"
        )
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in classifier.parameters()):
        raise WrapError("classifier has lazy layers without weights yet; run one batch through it first")
    if any(parameter.is_meta for parameter in classifier.parameters()):
        raise WrapError("classifier is on the meta device, without weights; give it some: classifier.to_empty(...)")
    try:
        duplicate = copy.deepcopy(classifier)
    except Exception as error:
        raise WrapError(f"the classifier cannot be copied ({brief(error)})") from error
    if {id(module) for module in duplicate.modules()} & {id(module) for module in classifier.modules()}:
        raise WrapError("a copy of the classifier shares modules with it; let its __deepcopy__ copy them")
    return duplicate


@contextmanager
def forbid_calls(classifier: nn.Module) -> Iterator[None]:
    """Raise a WrapError if a copy of the classifier, run inside this context, calls a module of the original."""

    def refuse(name: str) -> None:
        raise WrapError(
            f"a copy of the classifier still calls {name or 'forward'} of the original, through a function or hook "
            "that refers to it; write these as methods that use self"
        )

    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: refuse(name))
        for name, module in classifier.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def remove_layer(classifier: nn.Module, name: str) -> None:
    """Replace a layer by an identity, so that the classifier returns that layer's input: the encodings.

    "" leaves a backbone as it is, which has no such layer.
    """
    if not name:
        return
    for parent, key in _places(classifier, name):
        parent._modules[key] = nn.Identity()


def drop_auxiliary_heads(encoder: nn.Module) -> None:
    """Remove the auxiliary heads of torchvision's GoogLeNet and Inception: unread, they would not be trained."""
    if type(encoder).__module__.startswith("torchvision.") and getattr(encoder, "aux_logits", False):
        encoder.__dict__["aux_logits"] = False
        for name in [name for name in encoder._modules if name.lower().startswith("aux")]:
            del encoder._modules[name]
            encoder.__dict__[name] = None  # as where it was built without them


@contextmanager
def replace_layer(classifier: nn.Module, name: str, replacement: nn.Module) -> Iterator[None]:
    """Put another module in the layer's place inside this context."""
    layer, places = classifier.get_submodule(name), _places(classifier, name)
    try:
        for parent, key in places:
            parent._modules[key] = replacement
        yield
    finally:
        for parent, key in places:
            parent._modules[key] = layer


@contextmanager
def preserve_buffers(classifier: nn.Module) -> Iterator[None]:
    """Restore buffers afterwards, such as the statistics of batch normalisation that a training pass changes."""
    before = [(module._buffers, copy.deepcopy(module._buffers)) for module in classifier.modules()]
    try:
        yield
    finally:
        for buffers, values in before:
            buffers.clear()
            buffers.update(values)


@contextmanager
def perturb_parameters(classifier: nn.Module) -> Iterator[None]:
    """Change every floating-point parameter a little inside this context."""
    before = [(each, each.detach().clone()) for each in classifier.parameters() if each.is_floating_point()]
    try:
        with torch.no_grad():
            for parameter, _ in before:
                parameter.mul_(1.25).add_(0.125)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)


@contextmanager
def preserve_random_state(model: nn.Module) -> Iterator[None]:
    """Restore the random state of the CPU and of the model's GPUs afterwards."""
    gpus = {parameter.get_device() for parameter in model.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices=sorted(gpus)):
        yield


def _places(classifier: nn.Module, name: str) -> list[tuple[nn.Module, str]]:
    """Where the layer of that name is registered, as (parent, key); a shared layer has several places."""
    # By the names of modules alone: `get_submodule` would read any attribute, and run properties.
    layer = dict(classifier.named_modules(remove_duplicate=False)).get(name)
    if layer is None:
        raise AttributeError(f"there is no layer {name!r}")
    return [
        (parent, key) for parent in classifier.modules() for key, child in parent._modules.items() if child is layer
    ]
