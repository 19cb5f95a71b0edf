"""What training costs: ours beside the published loop, and a memory beside none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memwrap.data import LabelledImages
from memwrap.fused import FusedEngine
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model
from memwrap.reproduce.bench import published_loop
from memwrap.reproduce.bench.packages import MissingPackageError
from memwrap.reproduce.bench.published_loop import PublishedLoop, published_layer, published_model
from memwrap.reproduce.bench.record import Finding, LeftOut, row_of
from memwrap.reproduce.bench.stand import BenchContext, clear
from memwrap.reproduce.bench.timing import Candidate, Cudnn
from memwrap.training.settings import ResolvedSettings
from memwrap.training.trainer import Progress, Trainer, layout_on_gpus

STEPS, SIZES, WHOLE = "steps", "sizes", "training"  # parts
PUBLISHED = "published loop"
ARITHMETIC = "published, arithmetic alone"
LOOP = "our loop"
FIRST, LATER = "first training of a process", "another training of a process"
ENDLESS = 1_000_000  # epochs, of which a few steps are taken
CAPTURED = Cudnn(benchmark=True)  # as FusedEngine itself has it while it captures its step

# Memory Wrap with the paper's two passes, with the batch as its own memory, and no memory.
TWO_PASSES: Mapping[str, Any] = {"variant": "memory_wrap", "memory": "random"}
BATCH_AS_MEMORY: Mapping[str, Any] = {"variant": "memory_wrap", "memory": "batch"}
STANDARD: Mapping[str, Any] = {"variant": "standard"}


def measure_steps(stand: BenchContext, encoder: str) -> Iterator[Finding]:
    """One step beside the published loop's, and with a memory beside one without."""
    yield from _if_published(steps_beside_published, STEPS, "one step", stand, encoder)
    clear(stand.device)
    yield from steps_beside_standard(stand, encoder)
    if not stand.has_kernels:
        yield LeftOut(STEPS, f"{encoder}, runs side by side", "they need a GPU, and Triton")


def measure_sizes(stand: BenchContext, encoder: str) -> Iterator[Finding]:
    """One step with memories of several sizes, which the paper's second pass encodes, beside one without a memory."""
    sizes = stand.amounts.memory_sizes
    ways = {f"Memory Wrap, memory of {size}": {**TWO_PASSES, "memory_size": size} for size in sizes}
    yield from _steps_beside_standard(stand, SIZES, encoder, ways)


def measure_trainings(stand: BenchContext, encoder: str) -> Iterator[Finding]:
    """A whole training beside the published loop's."""
    yield from _if_published(trainings_beside_published, WHOLE, "a whole training", stand, encoder)


def _if_published(
    found: Callable[[BenchContext, str], Iterator[Finding]], part: str, subject: str, stand: BenchContext, encoder: str
) -> Iterator[Finding]:
    """What is found beside the published loop, or that its package is missing."""
    try:
        yield from found(stand, encoder)
    except MissingPackageError as error:
        yield LeftOut(part, f"{encoder}, {subject} beside the published loop's", str(error))


def steps_beside_published(stand: BenchContext, encoder: str) -> Iterator[Finding]:
    """A step end to end, from pixels in memory to new weights."""
    published_layer()  # before anything is built
    base, *others = _published_steps(stand, encoder)
    others.append(_loop_steps(stand, LOOP, encoder, TWO_PASSES))
    if stand.has_kernels:
        others.append(_captured_steps(stand, _side_by_side(stand), encoder, TWO_PASSES))
    for compared in stand.stopwatch.compare(base, others, stand.amounts.rounds):
        yield row_of(STEPS, "one step", encoder, "step", compared)


def steps_beside_standard(stand: BenchContext, encoder: str) -> Iterator[Finding]:
    """What a memory adds to a step: by the paper's second pass, and with the batch as memory."""
    ways = {"Memory Wrap, two passes": TWO_PASSES, "Memory Wrap, batch as memory": BATCH_AS_MEMORY}
    yield from _steps_beside_standard(stand, STEPS, encoder, ways)


