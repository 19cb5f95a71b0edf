"""The published loop, rewritten: it learns, and it computes what ours computes."""

import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from memwrap.models.classifier import MemoryClassifier
from memwrap.reproduce.bench.context import random_images
from memwrap.reproduce.bench.packages import MissingPackageError
from memwrap.reproduce.bench.published_loop import PillowImages, PublishedLoop, published_model
from memwrap.training.settings import ResolvedSettings
from memwrap.training.step import Batch, training_step
from memwrap.training.trainer import Trainer
from tests.reproduce.bench import make_context

IMAGES = 32


def settings_for(**changes: object) -> ResolvedSettings:
    return make_context(images=IMAGES, batch=8, memory=6).settings("tiny", {"variant": "memory_wrap", **changes})


def new_model(settings: ResolvedSettings) -> MemoryClassifier:
    model = make_context().model(settings)
    assert isinstance(model, MemoryClassifier)
    return model


def loop_for(settings: ResolvedSettings) -> PublishedLoop:
    model = new_model(settings)
    return PublishedLoop(published_model(model), random_images(IMAGES), settings, model.transform)


def to_pixels(indices: slice) -> Tensor:
    return torch.cat(list(random_images(IMAGES).images.batches([torch.arange(IMAGES)[indices]])))


def test_with_the_same_weights_it_gives_the_same_logits() -> None:
    model = new_model(settings_for()).eval()
    images, memory = model.transform(to_pixels(slice(0, 9))), model.transform(to_pixels(slice(9, None)))
    with torch.no_grad():
        assert_close(published_model(model).eval()(images, memory), model(images, memory))


def test_a_step_moves_the_weights_as_ours_does() -> None:
    settings = settings_for()
    ours, theirs = new_model(settings), loop_for(settings)
    optimizer = Trainer(ours, random_images(IMAGES), settings).optimizer
    labels = random_images(IMAGES).labels[:8]
    images = ours.transform(to_pixels(slice(0, 14)))
    batch = Batch(images[:8], labels, images[8:])
    ours.train(), theirs.model.train()
    for _ in range(3):
        outcome = training_step(ours, optimizer, batch)
        loss = theirs.step(images[:8], labels, images[8:])
        assert_close(loss, outcome.loss, rtol=1e-3, atol=1e-3)
    for name, weight in ours.encoder.state_dict().items():
        assert_close(theirs.model.encoder.state_dict()[name], weight, rtol=1e-2, atol=1e-3)


def test_pictures_become_what_our_models_take() -> None:
    data, transform = random_images(IMAGES), new_model(settings_for()).transform
    pictures = PillowImages(data, transform)
    assert len(pictures) == IMAGES
    images, labels = zip(*(pictures[index] for index in range(IMAGES)), strict=True)
    assert_close(torch.stack(images), transform(to_pixels(slice(None))))
    assert list(labels) == data.labels.tolist()


def test_its_loss_falls() -> None:
    losses = [loss.item() for loss in loop_for(settings_for(epochs=20)).losses()]
    assert len(losses) == 20 * (IMAGES // 8)
    assert sum(losses[-8:]) < 0.5 * sum(losses[:8])


def test_each_step_has_a_memory_of_its_own_drawn_from_the_training_images(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for(epochs=2)
    loop = loop_for(settings)
    real, memories, batches = loop.step, [], []
    known = [image for image, _ in PillowImages(random_images(IMAGES), new_model(settings).transform)]  # type: ignore[attr-defined]

    def which(images: Tensor) -> tuple[int, ...]:
        return tuple(next(i for i, image in enumerate(known) if image.equal(each)) for each in images)

    def step(images: Tensor, labels: Tensor, memory: Tensor) -> Tensor:
        memories.append(which(memory))
        batches.append(which(images))
        return real(images, labels, memory)

    monkeypatch.setattr(loop, "step", step)
    list(loop.losses())
    assert len(memories) == len(set(memories)) == 8
    assert all(len(set(memory)) == settings.memory_size for memory in memories)
    assert all(set(memory) - set(batch) for memory, batch in zip(memories, batches, strict=True)), "not the batch's own"


def test_it_sees_each_image_at_most_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_for(settings_for(epochs=1))
    real, seen = loop.step, []

    def step(images: Tensor, labels: Tensor, memory: Tensor) -> Tensor:
        seen.append(images)
        return real(images, labels, memory)

    monkeypatch.setattr(loop, "step", step)
    list(loop.losses())
    assert len(torch.cat(seen).unique(dim=0)) == IMAGES


def test_the_rate_falls_as_in_the_paper() -> None:
    loop, rates = loop_for(settings_for(epochs=4)), []
    for _ in loop.losses():
        rates.append(loop.optimizer.param_groups[0]["lr"])
    assert_close(rates[::4], [0.1, 0.1, 0.01, 0.001])


def test_it_has_the_papers_optimiser() -> None:
    group = loop_for(settings_for()).optimizer.param_groups[0]
    assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.9, 5e-4, True)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memorywrap", None)
    with pytest.raises(MissingPackageError, match="pip install memorywrap"):
        published_model(new_model(settings_for()))
