"""Saved models from strangers: nothing runs, nothing is fetched, and nothing is built larger than its weights."""

import copy
import json
import os
import pickle
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import memwrap
from memwrap import LoadError, MemoryClassifier, encoders
from memwrap.models.architectures import Architecture, build
from memwrap.storage import checkpoint
from tests.sealing import edit, seal

VIT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32}
LARGEST_GROWTH = 2**29  # bytes: what a refused model may cost


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model, to be changed."""
    path = tmp_path / "saved"
    memwrap.wrap(encoders.create("tiny", 4)).save(path)
    return path


def describe_as(folder: Path, source: str, name: str, arguments: dict[str, Any]) -> None:
    description = {"source": source, "name": name, "arguments": arguments}
    edit(folder / "model.json", ["classifier", "architecture"], description)


def check_refused(folder: Path) -> None:
    """Loading fails, and not as a hash is wrong."""
    checkpoint.read_manifest(folder)
    with pytest.raises(LoadError):
        memwrap.load(folder)


class Malicious:
    """A pickle of it creates a file when it is read."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return open, (str(self.flag), "w")


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every attempt to reach another machine; none succeeds."""
    seen: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        seen.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # a client of the hub would try again and again
    return seen


def wrapped_timm(**arguments: Any) -> dict[str, Any]:
    """The configuration of a model of transformers that has one of timm in it."""
    text = {"model_type": "gemma3_text", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32, "vocab_size": 300}
    return {"vision_config": {"model_type": "timm_wrapper", **arguments}, "text_config": text}


def test_a_checkpoint_named_in_a_nested_configuration_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, file = tmp_path / "ran", tmp_path / "weights.pth"
    torch.save({"state_dict": Malicious(flag)}, file)
    # timm read checkpoints this way up to version 1.0.25.
    monkeypatch.setattr(timm.models._factory, "load_checkpoint", lambda _, path: torch.load(path, weights_only=False))
    arguments = wrapped_timm(architecture="resnet18", model_args={"checkpoint_path": str(file)})
    describe_as(folder, "transformers", "ShieldGemma2ForImageClassification", arguments)
    check_refused(folder)
    assert not flag.exists()


@pytest.mark.parametrize("architecture", ["hf-hub:someone/model", "hf_hub:someone/model"])
def test_a_hub_named_in_a_nested_configuration_is_not_asked(
    architecture: str, folder: Path, attempts: list[object]
) -> None:
    describe_as(folder, "transformers", "ShieldGemma2ForImageClassification", wrapped_timm(architecture=architecture))
    check_refused(folder)
    assert attempts == []


def small_clip(**vision: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return {"vision_config": {"image_size": 32, **sizes, **vision}, "text_config": sizes}


STRANGE: list[tuple[str, str, dict[str, Any]]] = [
    ("os", "system", {}),
    ("torchvision", "os.system", {}),
    ("torchvision", "resnet18", {"weights": "DEFAULT"}),
    ("torchvision", "resnet18", {"num_classes": "10"}),
    ("torchvision", "resnet18", {"num_classes": True}),
    ("transformers", "pipeline", {}),
    ("transformers", "GPT2LMHeadModel", {}),
    ("transformers", "AutoModelForImageClassification", {}),
    ("transformers", "TimmWrapperForImageClassification", {"architecture": "resnet18"}),
    ("transformers", "ShieldGemma2ForImageClassification", {}),
    ("transformers", "ViTForImageClassification", {"attn_implementation": "someone/kernels"}),
    ("transformers", "ViTForImageClassification", {"_attn_implementation_internal": "someone/kernels"}),
    ("transformers", "ViTForImageClassification", {"quantization_config": {"load_in_4bit": True}}),
    ("transformers", "ViTForImageClassification", {"auto_map": {"AutoConfig": "someone/model--code.Config"}}),
    ("transformers", "ViTForImageClassification", {"trust_remote_code": True}),
    ("transformers", "ViTForImageClassification", {"backbone": "resnet18", "use_timm_backbone": True}),
    ("transformers", "ViTForImageClassification", {"backbone_config": {"model_type": "timm_backbone"}}),
    ("transformers", "ViTForImageClassification", {"unknown": {"checkpoint": "x"}}),
    ("transformers", "ViTForImageClassification", {"model_type": "timm_wrapper"}),
    ("transformers", "ViTForImageClassification", {"hidden_act": {"checkpoint_path": "x"}}),
    ("transformers", "ViTForImageClassification", {"hidden_act": "hf-hub:someone/model"}),
    ("transformers", "ViTForImageClassification", {"hidden_act": "../x"}),
    ("transformers", "ViTForImageClassification", {"id2label": {"0": {"x": 1}}}),
    ("transformers", "ViTForImageClassification", {"image_size": [[[[[[[[32]]]]]]]]}),
    ("transformers", "CLIPForImageClassification", small_clip(model_type="timm_wrapper")),
    ("transformers", "CLIPForImageClassification", small_clip(checkpoint_path="x")),
    ("transformers", "CLIPForImageClassification", small_clip(_attn_implementation="someone/kernels")),
    ("transformers", "CLIPForImageClassification", small_clip(hidden_act={"x": 1})),
    ("encoders", "os.system", {"num_classes": 2}),
    ("encoders", "tiny", {"num_classes": 2, "checkpoint_path": "x"}),
    ("encoders", "timm:hf-hub:someone/model", {"num_classes": 2}),
    ("encoders", "timm:local-dir:/tmp", {"num_classes": 2}),
    ("encoders", "timm:resnet18.hf-hub:someone/model", {"num_classes": 2}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "pretrained": True}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "pretrained_cfg": {"file": "x"}}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "pretrained_cfg_overlay": {"url": "https://x"}}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "cache_dir": "x"}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "features_only": True}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "no_jit": True}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "model_name": "hf-hub:someone/model"}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "pruned": True}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "block_args": {"x": 1}}),
    ("encoders", "timm:resnet18", {"num_classes": 2, "act_layer": "../x"}),
    ("encoders", "timm:vit_tiny_patch16_224", {"num_classes": 2, "device": "meta"}),
]


@pytest.mark.parametrize(("source", "name", "arguments"), STRANGE)
def test_only_known_names_and_plain_arguments_are_built(
    source: str, name: str, arguments: dict[str, Any], attempts: list[object]
) -> None:
    with pytest.raises(LoadError):
        build(Architecture(source, name, arguments))
    assert attempts == []


def test_what_a_network_does_not_compute_with_is_left_out() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    names = {"_name_or_path": "someone/model", "architectures": ["x/y"], "dtype": "load", "torch_dtype": "load"}
    unknown = {"path_norm": True, "finetuning_task": "x/y"}  # as published configurations have them
    arguments = {**sizes, **names, **unknown, "image_size": 32, "id2label": {"0": "a/b: c", "1": "d"}, "label2id": {}}
    classifier: Any = build(Architecture("transformers", "ViTForImageClassification", arguments))
    assert classifier.config.name_or_path == ""
    assert classifier.config.dtype in (None, torch.float32)
    assert classifier(torch.zeros(1, 3, 32, 32)).logits.shape == (1, 2)


@pytest.mark.parametrize(
    "act",
    [
        lambda _: socket.create_connection(("127.0.0.1", 9)),
        lambda _: socket.getaddrinfo("localhost", 80),
        lambda _: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
        lambda flag: pickle.loads(pickle.dumps(Malicious(flag))),
        lambda flag: subprocess.run(["touch", str(flag)], check=True),
        lambda flag: os.system(f"touch '{flag}'"),
        pytest.param(
            lambda flag: threading.Thread(target=flag.touch).start(),
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 tells no hook of new threads"),
        ),
    ],
    ids=["connect", "look up", "send", "pickle", "process", "shell", "thread"],
)
def test_building_may_do_nothing_but_arithmetic(
    act: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a library would, by an argument that is not known here to make it."""
    flag, reached = tmp_path / "ran", []

    def create_model(*_: object, **__: object) -> nn.Module:
        reached.append(True)
        try:
            act(flag)
        except OSError as error:  # as of a network that is not there
            raise AssertionError from error
        return nn.Linear(2, 2)

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(LoadError) as caught:
        build(Architecture("encoders", "timm:resnet18", {"num_classes": 2}))
    assert reached
    assert isinstance(caught.value.__cause__, LoadError)
    assert not flag.exists()
    assert pickle.loads(pickle.dumps(Path("x"))) == Path("x")  # once it is built, all is as before


