"""Training from the first step to the last: the same by the same seed, wherever it is stopped and images come from."""

import dataclasses
import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.testing import assert_close

from memwrap import encoders
from memwrap.data import BalancedMemory, LabelledImages, RandomMemory, StreamedImages, read_folder
from memwrap.data.streaming import ENOUGH_FOR_WORKERS
from memwrap.errors import InputError, SettingsError, TrainingError
from memwrap.models.loading import Model
from memwrap.training import Trainer, augmentation
from memwrap.training import trainer as trainer_module
from memwrap.training.plan import BatchPlan
from memwrap.training.schedule import learning_rate
from memwrap.training.state import optimizer_tensors, restore_optimizer
from memwrap.training.step import Batch, StepOutput, training_step
from memwrap.training.trainer import EpochMetrics, Progress, StepMetrics, layout_on_gpus, optimizer_for, precision_on
from tests.training.toys import IMAGES, same_weights, toy_data, toy_model, toy_settings, trained

STEPS = 8  # of the toy settings


def run(
    variant: str = "memory_wrap", data: LabelledImages | None = None, **settings: Any
) -> tuple[Model, list[EpochMetrics]]:
    model = toy_model(variant)
    return model, trained(Trainer(model, data or toy_data(), toy_settings(**settings)))


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "standard"])
@pytest.mark.parametrize("memory", ["random", "balanced", "batch"])
def test_it_learns(variant: str, memory: str) -> None:
    settings = {"augment": (), "epochs": 15, "batch_size": 30, "memory_size": 40, "lr": 0.05}
    _, epochs = run(variant, toy_data(120), memory=memory, **settings)
    assert epochs[-1].loss < 0.6 * epochs[0].loss
    assert epochs[-1].accuracy > 0.8


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_same_seed_gives_the_same_weights_bit_for_bit(optimizer: str) -> None:
    first, epochs = run(optimizer=optimizer)
    torch.rand(7)
    again, same = run(optimizer=optimizer)
    assert same_weights(first, again)
    assert epochs == same
    other, _ = run(optimizer=optimizer, seed=4)
    assert not any(torch.equal(one, two) for one, two in zip(first.parameters(), other.parameters(), strict=True))


def test_random_numbers_drawn_between_steps_do_not_count() -> None:
    undisturbed, _ = run()
    model = toy_model()
    for _ in Trainer(model, toy_data(), toy_settings()).run():
        torch.rand(3)
    assert same_weights(model, undisturbed)


def stored_and_resumed(trainer: Trainer, settings: Any) -> Trainer:
    """A trainer that goes on from what files can keep of another."""
    weights, state = (
        load(save({name: tensor.clone() for name, tensor in tensors.items()}))
        for tensors in (trainer.model.state_dict(), optimizer_tensors(trainer.model, trainer.optimizer))
    )
    progress = Progress(**json.loads(json.dumps(dataclasses.asdict(trainer.progress))))
    variant = "standard" if isinstance(trainer.model.layer, nn.Linear) else "memory_wrap"
    model = toy_model(variant, seed=99)
    model.load_state_dict(weights)
    resumed = Trainer(model, toy_data(), settings, progress=progress)
    restore_optimizer(model, resumed.optimizer, state, progress.step)
    return resumed


@pytest.mark.parametrize("stop", range(STEPS + 1))
@pytest.mark.parametrize(
    ("variant", "optimizer", "memory"),
    [("memory_wrap", "sgd", "random"), ("memory_wrap", "adamw", "batch"), ("standard", "sgd", "random")],
)
def test_a_run_resumes_after_any_step_as_if_it_had_not_stopped(
    variant: str, optimizer: str, memory: str, stop: int
) -> None:
    settings = toy_settings(optimizer=optimizer, memory=memory)
    whole, epochs = run(variant, optimizer=optimizer, memory=memory)
    trainer = Trainer(toy_model(variant), toy_data(), settings)
    before = trained(trainer, stop)
    assert trainer.progress.step == stop
    resumed = stored_and_resumed(trainer, settings)
    assert before + trained(resumed) == epochs
    assert same_weights(resumed.model, whole)


