"""Models of timm, by the prefix `timm:`."""

import difflib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from torch import Tensor, nn

from memwrap.encoders.arguments import check_words
from memwrap.encoders.weights import SUFFIX, read_weights
from memwrap.errors import InputError, brief

TIMM = "timm:"

HUB_SECONDS = 2.0  # to wait for the hub of pretrained weights, at each step of a connection

# Arguments of timm's `create_model` that say where weights come from, not what the network is.
WEIGHT_SOURCES = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")

# A model's name, and which of its pretrained weights are meant.
_NAME = re.compile(r"\w+(\.\w+)?", re.ASCII)

# Arguments that all families of models take in some way; the others are those of the classes in a family's file.
_COMMON = {"drop_rate", "drop_path_rate", "global_pool", "img_size", "bn_eps", "bn_momentum"}

# Where a network is made, and what is made of it, is no part of its architecture.
_NOT_STORED = {"device", "dtype", "out_indices", "features_only", "feature_cls", "self", "args", "kwargs"}

# Arguments of timm's `create_model` by which a network computes the same, in a form for compilers and exporters.
_FORMS = {"scriptable", "exportable"}

_offline_lock = threading.Lock()
_offline_users = 0


def create_timm(name: str, num_classes: int, channels: int, arguments: dict[str, Any]) -> nn.Module:
    """`timm.create_model`, with an InputError if the name is unknown or the pretrained weights are not available.

    A file of weights, {"file": path} in `pretrained_cfg_overlay`, is not read by timm but by `read_weights`.
    """
    timm = _import_timm(name)
    without = {key: value for key, value in arguments.items() if not key.startswith("pretrained")}
    create: Callable[..., nn.Module] = partial(timm.create_model, name, num_classes=num_classes, in_chans=channels)
    overlay = dict(arguments.get("pretrained_cfg_overlay") or {})
    file = overlay.pop("file", None) if arguments.get("pretrained") else None
    unreachable: str | None = None
    try:
        if file is not None:
            return _with_weights(create, Path(file), overlay, without)
        with _offline_if_unreachable(name, arguments) as unreachable:
            return create(**arguments)
    except Exception as error:
        if not arguments.get("pretrained"):
            raise
        # If this fails too, its error is reported: the weights were not the reason.
        create(**without)
        reason = unreachable if unreachable and isinstance(error, OSError) else brief(error)
        advice = _how_to_get(name) if file is None else "give another file, or start without them"
        raise InputError(f"the pretrained weights of 'timm:{name}' are not available ({reason}); {advice}") from error


def _how_to_get(name: str) -> str:
    """Which file has the weights, and what to do with it."""
    facts = timm_config(name)
    instead = "use lite0, which needs no network"
    if hub := facts.get("hf_hub_id"):
        file, origin = facts.get("hf_hub_filename") or "model.safetensors", f" of {hub} from the Hugging Face hub"
    elif url := facts.get("url"):
        file, origin = url.rpartition("/")[2], f" from {url}"
    else:
        return f"timm knows of none; {instead}"
    stored = Path(file).with_suffix(SUFFIX)
    convert = "" if file == str(stored) else f" convert it to {stored},"
    return f"fetch {file}{origin} on another machine,{convert} and give it with --weights {stored}, or {instead}"


def _with_weights(
    create: Callable[..., nn.Module], file: Path, overlay: dict[str, Any], arguments: dict[str, Any]
) -> nn.Module:
    """The network with the weights of a file; an InputError if they are not of such a network."""
    with torch.random.fork_rng(devices=[]):  # so that the weights that are not in the file stay those of the seed
        untrained = create(**arguments).state_dict()
    state = read_weights(file, sum(tensor.numel() for tensor in untrained.values()))
    for key, tensor in state.items():
        if key in untrained and untrained[key].is_floating_point() and not tensor.is_floating_point():
            raise InputError(f"{file}: the weights {key} are {tensor.dtype}; expected floating-point numbers")
    # timm fits them to another number of classes and channels, and to another size of images.
    overlay = {**overlay, "state_dict": dict(state)}
    classifier = create(**arguments, pretrained=True, pretrained_cfg_overlay=overlay)
    facts: Any = classifier.pretrained_cfg
    facts.pop("state_dict", None)
    _load_last_layers(classifier, state)
    _check_weights(classifier, state, file)
    return classifier


def _load_last_layers(classifier: nn.Module, state: dict[str, Tensor]) -> None:
    """Load last layers of the network's own classes; timm drops all that are not for those of its own weights."""
    facts: Any = classifier.pretrained_cfg
    named, own = facts.get("classifier") or (), classifier.state_dict()
    for name in (named,) if isinstance(named, str) else named:
        found = {key: state[key] for key in (f"{name}.weight", f"{name}.bias") if key in state}
        if all(key in own and own[key].shape == tensor.shape for key, tensor in found.items()):
            classifier.load_state_dict(found, strict=False)