def test_other_threads_are_not_hindered() -> None:
    """Only the thread that builds is."""
    from memwrap.models.confinement import limit_size, only_arithmetic

    results: list[object] = []

    def elsewhere() -> None:
        results.append(pickle.loads(pickle.dumps(Path("x"))))
        results.append(nn.Sequential(*(nn.Linear(2**12, 2**12, device="meta") for _ in range(8))))

    other = threading.Thread(target=lambda: (started.wait(), elsewhere(), done.set()))
    started, done = threading.Event(), threading.Event()
    other.start()
    with limit_size(0), only_arithmetic():
        started.set()
        assert done.wait(60)
    other.join()
    assert results[0] == Path("x")
    assert len(results) == 2


def test_loading_does_not_import_the_compiler(folder: Path) -> None:
    """torch wraps what sees every operation so that its first call would: a second or two for each command."""
    code = "import sys, memwrap; memwrap.load(sys.argv[1]); sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)


def test_models_are_loaded_in_several_threads_at_once(folder: Path) -> None:
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(memwrap.load, [folder] * 8))
    states = [model.state_dict() for model in models]
    assert all(torch.equal(state[name], states[0][name]) for state in states for name in states[0])
    assert before == constants.HF_HUB_OFFLINE


THREADS = f"""
from concurrent.futures import ThreadPoolExecutor
from memwrap.models.architectures import Architecture, build
classifiers = [
    Architecture("torchvision", "resnet18", {{}}),
    Architecture("encoders", "timm:resnet18", {{"num_classes": 2}}),
    Architecture("transformers", "ViTForImageClassification", {VIT}),
]
with ThreadPoolExecutor(6) as pool:
    list(pool.map(build, classifiers * 2))
"""


