"""Photographs, and a pretrained network that is small enough to encode them at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from memwrap.training.recipes import RECIPES
from memwrap.training.settings import Settings
from tests.photographs import photographs

ENCODER = "timm:test_resnet"
Quick = Callable[..., Settings]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 12 photographs of each of 3 classes, not to be changed."""
    return photographs(tmp_path_factory.mktemp("photographs") / "photos")


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights for 1000 classes, as a download gives them."""
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_file(timm.create_model("test_resnet").state_dict(), path)
    return path


@pytest.fixture(scope="session")
def quick(weights: Path) -> Quick:
    """Makes the settings for photographs, with the small network and small images; `changes` change them."""

    def make(**changes: Any) -> Settings:
        given = {"encoder": ENCODER, "weights": str(weights), "pretrained": False, "size": 48, "fit": "crop"}
        return RECIPES["photographs"].replace(**{**given, **changes})

    return make