def _steps_beside_standard(
    stand: BenchContext, part: str, encoder: str, ways: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """ways: what a memory is had by, by name."""
    make, how = (_captured_steps, _side_by_side(stand)) if stand.has_kernels else (_loop_steps, LOOP)
    base = make(stand, "Standard", encoder, STANDARD)
    others = [make(stand, name, encoder, way) for name, way in ways.items()]
    for compared in stand.stopwatch.compare(base, others, stand.amounts.rounds):
        yield row_of(part, f"one step, {how}", encoder, "step", compared)


def trainings_beside_published(stand: BenchContext, encoder: str) -> Iterator[Finding]:
    """A training from new weights to the last step, building and capturing included, evaluation not."""
    published_layer()
    settings, data = stand.settings(encoder, {**TWO_PASSES, "epochs": stand.amounts.epochs}), _images(stand)

    def published() -> None:
        for _ in _published(stand, settings).losses():
            pass

    def loop() -> None:
        for _ in Trainer(stand.model(settings), data, settings).run():
            pass

    def side_by_side() -> None:
        _train_all(FusedEngine(), _trainers(stand, encoder, {**TWO_PASSES, "epochs": settings.epochs}))

    facts = {**_facts(settings, stand), "epochs": settings.epochs}
    base = Candidate(PUBLISHED, published, cudnn=published_loop.CUDNN, facts={**facts, **_published_facts(stand)})
    others = [Candidate(LOOP, loop, facts={**facts, **_loop_facts(stand.model(settings), stand)})]
    if stand.has_kernels:
        count = stand.side_by_side
        facts = {**facts, "side_by_side": count}
        others.append(Candidate(_side_by_side(stand), side_by_side, units=count, cudnn=CAPTURED, facts=facts))
    steps = settings.epochs * (len(data) // settings.batch_size)
    # The first in a process also compiles and chooses kernels, on both sides: who trains but once waits for that.
    rounds = {FIRST: 1, LATER: min(stand.amounts.rounds, stand.amounts.training_rounds)}
    for which, count in rounds.items():
        for compared in stand.stopwatch.compare(base, others, count, warm_up=0):
            yield row_of(WHOLE, f"{which}, {steps} steps", encoder, "training", compared)


def _published_steps(stand: BenchContext, encoder: str) -> list[Candidate]:
    """The published loop as it is; without what it gives away on a GPU; and without its data loading."""
    settings, count = stand.settings(encoder, {**TWO_PASSES, "epochs": ENDLESS}), stand.amounts.steps
    facts = {**_facts(settings, stand), **_published_facts(stand)}

    def contestant(name: str, cudnn: Cudnn) -> Candidate:
        losses = _published(stand, settings).losses()
        return Candidate(name, lambda: _take(losses, count), count, cudnn=cudnn, facts=facts)

    found = [contestant(PUBLISHED, published_loop.CUDNN)]
    if stand.on_gpu:
        found.append(contestant("published loop, cuDNN not deterministic", Cudnn()))
    loop = _published(stand, settings)
    images, labels = next(iter(loop.loader))
    memory, _ = next(iter(loop.memory_loader))
    ready: list[Tensor] = [each.to(stand.device) for each in (images, labels, memory)]
    loop.model.train()

    def arithmetic() -> None:
        for _ in range(count):
            loop.step(*ready)

    facts = {**facts, "data": f"one batch, on {stand.device.type}"}
    found.append(Candidate(ARITHMETIC, arithmetic, count, cudnn=published_loop.CUDNN, facts=facts))
    return found


def _loop_steps(stand: BenchContext, name: str, encoder: str, changes: Mapping[str, Any]) -> Candidate:
    settings, count = stand.settings(encoder, {**changes, "epochs": ENDLESS}), stand.amounts.steps
    model = stand.model(settings)
    steps = Trainer(model, _images(stand), settings).run()
    facts = {**_facts(settings, stand), **_loop_facts(model, stand)}
    return Candidate(name, lambda: _take(steps, count), count, facts=facts)


def _captured_steps(stand: BenchContext, name: str, encoder: str, changes: Mapping[str, Any]) -> Candidate:
    """Steps of runs side by side, with the making of all draws, and with bringing the runs there and back."""
    epochs = stand.epochs_of(stand.amounts.captured_steps)
    trainers, engine = _trainers(stand, encoder, {**changes, "epochs": epochs}), FusedEngine()

    def ready() -> None:
        for trainer in trainers:
            trainer.progress = Progress()  # its weights stay; that matters to no clock

    def warm_up() -> None:
        """The capture, and the first few steps."""
        stop = iter([False])  # not when it is asked before them, but after
        engine.train(trainers, stop=lambda: next(stop, True))

    facts = {**_facts(trainers[0].settings, stand), "side_by_side": stand.side_by_side}
    units = stand.side_by_side * trainers[0].steps
    return Candidate(
        name, lambda: _train_all(engine, trainers), units, ready, warm_up=warm_up, cudnn=CAPTURED, facts=facts
    )


def _trainers(stand: BenchContext, encoder: str, changes: Mapping[str, Any]) -> list[Trainer]:
    data = _images(stand)
    settings = [stand.settings(encoder, {**changes, "seed": seed}) for seed in range(stand.side_by_side)]
    return [Trainer(stand.model(each), data, each) for each in settings]


def _train_all(engine: FusedEngine, trainers: Sequence[Trainer]) -> None:
    for failure in engine.train(trainers):
        if failure is not None:
            raise failure


def _published(stand: BenchContext, settings: ResolvedSettings) -> PublishedLoop:
    model = stand.model(settings)
    assert isinstance(model, MemoryClassifier)  # by its variant
    return PublishedLoop(published_model(model), _images(stand), settings, model.get_transform())


def _images(stand: BenchContext) -> LabelledImages:
    return stand.supply.take(stand.amounts.images)


def _take(steps: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(steps)


def _side_by_side(stand: BenchContext) -> str:
    return f"our {stand.side_by_side} runs side by side, each"


def _facts(settings: ResolvedSettings, stand: BenchContext) -> dict[str, Any]:
    """The conditions of ours."""
    return {
        "images": stand.amounts.images,
        "batch": settings.batch_size,
        "memory": None if settings.variant == "standard" else settings.memory,
        "memory_size": settings.memory_size if settings.memory != "batch" and settings.variant != "standard" else None,
        "precision": settings.precision,
        "channels_last": stand.on_gpu,
        "data": f"uint8, on {stand.device.type}",
    }


def _loop_facts(model: Model, stand: BenchContext) -> dict[str, Any]:
    """What our loop has otherwise than our runs side by side."""
    return {"channels_last": stand.on_gpu and layout_on_gpus(model.encoder) == torch.channels_last}


def _published_facts(stand: BenchContext) -> dict[str, Any]:
    """What the published loop has otherwise."""
    precision = "fp16, loss scaled" if stand.on_gpu else "fp32"
    return {"precision": precision, "channels_last": False, "data": "Pillow pictures, DataLoader without workers"}