def test_models_of_several_libraries_are_built_at_once_in_a_new_process() -> None:
    """The libraries import each other, and a thread must not meet one that another thread has half imported."""
    for _ in range(2):  # as threads differ in who comes first
        subprocess.run([sys.executable, "-c", THREADS], check=True)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


LARGE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "classes": ("encoders", "tiny", {"num_classes": 10**6, "channels": 3}),
    "classes of more than any": ("encoders", "tiny", {"num_classes": 10**12, "channels": 3}),
    "classes of more than a float": ("encoders", "tiny", {"num_classes": 10**400, "channels": 3}),
    "channels": ("encoders", "resnet18", {"num_classes": 2, "channels": 10**6}),
    "channels of timm": ("encoders", "timm:resnet18", {"num_classes": 2, "channels": 10**5}),
    "a width": ("encoders", "timm:vit_tiny_patch16_224", {"num_classes": 2, "channels": 3, "embed_dim": 6144}),
    "a depth": ("encoders", "timm:vit_tiny_patch16_224", {"num_classes": 2, "channels": 3, "depth": 3000}),
    "an image": ("encoders", "timm:vit_tiny_patch16_224", {"num_classes": 2, "channels": 3, "img_size": 20000}),
    "a ratio": ("encoders", "timm:vit_tiny_patch16_224", {"num_classes": 2, "channels": 3, "mlp_ratio": 1e5}),
    "blocks": ("encoders", "timm:resnet18", {"num_classes": 2, "channels": 3, "layers": [1, 1, 1, 200]}),
    "classes of torchvision": ("torchvision", "resnet18", {"num_classes": 10**6}),
    "a width of transformers": ("transformers", "ViTForImageClassification", {**VIT, "intermediate_size": 2**20 * 8}),
    "an image of transformers": ("transformers", "ViTForImageClassification", {**VIT, "image_size": 60000}),
    "a depth of transformers": ("transformers", "ViTForImageClassification", {**VIT, "num_hidden_layers": 10**5}),
    "a list": ("transformers", "SwinForImageClassification", {"depths": [1] * 10**5}),
    "a list of stages": ("transformers", "ResNetForImageClassification", {"hidden_sizes": [2**14] * 4}),
    "not finite": ("transformers", "ViTForImageClassification", {**VIT, "layer_norm_eps": float("inf")}),
    # All pairs of places of an image, listed by Python.
    "places": ("transformers", "LevitForImageClassification", {"image_size": 2**20}),
}


