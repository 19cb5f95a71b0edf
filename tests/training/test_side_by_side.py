"""Runs trained at the same time against the same runs one after the other."""

import copy
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from memwrap import SettingsError, encoders, layer, wrap
from memwrap.data.labelled import HeldImages, LabelledImages
from memwrap.errors import DivergedError
from memwrap.loading import Model
from memwrap.recipes import recipe, settled
from memwrap.settings import SettledSettings, with_changes
from memwrap.training import side_by_side
from memwrap.training.loop import Trainer
from memwrap.training.side_by_side import SideBySide, unfit
from memwrap.transform import Transform

CLASSES = ("a", "b", "c")
ROUNDED: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-3}  # what other sums in another order may come to in a few steps
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def images(count: int, seed: int, side: int = 8) -> LabelledImages:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    pixels = torch.randint(120, (count, 3, side, side), generator=generator) + 60 * labels[:, None, None, None]
    return LabelledImages(HeldImages(pixels.to(torch.uint8)), labels, tuple(map(str, range(count))))


def settings(seed: int, **changes: object) -> SettledSettings:
    common = {
        "encoder": "tiny",
        "epochs": 3,
        "batch_size": 8,
        "memory": "random",
        "memory_size": 5,
        "seed": seed,
        "lr": 1e-3,
    }
    return settled(with_changes(recipe("default"), {**common, **changes}, "test"), 30, CLASSES)


def model(seed: int, variant: str, encoder: str = "tiny", side: int = 8) -> Model:
    torch.manual_seed(seed)
    made = wrap(encoders.create(encoder, 3), variant, example=torch.zeros(2, 3, side, side))
    made.transform = Transform((3, side, side), (0.4, 0.5, 0.6), (0.2, 0.2, 0.2))
    return made


def trainer(seed: int, count: int = 30, **changes: object) -> Trainer:
    chosen = settings(seed, **changes)
    return Trainer(model(seed, chosen.variant, chosen.encoder), images(count, seed), chosen)


def one_by_one(trainers: list[Trainer]) -> None:
    for each in trainers:
        for _ in each.moments():
            pass


def test_dropout_draws_what_it_would_have_drawn_alone() -> None:
    def dropping(seed: int, share: float) -> Trainer:
        made = trainer(seed)
        made.model.encoder.dropout.p = share
        return made

    apart, together = ([dropping(seed, 0.5) for seed in (0, 1)] for _ in range(2))
    for one in (*apart, without := dropping(0, 0.0)):
        SideBySide().train([one])
    SideBySide().train(together)
    for one, other in zip(apart, together, strict=True):
        assert_close(other.model.state_dict(), one.model.state_dict(), **ROUNDED)
    weight = "layer.head.first.weight"
    assert (without.model.state_dict()[weight] - together[0].model.state_dict()[weight]).abs().max() > 1e-5, (
        "it drops out"
    )


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "standard"])
@pytest.mark.parametrize("memory", ["random", "batch", "balanced"])
def test_runs_end_as_if_each_had_been_alone(variant: str, memory: str) -> None:
    apart, together = ([trainer(seed, variant=variant, memory=memory) for seed in (0, 1, 2)] for _ in range(2))
    one_by_one(apart)
    assert SideBySide().train(together) == [None] * 3
    for one, other in zip(apart, together, strict=True):
        assert_close(other.model.state_dict(), one.model.state_dict(), **ROUNDED)
        assert other.progress.step == one.steps


@pytest.mark.parametrize("memory", ["random", "batch"])
def test_rounding_to_bf16_is_that_of_autocast(memory: str) -> None:
    changes = {"memory": memory, "precision": "bf16", "epochs": 1, "lr": 1e-2}
    apart, together = ([trainer(seed, **changes) for seed in (0, 1)] for _ in range(2))
    start = copy.deepcopy([one.model for one in apart])
    one_by_one(apart)
    SideBySide().train(together)
    for before, one, other in zip(start, apart, together, strict=True):
        found, parameters = other.model.state_dict(), dict(before.named_parameters())
        for name, value in one.model.named_parameters():
            assert (found[name] - value).norm() < 0.1 * (value - parameters[name]).norm(), name