def test_the_same_trainer_can_be_stopped_and_resumed() -> None:
    whole, epochs = run()
    trainer = Trainer(toy_model(), toy_data(), toy_settings())
    assert trained(trainer, 3) + trained(trainer, 2) + trained(trainer) == epochs
    assert same_weights(trainer.model, whole)
    assert trained(trainer) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy images as files."""
    path, data = tmp_path_factory.mktemp("images"), toy_data(60)
    for number, (pixels, label) in enumerate(zip(data.images.pixels, data.labels.tolist(), strict=True)):
        (path / f"class{label}").mkdir(exist_ok=True)
        Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())).save(
            path / f"class{label}" / f"{number}.png"
        )
    return path


@pytest.mark.parametrize("memory", ["random", "batch"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_streamed_images_give_the_weights_of_held_ones_bit_for_bit(folder: Path, workers: int, memory: str) -> None:
    settings = {"batch_size": 20, "memory_size": 20, "epochs": 5, "memory": memory}
    assert ENOUGH_FOR_WORKERS <= 5 * 3 * 20
    held, epochs = run(data=read_folder(folder).train, **settings)
    streamed = read_folder(folder, hold_bytes=0, workers=workers).train
    assert isinstance(streamed.images, StreamedImages)
    model, ended, alive = toy_model(), [], set()
    for metrics in Trainer(model, streamed, toy_settings(**settings)).run():
        alive.add(len(multiprocessing.active_children()))
        ended += [metrics.finished_epoch] if metrics.finished_epoch else []
    assert max(alive) == workers
    assert ended == epochs
    assert same_weights(model, held)


class FailsOnce(nn.Module):
    """Passes encodings on, and makes NaN of one in the pass of this number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.passes = number, 0

    def forward(self, encodings: Tensor) -> Tensor:
        self.passes += 1
        return encodings.index_fill(0, torch.tensor([1]), torch.nan) if self.passes == self.number else encodings


@pytest.mark.parametrize(
    ("variant", "memory", "failing", "what"),
    [
        ("standard", "random", 6, "the loss is nan"),
        ("memory_wrap", "random", 11, "encodings: 1 of 5 vectors hold NaN"),
        ("memory_wrap", "random", 12, "memory: 1 of 7 vectors hold NaN"),
        ("memory_wrap", "batch", 11, "encodings: 1 of 5 vectors hold NaN"),
    ],
)
def test_nan_stops_training_with_step_rate_and_advice(variant: str, memory: str, failing: int, what: str) -> None:
    model = toy_model(variant)
    model.encoder.append(FailsOnce(failing))
    trainer = Trainer(model, toy_data(), toy_settings(memory=memory, lr=0.08, schedule="constant"))
    with pytest.raises(TrainingError) as caught:
        trained(trainer)
    message = str(caught.value)
    assert message.startswith(f"training diverged in step 6 of 8 (epoch 2) at learning rate 0.08: {what}")
    assert "Try a lower rate (lr 0.008), a longer warm-up, precision fp32, or look for broken images" in message
    assert trainer.progress.step == 5


@pytest.mark.parametrize("variant", ["memory_wrap", "standard"])
def test_a_rate_that_is_far_too_high_is_noticed(variant: str) -> None:
    settings = {"lr": 1e6, "warmup": 0, "clip": 0, "schedule": "constant", "epochs": 20, "augment": ()}
    with pytest.raises(TrainingError, match=r"training diverged in step \d+ of 80 .* at learning rate 1e\+06: "):
        run(variant, **settings)


def encoder_state(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.encoder.state_dict().items()}