@pytest.mark.parametrize("case", LARGE)
def test_a_network_larger_than_its_weights_is_refused_before_memory_is_taken(case: str, folder: Path) -> None:
    describe_as(folder, *LARGE[case])
    before, start = peak(), time.monotonic()
    check_refused(folder)
    assert peak() - before < LARGEST_GROWTH
    assert time.monotonic() - start < 60


def test_a_network_that_python_builds_for_minutes_is_interrupted(folder: Path) -> None:
    """By millions of pairs of places, which are no tensors."""
    describe_as(folder, "transformers", "LevitForImageClassification", {"image_size": 2000})
    before, start = peak(), time.thread_time()
    check_refused(folder)
    assert peak() - before < 2**31
    assert time.thread_time() - start < 40


def run_long(seconds: float) -> int:
    """Pure Python, which catches what interrupts it."""
    caught, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            sum(number for number in range(10**4))
        except LoadError:
            caught += 1
    return caught


def test_only_what_takes_too_long_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    from memwrap.models import confinement

    monkeypatch.setattr(confinement, "MAX_SECONDS", 0.5)
    for _ in range(20):
        with confinement.limit_size(0):
            run_long(0.005)
    with confinement.limit_size(10 * confinement.WEIGHTS_A_SECOND):
        assert run_long(1) == 0
    with confinement.limit_size(0):
        assert run_long(4) >= 2
    assert run_long(1) == 0  # not interrupted afterwards


def test_python_objects_that_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from memwrap.models import confinement

    monkeypatch.setattr(confinement, "SPARE_ELEMENTS", 0)
    monkeypatch.setattr(confinement, "SPARE_BYTES", 2**27)
    before = peak()
    with confinement.limit_size(0), pytest.raises(LoadError):
        [[number] for number in range(10**8)]
    assert peak() - before < 2**29


def test_many_modules_without_weights_are_refused() -> None:
    from memwrap.models.confinement import MAX_MODULES, limit_size

    with limit_size(0):
        nn.Sequential(*(nn.Identity() for _ in range(MAX_MODULES // 2)))
    with limit_size(0), pytest.raises(LoadError):
        nn.Sequential(*(nn.Identity() for _ in range(MAX_MODULES + 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2**26),
        lambda: torch.arange(2**26),
        lambda: torch.linspace(0, 1, 2**26),
        lambda: torch.ones(2**13)[:, None] * torch.ones(2**13),
        lambda: torch.ones(1).expand(2**26).clone(),
        lambda: torch.ones(2).repeat(2**25),
        lambda: torch.empty(0).resize_(2**26),
        lambda: [torch.empty(2**22) for _ in range(20)],
        lambda: nn.Parameter(torch.empty(2, 2**25)),
    ],
)
def test_every_way_to_a_large_tensor_is_counted(make: Callable[[], object]) -> None:
    from memwrap.models.confinement import limit_size

    before = peak()
    with limit_size(0), pytest.raises(LoadError):
        make()
    assert peak() - before < 2**28


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["classifier", "num_classes"], 10**12),
        (["classifier", "num_classes"], 0),
        (["classifier", "image_shape"], [3, 10**6, 10**6]),
        (["classifier", "image_shape"], [3, 16000, 16000]),
        (["classifier", "image_shape"], [0, 8, 8]),
        (["classifier", "layer"], "x" * 2000),
        (["classifier", "layer"], "__class__"),
        (["classifier", "layer"], "head.__init__"),
        (["classifier", "layer"], ""),
        (["classifier", "class"], "x" * 10**6),
        (["layer", "in_features"], 10**12),
        (["layer", "in_features"], 2**15),
        (["layer", "num_classes"], 2**20),
        (["layer", "num_classes"], 10**30),
        (["layer", "num_classes"], 10**400),
        (["layer", "project"], 2**20),
        (["layer", "scale"], "1"),
        (["transform"], {"shape": [3, 10**6, 10**6], "mean": [0.5] * 3, "std": [0.5] * 3, "fit": "crop"}),
        (["frozen"], ["__class__"]),
        (["frozen"], ["layer.head"]),
        (["frozen"], ["x" * 10**6]),
        (["state_versions"], {"encoder": "2"}),
        (["state_versions"], {"encoder": [1]}),
        (["classes"], ["x" * 10**6]),
    ],
)
def test_sizes_and_names_out_of_bounds_are_refused(path: list[str], value: object, folder: Path) -> None:
    edit(folder / "model.json", path, value)
    before = peak()
    check_refused(folder)
    assert peak() - before < LARGEST_GROWTH


