"""Runs trained together by the fused engine against the same runs trained by the loop."""

import copy
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from memwrap import SettingsError, encoders, wrap
from memwrap.data import InMemoryImages, LabelledImages, Transform
from memwrap.errors import DivergedError
from memwrap.fused import engine as fused_engine
from memwrap.fused.engine import FusedEngine, unsupported_reason
from memwrap.models.loading import Model
from memwrap.nn import CosineSimilarity
from memwrap.nn.precision import exact_convolutions
from memwrap.training.recipes import recipe, resolve_settings
from memwrap.training.schedule import learning_rate
from memwrap.training.settings import ResolvedSettings, with_changes
from memwrap.training.trainer import Trainer

CLASSES = ("a", "b", "c")
PLAIN = ("standard", 0.0)  # needs no queue
ROUNDED = 0.02  # share of the change of a weight: differences by the order of sums after a few steps
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def images(count: int, seed: int, side: int = 8) -> LabelledImages:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    pixels = torch.randint(120, (count, 3, side, side), generator=generator) + 60 * labels[:, None, None, None]
    return LabelledImages(InMemoryImages(pixels.to(torch.uint8)), labels, tuple(map(str, range(count))))


def settings(seed: int, **changes: object) -> ResolvedSettings:
    common = {
        "encoder": "tiny",
        "epochs": 3,
        "batch_size": 8,
        "memory": "random",
        "memory_size": 5,
        "seed": seed,
        "lr": 1e-3,
    }
    return resolve_settings(with_changes(recipe("default"), {**common, **changes}, "test"), 30, CLASSES)


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
        for _ in each.run():
            pass


def check_same(found: list[Trainer], expected: list[Trainer], start: list[Model], share: float = ROUNDED) -> None:
    """Weights and statistics are the same, up to a share of their change since the start."""
    for one, other, before in zip(found, expected, start, strict=True):
        values, began = one.model.state_dict(), before.state_dict()
        for name, value in other.model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                assert torch.equal(values[name], value), name
            else:
                moved, missed = (value - began[name]).norm(), (values[name] - value).norm()
                assert missed <= share * moved + 1e-6, (name, float(missed), float(moved))


def beginning(trainers: list[Trainer]) -> list[Model]:
    return copy.deepcopy([each.model for each in trainers])


def test_dropout_draws_the_same_alone_and_together() -> None:
    def dropping(seed: int, share: float) -> Trainer:
        made = trainer(seed)
        made.model.encoder.dropout.p = share
        return made

    apart, together = ([dropping(seed, 0.5) for seed in (0, 1)] for _ in range(2))
    start, without = beginning(apart), dropping(0, 0.0)
    for one in (*apart, without):
        FusedEngine().train([one])
    FusedEngine().train(together)
    check_same(together, apart, start)
    with pytest.raises(AssertionError):  # dropout has an effect
        check_same(together[:1], [without], start[:1])


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "standard"])
@pytest.mark.parametrize("contrast", [0.0, 0.5])
@pytest.mark.parametrize("memory", ["random", "batch", "balanced", "queue"])
def test_runs_end_as_in_the_loop(variant: str, memory: str, contrast: float) -> None:
    changes = {"variant": variant, "memory": memory, "contrast": contrast, "memory_size": 12}
    apart, together = ([trainer(seed, **changes) for seed in (0, 1, 2)] for _ in range(2))
    start = beginning(apart)
    one_by_one(apart)
    assert FusedEngine().train(together) == [None] * 3
    check_same(together, apart, start)
    assert [each.progress.step for each in together] == [each.steps for each in apart]
    for one, other in zip(together, apart, strict=True):
        assert (one.queue is None) == (other.queue is None) == (memory != "queue" or (variant, contrast) == PLAIN)
        if one.queue is not None and other.queue is not None:
            assert torch.equal(one.queue.labels, other.queue.labels)
            assert_close(one.queue.encodings, other.queue.encodings, atol=1e-2, rtol=1e-2)