def _check_weights(classifier: nn.Module, state: dict[str, Tensor], file: Path) -> None:
    """Refuse a file that gave the network nothing: timm leaves what it does not find as it is, which is random."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for tensor in state.values():
        by_shape.setdefault(tensor.shape, []).append(tensor)
    for parameter in classifier.parameters():
        alike = by_shape.get(parameter.shape, []) if parameter.ndim > 1 else []
        if any(torch.equal(parameter, tensor.to(parameter.dtype)) for tensor in alike):
            return
    raise InputError(f"{file}: holds no weights of such a network, but {', '.join(list(state)[:3])[:200]}, ...")


def timm_config(name: str) -> dict[str, Any]:
    """timm's configuration of `timm:NAME`, without building the model: input_size (C, H, W), mean, std, and more."""
    bare = name.removeprefix(TIMM)
    return dict(_import_timm(bare).get_pretrained_cfg(bare).to_dict())


def check_stored_timm(name: str, arguments: dict[str, Any]) -> None:
    """An InputError for a name or arguments that a file may not give to timm's `create_model`.

    Arguments are those of the model's classes, as numbers, words and lists of these.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"timm has no model {name[:100]!r}; expected a name as in timm.list_models()")
    _import_timm(name)
    known = _stored_arguments(name.partition(".")[0])
    if unknown := sorted(set(arguments) - known):
        raise InputError(f"the arguments {', '.join(unknown)} are not of the architecture 'timm:{name}'")
    for key, value in arguments.items():
        check_words(key, value)


@cache
def _stored_arguments(name: str) -> set[str]:
    from timm.models import build_model_with_cfg, create_model, model_entrypoint

    file = sys.modules[model_entrypoint(name).__module__]
    classes = [kind for kind in vars(file).values() if isinstance(kind, type) and issubclass(kind, nn.Module)]
    known = _COMMON.union(*(inspect.signature(kind.__init__).parameters for kind in classes)) - _NOT_STORED
    builders = (inspect.signature(builder).parameters for builder in (create_model, build_model_with_cfg))
    return known.difference(*builders) | _FORMS


@contextmanager
def hub_offline() -> Iterator[None]:
    """Let the clients of the hub of pretrained weights use their cache alone, in all threads."""
    global _offline_users
    constants: Any = sys.modules.get("huggingface_hub.constants")
    if constants is None:  # nobody can ask
        yield
        return
    with _offline_lock:
        by_user = constants.HF_HUB_OFFLINE and not _offline_users
        _offline_users += not by_user
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        with _offline_lock:
            _offline_users -= not by_user
            constants.HF_HUB_OFFLINE = by_user or _offline_users > 0


@contextmanager
def _offline_if_unreachable(name: str, arguments: dict[str, Any]) -> Iterator[str | None]:
    """Let the hub's client use its cache if the hub does not answer; it would otherwise retry for a minute.

    Gives the reason why the hub is not asked; None if it is. A few weights are not in the hub, but at another address.
    """
    if not arguments.get("pretrained") or "pretrained_cfg_overlay" in arguments:
        yield None
        return
    from huggingface_hub import constants
    from timm.models._hub import check_cached_file

    facts = timm_config(name)
    if not facts.get("hf_hub_id"):
        url = facts.get("url")
        if url and not check_cached_file(url, cache_dir=arguments.get("cache_dir")) and not _answers(url):
            raise ConnectionError("no network")
        yield None
    elif constants.HF_HUB_OFFLINE:
        yield "HF_HUB_OFFLINE is set"
    elif _answers(constants.ENDPOINT):
        yield None
    else:
        with hub_offline():
            yield "no network"


def _answers(url: str) -> bool:
    """Whether a server answers, in twice HUB_SECONDS at most.

    The limit of a connection does not hold for the search of its address, and holds for each of a server's addresses
    anew: where packets are lost without an answer, that adds up.
    """
    answered = []

    def ask() -> None:
        try:
            urlopen(Request(url, method="HEAD"), timeout=HUB_SECONDS).close()
        except HTTPError:
            pass  # an answer, too
        except (OSError, HTTPException):
            return
        answered.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2 * HUB_SECONDS)
    return bool(answered)


def _import_timm(name: str) -> Any:
    """The timm module; an InputError if it has no model of that name."""
    try:
        import timm  # a heavy import
    except ImportError as error:
        raise InputError(
            f"encoder 'timm:{name}' needs timm, which is not installed: pip install 'memwrap[timm]'"
        ) from error
    # timm would fetch names with a hub scheme from the network, even without weights.
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=8)
        raise InputError(
            f"timm has no model {name!r}; it has {', '.join(close) if close else 'none of a similar name'}"
        )
    return timm
