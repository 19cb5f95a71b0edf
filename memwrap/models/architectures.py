"""A classifier's architecture as data, from which it can be built again without its weights.

Ours and timm's are built by `encoders.create`, torchvision's by their builders, transformers' from their configuration.
Nothing of this is code. A description may come from a stranger: only known names and plain arguments are built, and
building reads no weights, asks no network and starts no program.
"""

import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from memwrap.encoders import TIMM, create, create_arguments
from memwrap.encoders.arguments import check_plain
from memwrap.encoders.registry import ARGUMENTS_ATTRIBUTE, check_stored
from memwrap.encoders.timm_models import hub_offline
from memwrap.errors import LoadError, brief
from memwrap.models.confinement import only_arithmetic
from memwrap.models.surgery.modules import remove_layer
from memwrap.models.transformers_models import transformers_builder

# Attributes that change in use, and say nothing of what a network computes.
# Swin of transformers sets its sizes by those of the images.
_PASSING = {
    "training",
    "grad_checkpointing",
    "gradient_checkpointing",
    "shift_size",
    "window_size",
    ARGUMENTS_ATTRIBUTE,
}

# timm and transformers import torchvision: two threads that each import one would meet it half imported.
_import_lock = threading.Lock()


@dataclass(frozen=True)
class Architecture:
    """A classifier's name and arguments, as a saved model stores them."""

    source: str  # "encoders", "torchvision" or "transformers"
    name: str
    arguments: dict[str, Any]


def describe(encoder: nn.Module, layer: str, num_classes: int, channels: int) -> Architecture | None:
    """The architecture of the classifier that becomes `encoder` once `layer` is removed; None if unknown.

    num_classes, channels: what the classifier gave and takes.
    """
    wanted = _structure(encoder)
    for guess in _guesses(encoder, num_classes, channels):
        architecture = _as_stored(guess)
        # A name and a few arguments may not be all that made it (drop rates, changes by hand).
        if architecture is not None and _rebuilt_structure(architecture, layer) == wanted:
            return architecture
    return None


def build(architecture: Architecture) -> nn.Module:
    """The classifier, with new weights. The caller bounds its size, as by `confinement.limit_size`."""
    if architecture.source not in _BUILDERS:
        raise LoadError(f"the classifier is of {architecture.source!r}; known are {', '.join(_BUILDERS)}")
    try:
        check_plain(architecture.arguments)
        with _import_lock:
            builder = _BUILDERS[architecture.source](architecture.name, architecture.arguments)
        with only_arithmetic(), hub_offline():
            return builder()
    except Exception as error:  # whatever a library makes of a name and arguments that it does not know
        raise LoadError(
            f"the classifier {architecture.name!r} of {architecture.source} cannot be built here ({brief(error)})"
        ) from error


def _as_stored(architecture: Architecture) -> Architecture | None:
    """The architecture as JSON gives it back; None if an argument cannot be stored, such as a function."""
    try:
        return Architecture(**json.loads(json.dumps(asdict(architecture))))
    except TypeError:
        return None


def _rebuilt_structure(architecture: Architecture, layer: str) -> dict[str, Any] | None:
    """The structure of this architecture's encoder; None if it cannot be built."""
    # Without memory for the weights where possible; some constructors compute with tensors and need real ones.
    for cheap in (torch.device("meta"), _WithoutRandomWeights()):
        try:
            with cheap, torch.random.fork_rng(devices=[]):
                classifier = build(architecture)
            remove_layer(classifier, layer)
        except (LoadError, AttributeError):
            continue
        return _structure(classifier)
    return None


class _WithoutRandomWeights(TorchFunctionMode):
    """Leaves new weights as the memory happens to be: drawing them is most of the time that building takes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (
            torch.Tensor.uniform_,
            torch.Tensor.normal_,
        ):
            return args[0] if args else options["tensor"]
        return func(*args, **options)


def _structure(encoder: nn.Module) -> dict[str, Any]:
    """What tells one network from another, except its weights: classes, public settings and shapes, by module.

    Not all: a module may keep settings where this does not look. A saved model's probe finds what they change.
    """
    return {
        name: (
            type(module),
            {key: _plain(value) for key, value in vars(module).items() if key[0] != "_" and key not in _PASSING},
            {key: tuple(value.shape) for key, value in module._parameters.items() if value is not None},
            {key: tuple(value.shape) for key, value in module._buffers.items() if value is not None},
        )
        for name, module in encoder.named_modules()
    }


def _plain(value: object) -> object:
    """Settings as they are, functions by name; of other objects only that there is one."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return getattr(value, "__qualname__", type(value).__qualname__)


def _guesses(encoder: nn.Module, num_classes: int, channels: int) -> Iterator[Architecture]:
    recipe = create_arguments(encoder)
    if recipe is not None:
        yield Architecture("encoders", recipe["name"], {key: recipe[key] for key in recipe if key != "name"})
        return
    package = type(encoder).__module__.split(".")[0]
    if package == "timm":
        settings: Any = getattr(encoder, "pretrained_cfg", {})
        name = TIMM + str(settings.get("architecture"))
        yield Architecture("encoders", name, {"num_classes": num_classes, "channels": channels})
    elif package == "torchvision":
        yield from _torchvision_guesses(encoder, num_classes)
    elif package == "transformers" and hasattr(encoder, "config"):
        configuration: Any = encoder.config
        yield Architecture("transformers", type(encoder).__name__, configuration.to_diff_dict())


def _torchvision_guesses(encoder: nn.Module, num_classes: int) -> Iterator[Architecture]:
    """Every builder of the encoder's file: torchvision's models do not know their names."""
    from torchvision import models

    file = sys.modules[type(encoder).__module__]
    for name in models.list_models(module=models):
        builder = models.get_model_builder(name)
        if inspect.getmodule(inspect.unwrap(builder)) is file:
            yield Architecture("torchvision", name, {"num_classes": num_classes})
            # GoogLeNet and Inception v3, with or without their auxiliary heads.
            if "init_weights" in inspect.signature(type(encoder)).parameters:
                for auxiliary in (True, False):
                    arguments = {"num_classes": num_classes, "aux_logits": auxiliary, "init_weights": False}
                    yield Architecture("torchvision", name, arguments)


def _encoder_builder(name: str, arguments: dict[str, Any]) -> Callable[[], nn.Module]:
    check_stored(name, arguments)
    return lambda: create(name, **arguments)


def _torchvision_builder(name: str, arguments: dict[str, Any]) -> Callable[[], nn.Module]:
    from torchvision import models

    allowed = {"num_classes": int, "aux_logits": bool, "init_weights": bool}
    if wrong := sorted(key for key, value in arguments.items() if type(value) is not allowed.get(key)):
        raise ValueError(f"arguments {wrong} are unknown or of another type")
    if name not in models.list_models(module=models):
        raise ValueError("torchvision has no model of that name")
    return lambda: models.get_model(name, weights=None, **arguments)


# Each checks a name and arguments, imports what is needed, and returns what builds the classifier.
_BUILDERS: dict[str, Callable[[str, dict[str, Any]], Callable[[], nn.Module]]] = {
    "encoders": _encoder_builder,
    "torchvision": _torchvision_builder,
    "transformers": transformers_builder,
}