def test_fifty_steps_with_a_queue_are_those_of_the_loop() -> None:
    changes = {"memory": "queue", "memory_size": 20, "contrast": 0.5, "epochs": 17}
    apart, together = ([trainer(seed, **changes) for seed in (0, 1)] for _ in range(2))
    start = beginning(apart)
    assert apart[0].steps == 51
    one_by_one(apart)
    assert FusedEngine().train(together) == [None] * 2
    check_same(together, apart, start, share=0.005)


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.0},
        {"weight_decay": 0.1},
        {"label_smoothing": 0.4},
        {"clip": 0.0},
        {"clip": 0.1},
        {"augment": ()},
        {"schedule": "constant", "warmup": 0.0},
    ],
    ids=str,
)
def test_every_setting_has_the_effect_of_the_loop(changes: dict[str, Any]) -> None:
    apart, together, others = ([trainer(seed, **own) for seed in (0, 1)] for own in (changes, changes, {}))
    start = beginning(apart)
    one_by_one(apart)
    FusedEngine().train(together)
    check_same(together, apart, start)
    FusedEngine().train(others)
    with pytest.raises(AssertionError):  # without the change it is another run
        check_same(others, apart, start)


@pytest.mark.parametrize("memory", ["random", "batch"])
def test_rounding_to_bf16_is_that_of_autocast(memory: str) -> None:
    changes = {"memory": memory, "precision": "bf16", "epochs": 1}
    apart, together = ([trainer(seed, **changes) for seed in (0, 1)] for _ in range(2))
    start = beginning(apart)
    one_by_one(apart)
    FusedEngine().train(together)
    check_same(together, apart, start, share=0.1)


def test_images_are_normalised_by_each_runs_transform() -> None:
    """Also by a graph that was captured for other runs."""
    engine = FusedEngine()
    for channel_means in ((0.4, 0.1), (0.5, 0.9)):
        apart, together = ([trainer(seed) for seed in (0, 1)] for _ in range(2))
        for trainers in (apart, together):
            for each, mean in zip(trainers, channel_means, strict=True):
                each.model.transform = Transform((3, 8, 8), (mean, 0.5, 0.6), (0.2, mean, 0.2))
        start = beginning(apart)
        one_by_one([trainer_of(each) for each in apart])
        engine.train(together)
        check_same(together, apart, start)


def trainer_of(run: Trainer) -> Trainer:
    """A Trainer of the same run, which knows how its model now normalises."""
    labels = run.plan.labels
    return Trainer(run.model, LabelledImages(run.images, labels, tuple(map(str, range(len(labels))))), run.settings)


def test_draws_are_transferred_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    apart, together = [trainer(0)], [trainer(0)]
    start = beginning(apart)
    one_by_one(apart)
    monkeypatch.setattr(fused_engine, "STEPS_PER_TRANSFER", 4)
    reported: list[tuple[int, int]] = []
    FusedEngine().train(together, progress=lambda done, steps: reported.append((done, steps)))
    assert reported == [(4, 9), (8, 9), (9, 9)]
    check_same(together, apart, start)


def test_a_graph_is_reused_for_runs_with_fewer_images(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, made, plain = FusedEngine(), [], fused_engine._RunGroup
    monkeypatch.setattr(fused_engine, "_RunGroup", lambda *arguments: made.append(arguments[1]) or plain(*arguments))
    for count, seeds in ((30, (0, 1)), (22, (2, 3)), (30, (4, 5)), (40, (6, 7))):
        apart, together = ([trainer(seed, count) for seed in seeds] for _ in range(2))
        start = beginning(apart)
        one_by_one(apart)
        engine.train(together)
        check_same(together, apart, start)
    assert made == [30, 40], "the capacity in images"
    engine.train([trainer(0)])
    engine.train([trainer(0), trainer(1)])
    assert made == [30, 40, 30, 30], "another number of runs is another graph, and only the last is kept"


def test_a_graph_is_not_reused_for_a_frozen_model() -> None:
    engine, frozen = FusedEngine(), trainer(0)
    engine.train([trainer(0)])
    frozen.model.encoder.requires_grad_(False)
    before = copy.deepcopy(dict(frozen.model.encoder.named_parameters()))
    engine.train([frozen])
    for name, value in frozen.model.encoder.named_parameters():
        assert torch.equal(value, before[name]), name


def test_a_run_that_diverges_does_not_affect_the_others() -> None:
    alone, together = [trainer(0)], [trainer(0), trainer(1)]
    start = beginning(alone)
    one_by_one(alone)
    with torch.no_grad():
        for parameter in together[1].model.parameters():
            parameter.fill_(torch.nan)
    failures = FusedEngine().train(together)
    assert failures[0] is None
    assert isinstance(failures[1], DivergedError)
    rate = learning_rate(together[1].settings, 0, together[1].plan.steps_per_epoch)
    assert f"training diverged in step 1 of 9 (epoch 1) at learning rate {rate:.3g}: the loss is nan" in str(
        failures[1]
    )
    check_same(together[:1], alone, start)


def test_training_stops_between_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_engine, "STEPS_PER_TRANSFER", 4)
    run = trainer(0)
    answers = iter([False, True])
    FusedEngine().train([run], stop=lambda: next(answers))
    assert run.progress.step == 4


