"""Image classifiers of transformers from a stored configuration: the library's own classes, and plain values."""

import re
from collections.abc import Callable
from typing import Any

from torch import nn

from memwrap.encoders.arguments import check_words

# Not part of what a network computes; given to the library, some would name files, addresses or attributes of torch.
_LEFT_OUT = ("_name_or_path", "_commit_hash", "architectures", "dtype", "torch_dtype", "transformers_version")

# Settings by which the library loads more than its own code, or another model.
_FETCHING = re.compile(
    r"implementation|quantization|backbone|timm|model_args|auto_map|remote_code|name_or_path|checkpoint_path"
)

_LABELS = ("id2label", "label2id")


def transformers_builder(name: str, arguments: dict[str, Any]) -> Callable[[], nn.Module]:
    """Builds the classifier of that class and configuration; a ValueError if a file may not ask for it."""
    import transformers

    found = getattr(transformers, name, None) if "ForImageClassification" in name else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ValueError("transformers has no image classifier of that name")
    kind: Any = found
    configuration = _checked(kind.config_class, arguments, name)
    return lambda: kind(kind.config_class.from_dict(configuration))


def _checked(kind: Any, arguments: dict[str, Any], place: str) -> dict[str, Any]:
    """The arguments of a configuration class without what is left out; place: whose they are, for messages."""
    import transformers

    # Not AutoConfig, which may become the configuration of any model, such as a wrapped one of timm.
    own = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedConfig)
    if not own or not kind.__module__.startswith("transformers.models.") or "timm" in kind.__module__:
        raise ValueError(f"the configuration of {place} can name other models, and fetch their weights")
    # What a default configuration holds is what the class knows; parts of it are configurations in their turn.
    known, parts = kind().to_dict(), getattr(kind, "sub_configs", {})
    if fetching := sorted(key for key in known if key not in _LEFT_OUT and _FETCHING.search(key)):
        raise ValueError(f"the configuration of {place} can fetch code or weights by {fetching}")
    checked = {key: _checked(part, arguments.get(key) or {}, f"{place}.{key}") for key, part in parts.items()}
    for key, value in arguments.items():
        where = f"{place}.{key}"
        if key in parts or key in _LEFT_OUT:
            continue
        if _FETCHING.search(key):
            raise ValueError(f"argument {where} can fetch code or weights")
        if key not in known:
            if isinstance(value, dict | list):
                raise ValueError(f"argument {where} is unknown")
            continue  # published configurations have settings that no code reads any more
        if key == "model_type" and value != kind.model_type:
            raise ValueError(f"argument {where} is {value!r}; expected {kind.model_type!r}")
        if key in _LABELS and isinstance(value, dict):
            if any(isinstance(label, dict | list) for label in value.values()):
                raise ValueError(f"argument {where} has lists or objects in it; expected names of classes")
        else:
            check_words(where, value)
        checked[key] = value
    return checked