@pytest.mark.parametrize("augment", [(), ("flip", "affine")])
@pytest.mark.parametrize("variant", ["memory_wrap", "standard"])
def test_a_frozen_encoder_stays_bit_for_bit_while_the_last_layer_learns(variant: str, augment: tuple[str, ...]) -> None:
    model = toy_model(variant)
    before, layer = encoder_state(model), [parameter.detach().clone() for parameter in model.layer.parameters()]
    trained(Trainer(model, toy_data(), toy_settings(freeze=True, augment=augment)))
    assert_close(encoder_state(model), before, atol=0, rtol=0)
    assert not any(torch.equal(old, new) for old, new in zip(layer, model.layer.parameters(), strict=True))


@pytest.mark.parametrize(("augment", "images"), [((), IMAGES), (("flip",), STEPS * (5 + 7))])
def test_without_augmentation_a_frozen_encoder_sees_each_image_once(augment: tuple[str, ...], images: int) -> None:
    model, seen = toy_model(), []
    model.encoder.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    trained(Trainer(model, toy_data(), toy_settings(freeze=True, augment=augment)))
    assert sum(seen) == images


@pytest.mark.parametrize(
    ("variant", "memory"), [("memory_wrap", "random"), ("memory_wrap", "batch"), ("standard", "random")]
)
def test_a_frozen_encoder_s_shortcut_changes_nothing(variant: str, memory: str) -> None:
    settings = toy_settings(freeze=True, augment=(), memory=memory)
    quick, _ = run(variant, freeze=True, augment=(), memory=memory)
    model, data = toy_model(variant), toy_data()
    model.encoder.requires_grad_(False)
    model.train()
    model.encoder.eval()
    optimizer = optimizer_for(model, settings)
    sampler = RandomMemory(7) if (variant, memory) == ("memory_wrap", "random") else None
    for number, step in enumerate(BatchPlan(data.labels, 5, sampler, settings.seed).steps(0, STEPS)):
        optimizer.param_groups[0]["lr"] = learning_rate(settings, number, 4)
        images = model.transform(data.images.pixels[step.indices])
        memory = images[5:] if sampler else "batch" if variant == "memory_wrap" else None
        batch = Batch(images[:5], data.labels[step.indices[:5]], memory)
        training_step(model, optimizer, batch, settings.label_smoothing, settings.clip)
    # Encoded in batches of other sizes, images may differ in the last digit.
    assert_close(quick.state_dict(), model.state_dict(), atol=1e-5, rtol=1e-4)


