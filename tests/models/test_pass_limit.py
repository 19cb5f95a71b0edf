"""A pass of a stranger's model: refused before an operation takes gigabytes or minutes, and otherwise as it was."""

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import memwrap
from memwrap.errors import LoadError
from memwrap.models import pass_limit
from memwrap.models.pass_limit import PassLimit
from tests.sealing import edit


def attend(tokens: int) -> torch.Tensor:
    query = torch.zeros(1, 1, tokens, 8)
    return scaled_dot_product_attention(query, query, query)


@pytest.mark.parametrize(
    "act",
    [
        lambda: torch.zeros(2**14, 1) @ torch.zeros(1, 2**14),
        lambda: nn.Conv2d(1, 4096, 3)(torch.zeros(1, 1, 512, 512)),
        lambda: torch.zeros(2**14, 1) + torch.zeros(2**14),
        lambda: torch.zeros(16).repeat(2**24),
        lambda: torch.zeros(2**28),
        lambda: attend(2**17),
        lambda: torch.nn.functional.pad(torch.zeros(1, 1, 2), (2**28, 0)),
    ],
)
def test_an_operation_that_takes_too_much_is_not_done(act: object) -> None:
    started = time.thread_time()
    with torch.no_grad(), PassLimit(), pytest.raises(LoadError, match="allowed are"):
        act()  # type: ignore[operator]
    assert time.thread_time() - started < 5


def test_a_pass_of_many_small_operations_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_limit, "MOST_SECONDS", 0.2)
    numbers = torch.zeros(1000)
    with PassLimit(), pytest.raises(LoadError, match="seconds"):
        sum(itertools.repeat(numbers))


def test_an_honest_pass_gives_the_same() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        expected = encoder(images)
        with PassLimit():
            assert_close(encoder(images), expected, rtol=0, atol=0)


def test_images_of_a_size_that_takes_gigabytes_are_refused_on_load(tmp_path: Path) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3)).eval()
    model.transform = memwrap.Transform((3, 32, 32), (0.5,) * 3, (0.5,) * 3)
    model.save(tmp_path)
    memwrap.load(tmp_path)
    edit(tmp_path / "model.json", ["transform", "shape"], [3, 4000, 4000])
    with pytest.raises(LoadError, match="numbers at once"):
        memwrap.load(tmp_path)


def test_a_probe_of_a_size_that_takes_gigabytes_is_refused(tmp_path: Path) -> None:
    memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3)).save(tmp_path)
    (file,) = tmp_path.glob("probe.*")
    probe = load_file(file)
    probe |= {"images": torch.zeros(2, 3, 2048, 2048), "memory": torch.zeros(3, 3, 2048, 2048)}
    save_file(probe, file)
    edit(tmp_path / "model.json", ["classifier", "image_shape"], [3, 2048, 2048])
    with pytest.raises(LoadError, match="numbers at once"):
        memwrap.load(tmp_path)


def test_a_classifier_that_is_given_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3)).save(tmp_path)
    monkeypatch.setattr(pass_limit, "MOST_RESULT", 1)
    with pytest.raises(LoadError):
        memwrap.load(tmp_path)
    memwrap.load(tmp_path, classifier=memwrap.encoders.create("tiny", num_classes=3))


def test_loading_does_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3)).eval()
    model.remember(torch.randn(5, 3, 32, 32), [0, 1, 2, 0, 1])
    model.save(tmp_path)
    code = f"import sys, memwrap; memwrap.load({str(tmp_path)!r}); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
