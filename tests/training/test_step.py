"""One step of training against a slow rewrite of the paper's arithmetic, and against the published package."""

import copy
import math
from dataclasses import replace

import memorywrap
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.testing import assert_close

import memwrap
from memwrap.models.loading import Model
from memwrap.nn.contrast import contrastive_loss
from memwrap.nn.queue import Queue
from memwrap.training.step import Batch, StepOutput, training_step

LR, MOMENTUM, DECAY = 0.1, 0.9, 5e-4
CLASSES = 4


def new_model(variant: str = "memory_wrap") -> Model:
    """In double precision, so that a rewrite agrees to many digits."""
    return memwrap.wrap(memwrap.encoders.create("tiny", num_classes=CLASSES), variant).double().train()


def new_optimizer(model: nn.Module, lr: float = LR) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr, MOMENTUM, weight_decay=DECAY, nesterov=True)


def new_batch(inputs: int, samples: int | None) -> Batch:
    """samples: of the memory; 0 for the batch as its own memory, None for a model without one."""
    images = torch.rand(inputs + (samples or 0), 3, 8, 8, dtype=torch.float64) - 0.5
    memory = None if samples is None else images[inputs:] if samples else "batch"
    return Batch(images[:inputs], torch.arange(inputs) % CLASSES, memory)


def step(model: Model, batch: Batch, optimizer: torch.optim.Optimizer | None = None, **options: float) -> StepOutput:
    return training_step(model, optimizer or new_optimizer(model), batch, **options)


def slow_sparsemax(scores: Tensor) -> Tensor:
    """(M,) -> (M,), by looking for the largest support"""
    descending = scores.sort(descending=True).values
    support = max(k for k in range(1, len(scores) + 1) if 1 + k * descending[k - 1] > descending[:k].sum())
    return (scores - (descending[:support].sum() - 1) / support).clamp(min=0)


def slow_logits(model: Model, encoding: Tensor, memory: Tensor) -> Tensor:
    """Paper, sec. 3.1: one input (D,) and an encoded memory (M, D) -> (C,)"""
    similarities = [
        (encoding @ sample) / (encoding.square().sum() + 1e-6).sqrt() / (sample.square().sum() + 1e-6).sqrt()
        for sample in memory
    ]
    vector = slow_sparsemax(torch.stack(similarities)) @ memory
    features = vector if model.layer.variant == "only_memory" else torch.cat([encoding, vector])
    first, second = model.layer.head.first, model.layer.head.second
    return second.weight @ (first.weight @ features + first.bias).clamp(min=0) + second.bias


def slow_batch_logits(model: Model, batch: Batch) -> Tensor:
    images, inputs = batch.inputs, len(batch.labels)
    if batch.memory == "batch":
        # Each half of the batch is the memory of the other, encoded by itself; the first is the larger one.
        halves = [model.encoder(images[: math.ceil(inputs / 2)]), model.encoder(images[math.ceil(inputs / 2) :])]
        pairs = [(own, memory) for half, memory in zip(halves, reversed(halves), strict=True) for own in half]
        return torch.stack([slow_logits(model, *pair) for pair in pairs])
    encodings = model.encoder(images)
    if isinstance(model, memwrap.StandardClassifier):
        return torch.stack([model.layer.weight @ encoding + model.layer.bias for encoding in encodings])
    memory = model.encoder(batch.memory)
    return torch.stack([slow_logits(model, encoding, memory) for encoding in encodings])


def slow_step(model: Model, batch: Batch, momenta: dict[str, Tensor]) -> tuple[Tensor, int]:
    """Nesterov's descent, written out."""
    logits = slow_batch_logits(model, batch)
    loss = -log_softmax(logits, dim=1)[range(len(batch.labels)), batch.labels].mean()
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    with torch.no_grad():
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            decayed = gradient + DECAY * parameter
            momenta[name] = MOMENTUM * momenta[name] + decayed if name in momenta else decayed
            parameter -= LR * (decayed + MOMENTUM * momenta[name])
    return loss.detach(), sum(int(row.argmax() == label) for row, label in zip(logits, batch.labels, strict=True))