class LastOnes:
    """A sampler of one's own: always the last images, in no random way."""

    def __init__(self, size: int) -> None:
        self.size, self.batches = size, []

    def draw(self, labels: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        self.batches.append(batch)
        return torch.arange(len(labels) - self.size, len(labels))


@pytest.mark.parametrize("memory", ["random", "batch"])
def test_a_sampler_of_one_s_own_draws_every_memory(memory: str) -> None:
    model, data, sampler, seen = toy_model(), toy_data(), LastOnes(4), []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    settings = toy_settings(memory=memory, augment=(), memory_size=1000)
    trained(Trainer(model, data, settings, sampler))
    pixels = data.images.pixels
    assert len(sampler.batches) == STEPS
    for batch, inputs, memory_images in zip(sampler.batches, seen[::2], seen[1::2], strict=True):
        assert torch.equal(inputs, model.transform(pixels[batch]))
        assert torch.equal(memory_images, model.transform(pixels[-4:]))


def test_the_plain_classifier_draws_no_memory() -> None:
    sampler = LastOnes(4)
    trained(Trainer(toy_model("standard"), toy_data(), toy_settings(memory_size=1000), sampler))
    assert sampler.batches == []


@pytest.mark.parametrize(
    ("memory", "sampler"), [("random", RandomMemory(7)), ("balanced", BalancedMemory(7)), ("batch", None)]
)
def test_the_settings_name_the_sampler(memory: str, sampler: object) -> None:
    assert Trainer(toy_model(), toy_data(), toy_settings(memory=memory)).plan.sampler == sampler


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[StepOutput]:
    """What every step gives from now on."""
    found: list[StepOutput] = []

    def recorded(*arguments: Any) -> StepOutput:
        found.append(training_step(*arguments))
        return found[-1]

    monkeypatch.setattr(trainer_module, "training_step", recorded)
    return found


def test_metrics_of_an_epoch_are_sums_over_its_steps(outcomes: list[StepOutput]) -> None:
    _, epochs = run()
    settings = toy_settings()
    assert [epoch.epoch for epoch in epochs] == [1, 2]
    for number, epoch in enumerate(epochs):
        steps = outcomes[4 * number : 4 * number + 4]
        assert epoch.step == 4 * number + 4
        assert epoch.loss == pytest.approx(sum(float(step.loss) for step in steps) / 4, rel=1e-12)
        assert epoch.accuracy == sum(int(step.correct) for step in steps) / 20
        assert epoch.lr == learning_rate(settings, epoch.step - 1, 4)


def test_every_step_is_reported(outcomes: list[StepOutput]) -> None:
    moments: list[StepMetrics] = list(Trainer(toy_model(), toy_data(), toy_settings()).run())
    assert [(metrics.step, metrics.steps, metrics.epoch) for metrics in moments] == [(n, 8, n / 4) for n in range(1, 9)]
    assert [metrics.loss for metrics in moments] == [float(outcome.loss) for outcome in outcomes]
    assert [metrics.lr for metrics in moments] == [learning_rate(toy_settings(), step, 4) for step in range(8)]
    assert [metrics.finished_epoch is not None for metrics in moments] == [n % 4 == 0 for n in range(1, 9)]


def test_inputs_and_memory_are_changed_by_numbers_of_their_own() -> None:
    model, data, seen = toy_model(), toy_data(), []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    settings = toy_settings()
    trained(Trainer(model, data, settings), 1)
    (step,) = BatchPlan(data.labels, 5, RandomMemory(7), settings.seed).steps(0, 1)
    expected = augmentation.prepare(
        data.images.pixels[step.indices], step.numbers, settings.augment, model.transform.mean, model.transform.std
    )
    assert_close(torch.cat(seen), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["label_smoothing", "clip", "weight_decay", "momentum", "lr", "precision", "augment"])
def test_every_setting_of_a_step_has_its_effect(name: str) -> None:
    other = {"label_smoothing": 0.5, "clip": 0.01, "precision": "bf16", "augment": ("erase",)}
    assert not same_weights(run()[0], run(**{name: other.get(name, 0.02)})[0])


def test_optimisers_are_what_the_settings_say() -> None:
    model = toy_model()
    sgd = optimizer_for(model, toy_settings(lr=0.3, momentum=0.8, weight_decay=0.01))
    facts = ("lr", "momentum", "weight_decay", "nesterov", "dampening")
    assert type(sgd) is torch.optim.SGD
    assert [sgd.param_groups[0][fact] for fact in facts] == [0.3, 0.8, 0.01, True, 0]
    assert not optimizer_for(model, toy_settings(momentum=0)).param_groups[0]["nesterov"]
    adamw = optimizer_for(model, toy_settings(optimizer="adamw", lr=0.3, weight_decay=0.01))
    assert type(adamw) is torch.optim.AdamW
    assert [adamw.param_groups[0][fact] for fact in ("lr", "weight_decay")] == [0.3, 0.01]
    for optimizer in (sgd, adamw):
        assert len(optimizer.param_groups) == 1  # weight decay on all parameters, as in the paper
        assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory_size": 23}, "memory_size is 23, but there are 22 training images"),
        ({"batch_size": 23}, "batch_size is 23, but there are 22 training images; expected 2 to 22"),
        (
            {"batch_size": 3, "memory": "batch"},
            "each: expected at least 4",
        ),
        ({"batch_size": 1, "memory": "batch", "freeze": True}, "each other's memory: expected at least 2"),
    ],
)
def test_what_the_data_cannot_give_is_refused_before_the_first_step(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        Trainer(toy_model(), toy_data(), toy_settings(**settings))


def test_halves_of_one_image_serve_where_no_batch_is_normalised() -> None:
    plain = toy_model()
    plain.encoder[1] = nn.Identity()
    for model, settings in ((toy_model(), {"freeze": True}), (plain, {})):
        trained(Trainer(model, toy_data(), toy_settings(memory="batch", batch_size=2, **settings)))


@pytest.mark.parametrize("memory", ["random", "batch"])
def test_forward_hooks_of_model_layer_and_encoder_fire_in_every_step(memory: str) -> None:
    model, calls = toy_model(), {"model": 0, "layer": 0, "encoder": 0}

    def count(name: str) -> Any:
        def hook(*_: object) -> None:
            calls[name] += 1

        return hook

    for name, module in (("model", model), ("layer", model.layer), ("encoder", model.encoder)):
        module.register_forward_hook(count(name))
    trained(Trainer(model, toy_data(), toy_settings(memory=memory)))
    assert calls == {"model": STEPS, "layer": STEPS, "encoder": 2 * STEPS}  # inputs and memory, or two halves


def test_a_frozen_encoder_s_shortcut_calls_the_layer_as_a_module() -> None:
    model, calls = toy_model(), []
    trainer = Trainer(model, toy_data(), toy_settings(freeze=True, augment=()))
    model.layer.register_forward_hook(lambda *_: calls.append(1))
    trained(trainer)
    assert len(calls) == STEPS


@pytest.mark.parametrize("memory", ["random", "batch"])
def test_a_model_in_distributed_data_parallel_trains_to_the_same_weights(memory: str, tmp_path: Path) -> None:
    alone, epochs = run(memory=memory)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = toy_model()
        wrapped = nn.parallel.DistributedDataParallel(model)
        calls = []
        wrapped.register_forward_hook(lambda *_: calls.append(1))
        assert trained(Trainer(wrapped, toy_data(), toy_settings(memory=memory))) == epochs
    finally:
        torch.distributed.destroy_process_group()
    assert len(calls) == STEPS
    assert same_weights(model, alone)


def test_ranks_train_on_their_parts_of_each_batch() -> None:
    seen: list[Tensor] = []
    for rank in range(2):
        model = toy_model()
        model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        settings = toy_settings(batch_size=4, augment=())
        trained(Trainer(model, toy_data(), settings, rank=rank, world_size=2), 1)
    (step,) = BatchPlan(toy_data().labels, 4, RandomMemory(7), 3).steps(0, 1)
    whole = model.transform(toy_data().images.pixels[step.indices[:4]])
    assert torch.equal(torch.stack(seen, dim=1).flatten(0, 1), whole)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="Sequential"):
        Trainer(nn.Sequential(nn.Linear(2, 2)), toy_data(), toy_settings())