def rewrite(folder: Path, part: str, change_tensor: Callable[[str, Tensor], Tensor]) -> None:
    """Replace the tensors of one file, with hashes that fit."""
    settings, parts = checkpoint.read(folder)
    parts[part] = {name: change_tensor(name, tensor) for name, tensor in parts[part].items()}
    checkpoint.write(folder, settings, parts)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize("part", ["weights", "probe", "memory"])
def test_weights_of_another_kind_of_number_are_refused(part: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = memwrap.wrap(encoders.create("tiny", 4)).eval()
    model.remember(torch.randn(4, *model.origin.image_shape), [0, 1, 2, 3])
    model.save(tmp_path)
    rewrite(tmp_path, part, lambda _, tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    with pytest.raises(LoadError):
        memwrap.load(tmp_path)


def test_a_checkpoint_without_a_probe_refuses_integers_too(tmp_path: Path) -> None:
    model: MemoryClassifier = memwrap.wrap(encoders.create("tiny", 4))
    settings, parts = model.pack(probe=False)
    parts["weights"] = {name: tensor.to(torch.int64) for name, tensor in parts["weights"].items()}
    checkpoint.write(tmp_path, settings, {**parts, "optimizer": {"x": torch.zeros(1)}})
    with pytest.raises(LoadError):
        memwrap.load(tmp_path)


VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 7, 10**4, 2**20, 2**31, 10**12, 10**40, -0.5, 1e300, float("inf"), float("nan"), "", "x",
    "hf-hub:a/b", "../x", "x" * 5000, [], [[]], [1, 2], [-1], ["x"], [[1, [2]]], {}, {"x": 1}, {"x": {"y": []}},
)  # fmt: skip
DESCRIBED: list[tuple[str, str, dict[str, Any]]] = [
    ("encoders", "tiny", {"num_classes": 4, "channels": 3}),
    ("encoders", "timm:test_vit", {"num_classes": 4, "channels": 3, "img_size": 32, "depth": 1, "qk_norm": True}),
    ("encoders", "timm:test_resnet", {"num_classes": 4, "channels": 3, "drop_path_rate": 0.1, "act_layer": "silu"}),
    ("torchvision", "shufflenet_v2_x0_5", {"num_classes": 4}),
    ("transformers", "ViTForImageClassification", VIT),
    ("transformers", "CLIPForImageClassification", small_clip()),
    ("transformers", "ResNetForImageClassification", {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8}),
]


def mutate(manifest: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Another value at a few places of the manifest, or another key."""
    manifest = copy.deepcopy(manifest)
    for _ in range(draw.randint(1, 3)):
        place: Any = manifest
        if isinstance(manifest["classifier"], dict) and manifest["classifier"] and draw.random() < 0.75:
            place = manifest["classifier"]
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw.choice([*keys, "new"] if isinstance(place, dict) else keys)
            deeper = place[key] if key in keys else None
            if isinstance(deeper, dict | list) and deeper and draw.random() < 0.8:
                place = deeper
                continue
            if key != "files":
                place[key] = draw.choice(VALUES)
            break
    return manifest


def test_a_mutated_description_loads_or_is_refused_in_words(folder: Path, attempts: list[object]) -> None:
    count = int(os.environ.get("MEMWRAP_MUTATIONS", "60"))
    content, draw, before = json.loads((folder / "model.json").read_text()), random.Random(0), peak()
    for number in range(count):
        source, name, arguments = DESCRIBED[number % len(DESCRIBED)]
        content["classifier"]["architecture"] = {"source": source, "name": name, "arguments": arguments}
        mutated = mutate(content, draw)
        (folder / "model.json").write_text(json.dumps(mutated))
        seal(folder)
        start = time.monotonic()
        try:
            memwrap.load(folder)
        except LoadError:
            pass
        except Exception as error:
            raise AssertionError(f"mutation {number}: {json.dumps(mutated)[:3000]}") from error
        assert time.monotonic() - start < 60, mutated
    assert attempts == []
    assert peak() - before < 2 * LARGEST_GROWTH