@pytest.mark.parametrize(
    ("variant", "inputs", "samples"),
    [
        ("standard", 6, None),
        ("memory_wrap", 6, 9),
        ("memory_wrap", 2, 1),
        ("memory_wrap", 6, 0),
        ("memory_wrap", 7, 0),
        ("memory_wrap", 2, 0),
        ("memory_wrap", 3, 0),
        ("only_memory", 6, 9),
        ("only_memory", 7, 0),
    ],
)
def test_steps_equal_a_slow_rewrite(variant: str, inputs: int, samples: int) -> None:
    model = new_model(variant)
    twin, optimizer, momenta = copy.deepcopy(model), new_optimizer(model), {}
    for _ in range(2):
        batch = new_batch(inputs, samples)
        outcome = step(model, batch, optimizer)
        loss, correct = slow_step(twin, batch, momenta)
        # The loss is computed in float32, from which the gradients come with its precision.
        assert_close(outcome.loss.double(), loss, atol=1e-6, rtol=0)
        assert int(outcome.correct) == correct
        for (name, ours), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
            assert_close(ours, theirs, atol=1e-6, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_a_drawn_memory_gives_the_loss_of_the_model_called_with_it() -> None:
    model, batch = new_model(), new_batch(6, 9)
    twin = copy.deepcopy(model)
    loss = cross_entropy(twin(batch.inputs, memory=batch.memory), batch.labels)
    loss.backward()
    outcome = step(model, batch, new_optimizer(model, lr=0))
    assert_close(outcome.loss.double(), loss.detach(), atol=1e-6, rtol=0)
    assert_close(gradients(model), gradients(twin), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("variant", "published"),
    [("memory_wrap", memorywrap.MemoryWrapLayer), ("only_memory", memorywrap.BaselineMemory)],
)
def test_loss_and_gradients_are_those_of_the_published_package(variant: str, published: type[nn.Module]) -> None:
    model, batch = new_model(variant), new_batch(6, 9)
    encoder, layer = copy.deepcopy(model.encoder), published(model.in_features, CLASSES).double()
    layer.classifier.fc1.load_state_dict(model.layer.head.first.state_dict())
    layer.classifier.fc2.load_state_dict(model.layer.head.second.state_dict())
    loss = cross_entropy(layer(encoder(batch.inputs), encoder(batch.memory)), batch.labels)
    loss.backward()
    outcome = step(model, batch, new_optimizer(model, lr=0))
    assert_close(outcome.loss.double(), loss.detach(), atol=1e-6, rtol=0)
    assert_close(gradients(model), gradients(encoder) + gradients(layer), atol=1e-6, rtol=0)


def test_batch_normalisation_sees_inputs_and_memory_apart() -> None:
    model, batch = new_model(), new_batch(6, 9)
    convolution, normalisation = (
        next(each for each in model.encoder.modules() if isinstance(each, kind)) for kind in (nn.Conv2d, nn.BatchNorm2d)
    )
    maps = copy.deepcopy(convolution)(torch.cat([batch.inputs, batch.memory])).detach()
    means, variances = normalisation.running_mean.clone(), normalisation.running_var.clone()
    for part in (maps[:6], maps[6:]):
        means, variances = 0.9 * means + 0.1 * part.mean((0, 2, 3)), 0.9 * variances + 0.1 * part.var((0, 2, 3))
    step(model, batch)
    assert_close([normalisation.running_mean, normalisation.running_var], [means, variances])
    assert normalisation.num_batches_tracked == 2


def test_the_batch_as_memory_is_encoded_once_and_each_half_by_itself() -> None:
    model, passes = new_model(), []
    model.encoder.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    step(model, new_batch(7, 0))
    step(model, new_batch(6, 9))
    assert passes == [4, 3, 6, 9]


def total_change(model: Model, before: dict[str, Tensor]) -> float:
    squares = [(parameter.detach() - before[name]).square().sum() for name, parameter in model.named_parameters()]
    return float(torch.stack(squares).sum().sqrt())


def plain_step(clip: float) -> tuple[float, list[Tensor]]:
    """How far one step without momentum and weight decay goes at a rate of 1, and its gradients."""
    torch.manual_seed(0)
    model = new_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    step(model, new_batch(6, 9), torch.optim.SGD(model.parameters(), 1.0), clip=clip)
    return total_change(model, before), gradients(model)


def test_long_gradients_are_shortened_all_by_one_factor() -> None:
    length, free = plain_step(clip=0.0)
    clipped_length, clipped = plain_step(clip=length / 4)
    assert clipped_length == pytest.approx(length / 4, rel=1e-4)
    assert_close(clipped, [gradient / 4 for gradient in free], rtol=1e-4, atol=1e-12)


def test_short_gradients_are_left_alone() -> None:
    length, free = plain_step(clip=0.0)
    assert_close(plain_step(clip=2 * length)[1], free, atol=0, rtol=0)


def test_label_smoothing_spreads_a_part_of_each_label_over_all_classes() -> None:
    model, batch = new_model("standard"), new_batch(6, None)
    scores = log_softmax(slow_batch_logits(copy.deepcopy(model), batch).detach(), dim=1)
    target = 0.7 * torch.eye(CLASSES).double()[batch.labels] + 0.3 / CLASSES
    outcome = step(model, batch, label_smoothing=0.3)
    assert_close(outcome.loss.double(), -(target * scores).sum(1).mean(), atol=1e-6, rtol=0)


def test_gradients_of_before_are_forgotten() -> None:
    model, batch = new_model(), new_batch(6, 9)
    twin = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    step(model, batch)
    step(twin, batch)
    assert_close(model.state_dict(), twin.state_dict(), atol=0, rtol=0)


def test_the_outcome_holds_no_graph() -> None:
    outcome = step(new_model(), new_batch(6, 9))
    assert not outcome.loss.requires_grad
    assert outcome.loss.shape == outcome.correct.shape == ()


@pytest.mark.parametrize("samples", [0, 9])
def test_in_bfloat16_the_encoder_is_rounded_and_weights_are_not(samples: int) -> None:
    model = new_model().float()
    twin, batch, seen = copy.deepcopy(model), new_batch(6, samples), []
    memory = batch.memory if samples == 0 else batch.memory.float()
    batch = Batch(batch.inputs.float(), batch.labels, memory)
    model.encoder.register_forward_hook(lambda _, __, encodings: seen.append(encodings.dtype))

    def stepped(of: Model, precision: torch.dtype) -> StepOutput:
        return training_step(of, new_optimizer(of, lr=0.01), batch, precision=precision)

    rounded, exact = stepped(model, torch.bfloat16), stepped(twin, torch.float32)
    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {rounded.loss.dtype} == {torch.float32}
    assert_close(rounded.loss, exact.loss, atol=0.05, rtol=0)  # numbers of 8 bits, through four layers
    assert not torch.equal(rounded.loss, exact.loss)


# A contrastive loss


@pytest.mark.parametrize("weight", [0.5, 2.0])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "standard", "vote"])
def test_a_contrastive_loss_is_added_with_its_weight(variant: str, weight: float) -> None:
    """By the gradients, which plain SGD takes away from the weights; the cross-entropy is computed in float32."""
    torch.manual_seed(0)
    model = new_model(variant)
    batch = new_batch(8, 0 if variant in ("memory_wrap", "only_memory") else None)
    queue = Queue(torch.randn(6, model.layer.in_features, dtype=torch.float64), torch.arange(6) % CLASSES)
    before = copy.deepcopy(model)
    arguments = {} if batch.memory is None else {"memory": batch.memory}
    halves = [before.encode(half) for half in batch.inputs.split(8 if batch.memory is None else 4)]
    loss = cross_entropy(before(batch.inputs, **arguments), batch.labels)
    contrast = contrastive_loss(before.layer, torch.cat(halves), batch.labels, queue)
    (loss + weight * contrast).backward()
    output = training_step(
        model,
        torch.optim.SGD(model.parameters(), 1.0),
        replace(batch, queue=queue),
        contrast=weight,
        layer=model.layer,
    )
    assert float(output.loss) == pytest.approx(float(loss + weight * contrast))
    assert_close(output.encodings, torch.cat(halves).detach())
    for now, old in zip(model.parameters(), before.parameters(), strict=True):
        change = torch.zeros_like(old) if old.grad is None else old.grad
        assert_close(old - now, change, atol=1e-6, rtol=1e-4)


def test_without_a_layer_nothing_is_watched() -> None:
    model = new_model("standard")
    assert step(model, new_batch(4, None)).encodings is None
    assert not model.layer._forward_pre_hooks
