"""From settings to a model: weights by the seed or from a file, and how its images are normalised."""

import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

import memwrap
from memwrap import InputError, SettingsError, encoders, wrap
from memwrap.data import InMemoryImages, channel_statistics
from memwrap.encoders import timm_models
from memwrap.encoders.weights import read_weights
from memwrap.models.loading import Model
from memwrap.models.wrapping import wrap_own
from memwrap.training.building import new_model, size_for
from memwrap.training.settings import ResolvedSettings, Settings

CLASSES = ("cat", "dog", "eel")


def images(channels: int = 3, side: int = 8) -> InMemoryImages:
    generator = torch.Generator().manual_seed(1)
    return InMemoryImages(torch.randint(256, (6, channels, side, side), dtype=torch.uint8, generator=generator))


def built(pixels: InMemoryImages | None = None, **settings: Any) -> Model:
    return new_model(ResolvedSettings(**{"encoder": "tiny", **settings}), CLASSES, pixels or images())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "standard"])
def test_the_seed_decides_the_weights(variant: str) -> None:
    weights = built(variant=variant, seed=3).state_dict()
    torch.rand(5)
    assert same(built(variant=variant, seed=3).state_dict(), weights)
    other = built(variant=variant, seed=4).state_dict()
    assert not any(
        torch.equal(other[name], value) for name, value in weights.items() if "weight" in name and value.std()
    )


def test_variants_of_a_seed_begin_with_the_same_encoder() -> None:
    encoders = [built(variant=name).encoder.state_dict() for name in ("memory_wrap", "only_memory", "standard")]
    assert same(encoders[0], encoders[1])
    assert same(encoders[0], encoders[2])


def test_torch_s_own_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    built()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_model_is_what_the_settings_say() -> None:
    model = built(head="linear", project=5, scale=4.0, variant="only_memory")
    assert isinstance(model, memwrap.MemoryClassifier)
    shape = {"in_features": 128, "num_classes": 3, "variant": "only_memory"}
    expected = {**shape, "head": "linear", "project": 5, "scale": 4.0}
    assert model.layer.settings() == expected
    assert model.classes == CLASSES
    assert isinstance(built(variant="standard"), memwrap.StandardClassifier)


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_are_measured_where_nothing_is_reported(channels: int) -> None:
    pixels = images(channels)
    transform = built(pixels, fit="pad").transform
    assert (transform.mean, transform.std) == channel_statistics(pixels)
    assert (transform.shape, transform.fit) == ((channels, 8, 8), "pad")


def test_colours_that_are_given_are_not_measured() -> None:
    transform = built(mean=(0.1, 0.2, 0.3), std=(1, 2, 3)).transform
    assert (transform.mean, transform.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"encoder": "timm:test_vit"}, 160),
        ({"encoder": "timm:resnet18"}, 224),
        ({"encoder": "timm:resnet18", "size": 64}, 64),
        ({"encoder": "lite0"}, 224),
        ({"encoder": "lite1", "pretrained": True}, 240),
        ({"encoder": "lite2", "pretrained": True}, 260),
        ({"pretrained": True}, 224),
        ({"pretrained": True, "size": 96}, 96),
        ({"encoder": "resnet18"}, None),
        ({"size": 48}, 48),
        ({}, None),
    ],
)
def test_the_size_is_the_one_asked_for_or_the_encoder_s_or_left_to_the_images(
    given: dict[str, Any], size: int | None
) -> None:
    assert size_for(Settings(**given)) == size


def test_pretrained_weights_are_lite0_s_where_no_encoder_is_named() -> None:
    assert Settings(pretrained=True).encoder == "lite0"
    assert Settings().replace(pretrained=True).encoder == "lite0"
    assert ResolvedSettings(pretrained=True).encoder == "lite0"
    assert Settings(pretrained=True).replace(encoder="timm:resnet18").encoder == "timm:resnet18"
    assert Settings(pretrained=True).replace(epochs=3).replace(seed=1).encoder == "lite0"
    assert Settings(pretrained=False).encoder is None
    assert Settings(encoder="lite1").pretrained is False


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"pretrained": True, "weights": "a.safetensors"}, "encoder is None.*timm:NAME"),
        ({"encoder": "lite0", "weights": "a.safetensors"}, "encoder is lite0.*timm:NAME"),
        ({"encoder": "resnet18", "pretrained": True}, "encoder is resnet18.*lite0, lite1, lite2 or timm:NAME"),
        ({"encoder": "lite3", "pretrained": True}, "encoder is lite3.*lite0, lite1, lite2 or timm:NAME"),
    ],
)
def test_encoders_without_such_weights_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Settings(**given)


@pytest.mark.parametrize("channels", [1, 3])
def test_lite_begins_with_its_own_weights_and_colours(channels: int) -> None:
    model = built(images(channels, 32), encoder="lite0", pretrained=True)
    expected = encoders.create("lite0", 3, channels, pretrained=True)
    assert same(model.encoder.features.state_dict(), expected.features.state_dict())
    assert (model.transform.mean, model.transform.std) == ((0.5,) * channels, (0.5,) * channels)