def test_runs_with_different_layers_are_refused() -> None:
    """Though their settings are equal: a trainer takes any model."""
    first, second = trainer(0), trainer(1)
    second.model.layer.similarity = CosineSimilarity(16.0)
    with pytest.raises(SettingsError, match="differ in the seed alone"):
        FusedEngine().train([first, second])


def test_runs_with_different_settings_are_refused() -> None:
    for others in ({"lr": 0.01}, {"variant": "standard"}, {"batch_size": 4}):
        with pytest.raises(SettingsError, match="differ in the seed alone"):
            FusedEngine().train([trainer(0), trainer(1, **others)])
    with pytest.raises(SettingsError, match="differ in the seed alone"):
        FusedEngine().train([trainer(0), trainer(1, count=50)])


def test_unsupported_runs_are_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unsupported_reason(trainer(0)) is None
    assert unsupported_reason(trainer(0, optimizer="adamw")) == "its optimizer is adamw"
    assert unsupported_reason(trainer(0, freeze=True)) == "its encoder is frozen"
    begun = trainer(0)
    next(begun.run())
    assert unsupported_reason(begun) == "it has begun already"
    without_triton = trainer(0)
    without_triton.device = torch.device("cuda")
    monkeypatch.setattr("memwrap.nn.gpu.kernels_run_on", lambda _: False)
    assert "Triton is missing" in str(unsupported_reason(without_triton))
    with pytest.raises(SettingsError, match="its optimizer is adamw"):
        FusedEngine().train([trainer(0, optimizer="adamw")])


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("encoder", ["tiny", "mobilenet_v2", "resnet18", "efficientnet_b0"])
@pytest.mark.parametrize("memory", ["random", "batch"])
def test_a_captured_step_equals_that_of_the_loop(encoder: str, memory: str, precision: str) -> None:
    """Both against the loop in double precision, after two steps with a small rate: then small differences grow."""

    def made(seed: int, precision: str) -> Trainer:
        sizes = {"batch_size": 32, "memory_size": 20, "epochs": 1, "lr": 1e-2}
        chosen = settings(seed, encoder=encoder, memory=memory, precision=precision, warmup=0.0, clip=0.0, **sizes)
        own = model(seed, chosen.variant, encoder, 32).cuda()
        own.encoder.dropout.p = 0.0  # it draws other values
        return Trainer(own, images(64, seed, 32), chosen)

    apart, together = ([made(seed, precision) for seed in (0, 1)] for _ in range(2))
    exact = [made(seed, "fp32") for seed in (0, 1)]
    for each in exact:
        each.model.double()
        each.model.encoder.register_forward_pre_hook(lambda _, inputs: inputs[0].double())
    start = beginning(exact)
    with exact_convolutions(torch.zeros(1, device="cuda")):
        one_by_one(apart)
        one_by_one(exact)
        assert FusedEngine().train(together) == [None, None]
    check_as_exact(together, apart, exact, start)


def check_as_exact(found: list[Trainer], loop: list[Trainer], exact: list[Trainer], start: list[Model]) -> None:
    """Every value is about as close to the exact one as the loop's is, or differs by a small share of its change."""
    for one, other, wanted, before in zip(found, loop, exact, start, strict=True):
        values, of_loop, began = one.model.state_dict(), other.model.state_dict(), before.state_dict()
        for name, value in wanted.model.state_dict().items():
            missed, by_loop = ((each[name].double() - value).norm() for each in (values, of_loop))
            moved = (value - began[name]).double().norm()
            assert missed <= 3 * by_loop + ROUNDED * moved + 1e-6, (name, float(missed), float(by_loop), float(moved))
