"""Many images through a trained model: the same as a few at a time, and nothing of the model is changed."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import memwrap
from memwrap.data import InMemoryImages, LabelledImages, RandomMemory, Transform
from memwrap.errors import SettingsError
from memwrap.models.caching import CachedEncoder
from memwrap.models.inference import accuracy_with_drawn_memory, encode_all, remember
from memwrap.models.loading import Model
from memwrap.nn.modes import evaluation_mode
from tests import networks

COUNT = 11


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randint(256, (COUNT, 3, 8, 8), dtype=torch.uint8)


def new_model(variant: str = "memory_wrap") -> Model:
    """With dropout, and in training mode but for its batch normalisation."""
    model = memwrap.wrap(networks.Plain().train(), variant)
    model.encoder.body[1].eval()
    model.transform = Transform((3, 8, 8), (0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
    return model


def labelled(pixels: torch.Tensor) -> LabelledImages:
    return LabelledImages(InMemoryImages(pixels), torch.arange(len(pixels)) % networks.CLASSES, ("",) * len(pixels))


@pytest.mark.parametrize("at_once", [1, 4, 11, 256])
def test_images_are_encoded_in_evaluation_mode_however_many_at_once(pixels: torch.Tensor, at_once: int) -> None:
    model = new_model()
    encodings = encode_all(model, InMemoryImages(pixels), at_once)
    assert encodings.shape == (COUNT, 6)
    model.eval()
    assert_close(encodings, torch.cat([model.encode(model.transform(image[None])) for image in pixels]).detach())


def test_modes_weights_and_statistics_stay_as_they_were(pixels: torch.Tensor) -> None:
    model = new_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    encode_all(model, InMemoryImages(pixels))
    labels = torch.arange(COUNT) % networks.CLASSES
    remember(model, LabelledImages(InMemoryImages(pixels), labels, tuple(map(str, range(COUNT)))))
    accuracy_with_drawn_memory(model, labelled(pixels), labelled(pixels), 5, torch.Generator())
    assert {name: model.get_submodule(name).training for name in modes} == modes
    assert_close(model.state_dict(), before, atol=0, rtol=0)


def test_encodings_are_exact_under_autocast_and_can_be_trained_on_afterwards(pixels: torch.Tensor) -> None:
    model = new_model()
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        encodings = encode_all(model, InMemoryImages(pixels))
    assert_close(encodings, encode_all(model, InMemoryImages(pixels)), atol=0, rtol=0)
    assert not encodings.requires_grad
    assert not encodings.is_inference()


@pytest.mark.parametrize("cached", [False, True])
def test_reduced_precision_is_off_while_images_are_encoded(pixels: torch.Tensor, cached: bool, tmp_path: Path) -> None:
    model, before = new_model(), torch.backends.mkldnn.conv.fp32_precision
    seen = []
    model.encoder.register_forward_hook(lambda *_: seen.append(torch.backends.mkldnn.conv.fp32_precision))
    try:
        torch.backends.mkldnn.conv.fp32_precision = "tf32"
        (CachedEncoder(model, tmp_path).encode if cached else partial(encode_all, model))(InMemoryImages(pixels))
        assert set(seen) == {"ieee"}
        assert torch.backends.mkldnn.conv.fp32_precision == "tf32"
    finally:
        torch.backends.mkldnn.conv.fp32_precision = before


def test_a_remembered_memory_is_the_pixels_with_labels_and_names(pixels: torch.Tensor) -> None:
    model, labels = new_model(), torch.arange(COUNT) % networks.CLASSES
    names = tuple(map(str, range(COUNT)))
    remember(model, LabelledImages(InMemoryImages(pixels), labels, names))
    assert_close(model.remembered.images, pixels)
    rows = torch.tensor([7, 2])
    assert_close(model.remembered.inputs(rows, model.get_transform), model.transform(pixels[rows]), atol=0, rtol=0)
    assert_close(model.remembered.encodings, encode_all(model, InMemoryImages(pixels)))
    assert model.remembered.labels.tolist() == labels.tolist()
    assert model.remembered.names == names
    model.eval()
    inputs = torch.randn(4, 3, 8, 8)
    assert_close(model(inputs), model(inputs, memory=model.transform(pixels)))


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
def test_accuracy_is_that_of_the_model_called_with_the_drawn_memory(variant: str) -> None:
    model, colours = new_model(variant), torch.randint(256, (140, 3, 1, 1), dtype=torch.uint8).expand(-1, -1, 8, 8)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # large, so that predictions differ
    judged, training = colours[:100], labelled(colours[100:])
    chosen = RandomMemory(7).draw(training.labels, training.labels, torch.Generator().manual_seed(2))
    with evaluation_mode(model):
        memory = model.transform(training.images.pixels[chosen])
        predictions = [int(model(model.transform(image[None]), memory=memory).argmax()) for image in judged]
    wrong = 13  # of the labels
    labels = torch.tensor([(label + (row < wrong)) % networks.CLASSES for row, label in enumerate(predictions)])
    images = LabelledImages(InMemoryImages(judged), labels, ("",) * 100)
    found = [
        accuracy_with_drawn_memory(model, images, training, 7, torch.Generator().manual_seed(seed)) for seed in (2, 3)
    ]
    assert found[0] == (100 - wrong) / 100
    assert found[1] != found[0]  # the memory matters


def test_the_plain_classifier_s_accuracy_needs_no_memory(pixels: torch.Tensor) -> None:
    model = new_model("standard")
    nothing = labelled(pixels[:0])
    found = accuracy_with_drawn_memory(model, labelled(pixels), nothing, 100, torch.Generator())
    predictions = model.eval()(model.transform(pixels)).argmax(1)
    assert found == float((predictions == torch.arange(COUNT) % networks.CLASSES).double().mean())


def test_a_memory_larger_than_the_training_images_is_refused(pixels: torch.Tensor) -> None:
    with pytest.raises(SettingsError, match="memory_size is 12, but there are 11 training images"):
        accuracy_with_drawn_memory(new_model(), labelled(pixels), labelled(pixels), 12, torch.Generator())