def test_lite_without_its_weights_begins_with_those_of_the_seed() -> None:
    pixels = images(side=32)
    model = built(pixels, encoder="lite0")
    assert same(built(pixels, encoder="lite0").state_dict(), model.state_dict())
    trained = built(pixels, encoder="lite0", pretrained=True).encoder
    assert not torch.equal(model.encoder.features.conv_stem.weight, trained.features.conv_stem.weight)
    assert model.transform.mean == channel_statistics(pixels)[0]


@pytest.fixture
def weights(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """A file of weights for 1000 classes, as a download gives it."""
    state, path = timm.create_model("test_resnet").state_dict(), tmp_path / "weights.safetensors"
    save_file(state, path)
    return path, state


def test_pretrained_weights_can_come_from_a_file(weights: tuple[Path, dict[str, Tensor]]) -> None:
    path, state = weights
    model = built(images(side=32), encoder="timm:test_resnet", weights=str(path))
    kept = model.encoder.state_dict()
    assert set(state) - set(kept) == {"fc.weight", "fc.bias"}
    for name, value in kept.items():
        assert_close(value, state[name], atol=0, rtol=0)


def test_pretrained_weights_bring_their_colours(weights: tuple[Path, dict[str, Tensor]]) -> None:
    settings = {"encoder": "timm:test_resnet", "weights": str(weights[0])}
    transform, facts = built(images(side=32), **settings).transform, timm.get_pretrained_cfg("test_resnet")
    assert (transform.mean, transform.std) == (facts.mean, facts.std)
    own = built(images(side=32), **settings, mean=(0.1,) * 3, std=(0.2,) * 3).transform
    assert (own.mean, own.std) == ((0.1,) * 3, (0.2,) * 3)


def test_untrained_networks_of_timm_s_have_their_colours_measured() -> None:
    pixels = images(side=32)
    assert built(pixels, encoder="timm:test_resnet").transform.mean == channel_statistics(pixels)[0]


def test_pretrained_weights_serve_grey_images_too(tmp_path: Path) -> None:
    path, state = tmp_path / "weights.safetensors", timm.create_model("resnet10t").state_dict()
    save_file(state, path)
    model = built(images(1, 32), encoder="timm:resnet10t", weights=str(path))
    assert_close(model.transform.mean, ((0.485 + 0.456 + 0.406) / 3,))
    assert_close(model.transform.std, ((0.229 + 0.224 + 0.225) / 3,))
    # timm adds the first layer's weights up over the colours.
    assert_close(model.encoder.state_dict()["conv1.0.weight"], state["conv1.0.weight"].sum(1, keepdim=True))


def test_weights_that_cannot_be_fetched_are_missed_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError) as caught:
        built(images(side=32), encoder="timm:test_resnet", pretrained=True)
    message = str(caught.value)
    assert "the pretrained weights of 'timm:test_resnet' are not available (HF_HUB_OFFLINE is set); " in message
    # What timm looks for in the hub, and what to do with it.
    assert f"model.safetensors of {timm.get_pretrained_cfg('test_resnet').hf_hub_id} " in message
    assert "--weights model.safetensors" in message
    assert "use lite0" in message


def test_a_hub_that_cannot_be_reached_is_asked_once_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, over = [], threading.Event()

    def lost(*_: Any, **__: Any) -> None:
        """A name server that does not answer, which no timeout of urlopen shortens."""
        asked.append(True)
        over.wait(60)
        raise OSError

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(timm_models, "HUB_SECONDS", 0.1)
    monkeypatch.setattr(timm_models, "urlopen", lost)
    begun = time.monotonic()
    with pytest.raises(InputError, match=r"'timm:test_resnet' are not available \(no network\); fetch model"):
        built(images(side=32), encoder="timm:test_resnet", pretrained=True)
    assert time.monotonic() - begun < 30
    assert asked == [True]
    over.set()


def test_an_address_that_cannot_be_reached_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_download(*_: Any, **__: Any) -> None:
        raise AssertionError("timm began to download")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(timm_models, "_answers", lambda _: False)
    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_url", no_download)
    with pytest.raises(InputError, match=r"\(ConnectionError: no network\); fetch seresnet18-4bb0ce65\.pth from "):
        built(images(side=32), encoder="timm:legacy_seresnet18", pretrained=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "legacy_seresnet18",
            r"fetch \S+\.pth from \S+ on .* convert .* --weights seresnet18-4bb0ce65\.safetensors",
        ),
        ("resnet18", r"fetch model\.safetensors of timm/resnet18\.a1_in1k "),
        ("resnet18.tv_in1k", r"fetch model\.safetensors of timm/resnet18\.tv_in1k "),
        ("botnet50ts_256", "timm knows of none; use lite0"),
    ],
)
def test_the_file_to_fetch_is_the_one_that_timm_looks_for(name: str, words: str) -> None:
    assert re.search(words, timm_models._how_to_get(name))


@pytest.mark.parametrize("content", [None, b"", b"no weights"])
def test_a_file_without_weights_is_refused_with_a_reason(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="the pretrained weights of 'timm:test_resnet' are not available"):
        built(images(side=32), encoder="timm:test_resnet", weights=str(path))


