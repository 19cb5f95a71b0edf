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
from memwrap.errors import LoadError, SaveError
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
        lambda: torch.zeros(2**27 - 1, dtype=torch.float64),
        lambda: torch.cdist(torch.zeros(2**14, 2), torch.zeros(2**14, 2)),
        lambda: torch.arange(2).repeat_interleave(torch.tensor([2**28, 1])),
        # Windows of a million places, and a copy of the images for each place of a filter.
        lambda: nn.AvgPool2d(1001, stride=1, padding=500)(torch.zeros(1, 4, 1001, 1001)),
        lambda: nn.MaxPool2d(1001, stride=1, padding=500)(torch.zeros(1, 4, 1001, 1001)),
        lambda: nn.AvgPool1d(2**20, stride=1, padding=2**19)(torch.zeros(1, 4, 2**20)),
        # Slow kernels: of half precision, of channels in groups, and of steps one after the other.
        lambda: nn.Conv2d(64, 64, 3, dtype=torch.float16)(torch.zeros(1, 64, 512, 512, dtype=torch.float16)),
        lambda: nn.Conv2d(512, 512, 31, groups=512)(torch.zeros(1, 512, 200, 200)),
        lambda: nn.LSTM(2048, 2048)(torch.zeros(4096, 1, 2048)),
        lambda: nn.Conv2d(16, 1, 9, dtype=torch.float64)(torch.zeros(1, 16, 400, 400, dtype=torch.float64)),
    ],
)
def test_an_operation_that_takes_too_much_is_not_done(act: object) -> None:
    started = time.thread_time()
    with torch.no_grad(), PassLimit(), pytest.raises(LoadError):
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
    with pytest.raises(LoadError, match=str(pass_limit.MOST_BYTES)):
        memwrap.load(tmp_path)


def test_a_probe_of_a_size_that_takes_gigabytes_is_refused(tmp_path: Path) -> None:
    memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3)).save(tmp_path)
    (file,) = tmp_path.glob("probe.*")
    probe = load_file(file)
    probe |= {"images": torch.zeros(2, 3, 2048, 2048), "memory": torch.zeros(3, 3, 2048, 2048)}
    save_file(probe, file)
    edit(tmp_path / "model.json", ["classifier", "image_shape"], [3, 2048, 2048])
    with pytest.raises(LoadError, match=str(pass_limit.MOST_BYTES)):
        memwrap.load(tmp_path)


def test_a_model_that_could_not_be_loaded_again_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3))
    own = memwrap.wrap(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), example=torch.zeros(1, 3, 2, 2))
    monkeypatch.setattr(pass_limit, "MOST_BYTES", 1)
    with pytest.raises(SaveError):
        known.save(tmp_path)
    assert not list(tmp_path.iterdir())
    own.save(tmp_path)  # the classifier is given when it is loaded


def test_large_images_are_proved_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what one image takes is allowed, not what three take."""
    images = torch.zeros(1, 3, 64, 64)
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3), example=images).eval()
    largest = max(output.nbytes for output in outputs_of(model.encoder, images))
    monkeypatch.setattr(pass_limit, "MOST_BYTES", 2 * largest)
    model.remember(torch.randn(5, 3, 64, 64), [0, 1, 2, 0, 1])
    model.save(tmp_path)
    memwrap.load(tmp_path)


def outputs_of(encoder: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Of all modules."""
    found: list[torch.Tensor] = []
    hooks = [module.register_forward_hook(lambda *given: found.append(given[2])) for module in encoder.modules()]
    with torch.no_grad():
        encoder(images)
    for hook in hooks:
        hook.remove()
    return found


def test_a_classifier_that_is_given_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3)).save(tmp_path)
    monkeypatch.setattr(pass_limit, "MOST_BYTES", 1)
    with pytest.raises(LoadError):
        memwrap.load(tmp_path)
    memwrap.load(tmp_path, classifier=memwrap.encoders.create("tiny", num_classes=3))


def test_loading_does_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=3)).eval()
    model.remember(torch.randn(5, 3, 32, 32), [0, 1, 2, 0, 1])
    model.save(tmp_path)
    code = f"import sys, memwrap; memwrap.load({str(tmp_path)!r}); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