def test_the_batch_as_memory_needs_no_memory_size() -> None:
    assert len(run(memory="batch", memory_size=1000)[1]) == 2


@pytest.mark.parametrize(
    ("asked", "device", "able", "expected"),
    [
        ("auto", "cpu", True, "fp32"),
        ("auto", "cuda", True, "bf16"),
        ("auto", "cuda", False, "fp32"),
        ("auto", "mps", True, "fp32"),
        ("bf16", "cpu", False, "bf16"),
        ("fp32", "cuda", True, "fp32"),
    ],
)
def test_precision_by_device(
    asked: str, device: str, able: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: able)
    assert precision_on(torch.device(device), asked) == expected


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        ("resnet18", torch.channels_last),
        ("mobilenet_v2", torch.channels_last),  # its depthwise convolutions are 3x3
        ("efficientnet_b0", torch.contiguous_format),  # has such of 5x5
    ],
)
def test_layout_by_depthwise_convolutions(encoder: str, expected: torch.memory_format) -> None:
    assert layout_on_gpus(encoders.create(encoder, 10)) == expected


def test_large_convolutions_of_all_channels_stay_in_channels_last() -> None:
    assert layout_on_gpus(nn.Sequential(nn.Conv2d(1, 8, 7), nn.Conv2d(8, 8, 5, groups=2))) == torch.channels_last