def test_weights_of_another_network_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_efficientnet").state_dict(), path)
    with pytest.raises(InputError, match="the pretrained weights of 'timm:test_resnet' are not available"):
        built(images(side=32), encoder="timm:test_resnet", weights=str(path))


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_file_of_weights_runs_no_code(name: str, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "evil",)

    path = tmp_path / name
    torch.save({"conv1.0.weight": Evil()}, path)
    with pytest.raises(InputError, match="are not available"):
        built(images(side=32), encoder="timm:test_resnet", weights=str(path))
    assert not (tmp_path / "evil").exists()


def test_the_advice_for_other_files_makes_safetensors_of_them(tmp_path: Path) -> None:
    state, path = timm.create_model("test_resnet").state_dict(), tmp_path / "weights.pth"
    torch.save(state, path)
    with pytest.raises(InputError) as caught:
        read_weights(path, 0)
    (code,) = re.findall(r'python -c "(.*)"', str(caught.value))
    subprocess.run([sys.executable, "-c", code.replace("FILE", str(path))], check=True)
    assert same(read_weights(tmp_path / "weights.pth.safetensors", 10**6), state)


def sparse(_: dict[str, Tensor], path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


def pipe(_: dict[str, Tensor], path: Path) -> None:
    os.mkfifo(path)


def with_first(change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], Path], None]:
    """The same weights, but for the first."""
    return lambda state, path: save_file({**state, "conv1.0.weight": change(state["conv1.0.weight"])}, path)


UNUSABLE: dict[str, Callable[[dict[str, Tensor], Path], None]] = {
    "sparse": sparse,
    "pipe": pipe,
    "folder": lambda _, path: path.mkdir(),
    "integers": with_first(lambda tensor: tensor.to(torch.int64)),
    "complex": with_first(lambda tensor: tensor.to(torch.complex64)),
    "not a number": with_first(lambda tensor: tensor * torch.nan),
    "infinite": with_first(lambda tensor: tensor / 0),
    "other names": lambda state, path: save_file({f"x.{name}": tensor for name, tensor in state.items()}, path),
    "nothing": lambda _, path: save_file({}, path),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_file_that_cannot_be_the_weights_is_refused_at_once(case: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    UNUSABLE[case](timm.create_model("test_resnet").state_dict(), path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="the pretrained weights of 'timm:test_resnet' are not available"):
        built(images(side=32), encoder="timm:test_resnet", weights=str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB


@pytest.mark.parametrize(
    "store",
    [
        lambda state, path: save_file({name: tensor.bfloat16() for name, tensor in state.items()}, path),
        lambda state, path: save_file({f"module.{name}": tensor for name, tensor in state.items()}, path),
    ],
    ids=["short numbers", "of parallel training"],
)
def test_weights_are_found_as_others_store_them(
    store: Callable[[dict[str, Tensor], Path], None], tmp_path: Path
) -> None:
    state, file, link = (
        timm.create_model("test_resnet").state_dict(),
        tmp_path / "blob",
        tmp_path / "weights.safetensors",
    )
    store(state, file)
    link.symlink_to(file)  # as in the cache of the hub
    kept = built(images(side=32), encoder="timm:test_resnet", weights=str(link)).encoder.state_dict()
    assert_close(kept["conv1.0.weight"], state["conv1.0.weight"], atol=1e-2, rtol=1e-2)


def test_the_weights_do_not_stay_with_the_model_twice(weights: tuple[Path, dict[str, Tensor]]) -> None:
    model = built(images(side=32), encoder="timm:test_resnet", weights=str(weights[0]))
    assert "state_dict" not in model.encoder.pretrained_cfg


def test_a_transformer_takes_images_of_another_size_and_is_loaded_with_it(tmp_path: Path) -> None:
    pixels = images(side=32)
    model = built(pixels, encoder="timm:vit_tiny_patch16_224").eval()
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    inputs = model.transform(pixels.pixels)
    assert model.encode(inputs).shape == (6, 192)
    assert_close(loaded.encode(inputs), model.encode(inputs), atol=0, rtol=0)


def test_an_unknown_encoder_is_refused() -> None:
    with pytest.raises(InputError, match="encoder 'resnet19' is not known"):
        built(encoder="resnet19")
    with pytest.raises(InputError, match="timm has no model 'resnet19'"):
        size_for(Settings(encoder="timm:resnet19"))


@pytest.mark.parametrize("name", encoders.names())
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "standard"])
def test_our_own_encoders_are_wrapped_as_any_other(name: str, variant: str) -> None:
    options = {} if variant == "standard" else {"head": "linear", "project": 5}
    torch.manual_seed(3)
    quick = wrap_own(encoders.create(name, 4), variant, (3, 32, 32), **options)
    torch.manual_seed(3)
    plain = wrap(encoders.create(name, 4), variant, example=torch.zeros(2, 3, 32, 32), **options)
    assert_close(quick.state_dict(), plain.state_dict(), atol=0, rtol=0)
    assert (quick.origin, quick.layer_settings(), quick.training) == (
        plain.origin,
        plain.layer_settings(),
        plain.training,
    )