def test_draws_lie_on_the_device_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    apart, together = [trainer(0)], [trainer(0)]
    one_by_one(apart)
    monkeypatch.setattr(side_by_side, "STEPS_AT_ONCE", 4)
    told: list[tuple[int, int]] = []
    SideBySide().train(together, progress=lambda done, steps: told.append((done, steps)))
    assert told == [(4, 9), (8, 9), (9, 9)]
    assert_close(together[0].model.state_dict(), apart[0].model.state_dict(), **ROUNDED)


def test_a_graph_serves_later_runs_also_of_fewer_images(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, made, plain = SideBySide(), [], side_by_side._Group
    monkeypatch.setattr(side_by_side, "_Group", lambda *arguments: made.append(arguments[1]) or plain(*arguments))
    for count, seeds in ((30, (0, 1)), (22, (2, 3)), (30, (4, 5)), (40, (6, 7))):
        apart, together = ([trainer(seed, count) for seed in seeds] for _ in range(2))
        one_by_one(apart)
        engine.train(together)
        for one, other in zip(apart, together, strict=True):
            assert_close(other.model.state_dict(), one.model.state_dict(), **ROUNDED)
    assert made == [30, 40], "so many images have room"
    engine.train([trainer(0)])
    engine.train([trainer(0), trainer(1)])
    assert made == [30, 40, 30, 30], "another number of runs is another graph, and only the last is kept"


def test_a_run_that_diverges_is_told_and_leaves_the_others_alone() -> None:
    alone, together = [trainer(0)], [trainer(0), trainer(1)]
    one_by_one(alone)
    with torch.no_grad():
        together[1].model.layer.head.first.weight.fill_(torch.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "eager", lambda _: False)  # in a graph the layer cannot look for what is not finite
        failures = SideBySide().train(together)
    assert failures[0] is None
    assert isinstance(failures[1], DivergedError)
    assert "training diverged in step 1 of 9" in str(failures[1])
    assert_close(together[0].model.state_dict(), alone[0].model.state_dict(), **ROUNDED)


def test_a_stop_is_heeded_between_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "STEPS_AT_ONCE", 4)
    run = trainer(0)
    answers = iter([False, True])
    SideBySide().train([run], stop=lambda: next(answers))
    assert run.progress.step == 4


def test_runs_of_different_kinds_are_refused() -> None:
    for others in ({"lr": 0.01}, {"variant": "standard"}, {"batch_size": 4}):
        with pytest.raises(SettingsError, match="differ in the seed alone"):
            SideBySide().train([trainer(0), trainer(1, **others)])
    with pytest.raises(SettingsError, match="differ in the seed alone"):
        SideBySide().train([trainer(0), trainer(1, count=50)])


def test_what_only_the_loop_can_train_is_told() -> None:
    assert unfit(trainer(0)) is None
    assert unfit(trainer(0, optimizer="adamw")) == "its optimizer is adamw"
    assert unfit(trainer(0, freeze=True)) == "its encoder is frozen"
    begun = trainer(0)
    next(begun.moments())
    assert unfit(begun) == "it has begun already"
    with pytest.raises(SettingsError, match="cannot be trained beside others: its optimizer is adamw"):
        SideBySide().train([trainer(0, optimizer="adamw")])


@needs_gpu
@pytest.mark.parametrize("encoder", ["tiny", "mobilenet_v2", "resnet18", "googlenet"])
@pytest.mark.parametrize("memory", ["random", "batch"])
def test_a_captured_step_is_the_loops(encoder: str, memory: str) -> None:
    """In float32, two steps of a small rate: from there on, rounding takes every run its own way."""

    def made(seed: int) -> Trainer:
        sizes = {"batch_size": 32, "memory_size": 20, "epochs": 1}
        chosen = settings(seed, encoder=encoder, memory=memory, precision="fp32", warmup=0.0, **sizes)
        return Trainer(model(seed, chosen.variant, encoder, 32).cuda(), images(64, seed, 32), chosen)

    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        apart, together = ([made(seed) for seed in (0, 1)] for _ in range(2))
        start = copy.deepcopy(apart[0].model.state_dict())
        one_by_one(apart)
        assert SideBySide().train(together) == [None, None]
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    moved = {name: (value - start[name]).norm() for name, value in apart[0].model.named_parameters()}
    for name, value in together[0].model.named_parameters():
        difference = (value - apart[0].model.state_dict()[name]).norm()
        assert difference < 0.05 * moved[name] + 1e-4, name
    for one, other in zip(apart, together, strict=True):
        assert_close(other.model.state_dict(), one.model.state_dict(), atol=1e-3, rtol=1e-2)
