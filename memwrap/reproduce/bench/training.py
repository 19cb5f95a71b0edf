"""Times training: our loop and engine against the published loop, and a memory against none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memwrap.data import LabelledImages
from memwrap.fused import FusedEngine
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model
from memwrap.reproduce.bench import published_loop
from memwrap.reproduce.bench.context import BenchContext, clear
from memwrap.reproduce.bench.packages import MissingPackageError
from memwrap.reproduce.bench.published_loop import PublishedLoop, published_layer, published_model
from memwrap.reproduce.bench.record import Finding, Skipped, make_measurement
from memwrap.reproduce.bench.timing import Candidate, Cudnn
from memwrap.training.settings import ResolvedSettings
from memwrap.training.trainer import Progress, Trainer, layout_on_gpus

STEPS, SIZES, WHOLE = "steps", "sizes", "training"  # parts
PUBLISHED = "published loop"
ARITHMETIC = "published, arithmetic alone"
LOOP = "our loop"
FIRST, LATER = "first training of a process", "another training of a process"
ENDLESS = 1_000_000  # epochs, of which a few steps are run
CAPTURED = Cudnn(benchmark=True)  # as FusedEngine sets it for its capture

# Memory Wrap with the paper's two passes, with the batch as its own memory, and no memory.
TWO_PASSES: Mapping[str, Any] = {"variant": "memory_wrap", "memory": "random"}
BATCH_AS_MEMORY: Mapping[str, Any] = {"variant": "memory_wrap", "memory": "batch"}
STANDARD: Mapping[str, Any] = {"variant": "standard"}


def measure_steps(context: BenchContext, encoder: str) -> Iterator[Finding]:
    """One step against the published loop's, and with a memory against one without."""
    yield from _if_published(steps_versus_published, STEPS, "one step", context, encoder)
    clear(context.device)
    yield from steps_versus_standard(context, encoder)
    if not context.has_kernels:
        yield Skipped(STEPS, f"{encoder}, runs side by side", "needs a GPU and Triton")


def measure_sizes(context: BenchContext, encoder: str) -> Iterator[Finding]:
    """One step with memories of several sizes, encoded in a second pass, against one without a memory."""
    sizes = context.sizes.memory_sizes
    changes = {f"Memory Wrap, memory of {size}": {**TWO_PASSES, "memory_size": size} for size in sizes}
    yield from _compare_with_standard(context, SIZES, encoder, changes)


def measure_trainings(context: BenchContext, encoder: str) -> Iterator[Finding]:
    """A whole training against the published loop's."""
    yield from _if_published(trainings_versus_published, WHOLE, "a whole training", context, encoder)


def _if_published(
    measure: Callable[[BenchContext, str], Iterator[Finding]],
    part: str,
    subject: str,
    context: BenchContext,
    encoder: str,
) -> Iterator[Finding]:
    """Measure against the published loop, or report that its package is missing."""
    try:
        yield from measure(context, encoder)
    except MissingPackageError as error:
        yield Skipped(part, f"{encoder}, {subject} versus the published loop's", str(error))


def steps_versus_published(context: BenchContext, encoder: str) -> Iterator[Finding]:
    """A step from pixels in memory to updated weights."""
    published_layer()  # before anything is built
    base, *others = _published_steps(context, encoder)
    others.append(_loop_steps(context, LOOP, encoder, TWO_PASSES))
    if context.has_kernels:
        others.append(_captured_steps(context, _side_by_side(context), encoder, TWO_PASSES))
    for timing in context.stopwatch.compare(base, others, context.sizes.rounds):
        yield make_measurement(STEPS, "one step", encoder, "step", timing)


def steps_versus_standard(context: BenchContext, encoder: str) -> Iterator[Finding]:
    """What a memory adds to a step: with the paper's second pass, and with the batch as memory."""
    changes = {"Memory Wrap, two passes": TWO_PASSES, "Memory Wrap, batch as memory": BATCH_AS_MEMORY}
    yield from _compare_with_standard(context, STEPS, encoder, changes)


def _compare_with_standard(
    context: BenchContext, part: str, encoder: str, changes: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """changes: the settings of each candidate with a memory, by its name."""
    make, how = (_captured_steps, _side_by_side(context)) if context.has_kernels else (_loop_steps, LOOP)
    base = make(context, "Standard", encoder, STANDARD)
    others = [make(context, name, encoder, own) for name, own in changes.items()]
    for timing in context.stopwatch.compare(base, others, context.sizes.rounds):
        yield make_measurement(part, f"one step, {how}", encoder, "step", timing)


def trainings_versus_published(context: BenchContext, encoder: str) -> Iterator[Finding]:
    """A training from new weights to the last step, including building and capturing, without evaluation."""
    published_layer()
    settings, data = context.settings(encoder, {**TWO_PASSES, "epochs": context.sizes.epochs}), _images(context)

    def published() -> None:
        for _ in _published(context, settings).losses():
            pass

    def loop() -> None:
        for _ in Trainer(context.model(settings), data, settings).run():
            pass

    def side_by_side() -> None:
        _train_all(FusedEngine(), _trainers(context, encoder, {**TWO_PASSES, "epochs": settings.epochs}))

    facts = {**_facts(settings, context), "epochs": settings.epochs}
    base = Candidate(PUBLISHED, published, cudnn=published_loop.CUDNN, facts={**facts, **_published_facts(context)})
    others = [Candidate(LOOP, loop, facts={**facts, **_loop_facts(context.model(settings), context)})]
    if context.has_kernels:
        count = context.side_by_side
        facts = {**facts, "side_by_side": count}
        others.append(Candidate(_side_by_side(context), side_by_side, units=count, cudnn=CAPTURED, facts=facts))
    steps = settings.epochs * (len(data) // settings.batch_size)
    # The first one in a process also compiles and selects kernels, on both sides.
    rounds = {FIRST: 1, LATER: min(context.sizes.rounds, context.sizes.training_rounds)}
    for which, count in rounds.items():
        for timing in context.stopwatch.compare(base, others, count, warm_up=0):
            yield make_measurement(WHOLE, f"{which}, {steps} steps", encoder, "training", timing)


def _published_steps(context: BenchContext, encoder: str) -> list[Candidate]:
    """The published loop as it is; with cuDNN's faster kernels on a GPU; and without its data loading."""
    settings, count = context.settings(encoder, {**TWO_PASSES, "epochs": ENDLESS}), context.sizes.steps
    facts = {**_facts(settings, context), **_published_facts(context)}

    def candidate(name: str, cudnn: Cudnn) -> Candidate:
        losses = _published(context, settings).losses()
        return Candidate(name, lambda: _take(losses, count), count, cudnn=cudnn, facts=facts)

    found = [candidate(PUBLISHED, published_loop.CUDNN)]
    if context.on_gpu:
        found.append(candidate("published loop, cuDNN not deterministic", Cudnn()))
    loop = _published(context, settings)
    images, labels = next(iter(loop.loader))
    memory, _ = next(iter(loop.memory_loader))
    ready: list[Tensor] = [each.to(context.device) for each in (images, labels, memory)]
    loop.model.train()

    def arithmetic() -> None:
        for _ in range(count):
            loop.step(*ready)

    facts = {**facts, "data": f"one batch, on {context.device.type}"}
    found.append(Candidate(ARITHMETIC, arithmetic, count, cudnn=published_loop.CUDNN, facts=facts))
    return found


def _loop_steps(context: BenchContext, name: str, encoder: str, changes: Mapping[str, Any]) -> Candidate:
    settings, count = context.settings(encoder, {**changes, "epochs": ENDLESS}), context.sizes.steps
    model = context.model(settings)
    steps = Trainer(model, _images(context), settings).run()
    facts = {**_facts(settings, context), **_loop_facts(model, context)}
    return Candidate(name, lambda: _take(steps, count), count, facts=facts)


def _captured_steps(context: BenchContext, name: str, encoder: str, changes: Mapping[str, Any]) -> Candidate:
    """Steps of runs side by side, including all draws, and loading and unloading the runs."""
    epochs = context.epochs_for(context.sizes.captured_steps)
    trainers, engine = _trainers(context, encoder, {**changes, "epochs": epochs}), FusedEngine()

    def ready() -> None:
        for trainer in trainers:
            trainer.progress = Progress()  # the weights stay, which does not affect the time

    def warm_up() -> None:
        """Capture, and the first few steps."""
        stop = iter([False])  # False before these steps, True after them
        engine.train(trainers, stop=lambda: next(stop, True))

    facts = {**_facts(trainers[0].settings, context), "side_by_side": context.side_by_side}
    units = context.side_by_side * trainers[0].steps
    return Candidate(
        name, lambda: _train_all(engine, trainers), units, ready, warm_up=warm_up, cudnn=CAPTURED, facts=facts
    )


def _trainers(context: BenchContext, encoder: str, changes: Mapping[str, Any]) -> list[Trainer]:
    data = _images(context)
    settings = [context.settings(encoder, {**changes, "seed": seed}) for seed in range(context.side_by_side)]
    return [Trainer(context.model(each), data, each) for each in settings]


def _train_all(engine: FusedEngine, trainers: Sequence[Trainer]) -> None:
    for failure in engine.train(trainers):
        if failure is not None:
            raise failure


def _published(context: BenchContext, settings: ResolvedSettings) -> PublishedLoop:
    model = context.model(settings)
    assert isinstance(model, MemoryClassifier)  # by its variant
    return PublishedLoop(published_model(model), _images(context), settings, model.get_transform())


def _images(context: BenchContext) -> LabelledImages:
    return context.images.take(context.sizes.images)


def _take(steps: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(steps)


def _side_by_side(context: BenchContext) -> str:
    return f"our {context.side_by_side} runs side by side, each"


def _facts(settings: ResolvedSettings, context: BenchContext) -> dict[str, Any]:
    """The conditions of our candidates."""
    return {
        "images": context.sizes.images,
        "batch": settings.batch_size,
        "memory": None if settings.variant == "standard" else settings.memory,
        "memory_size": settings.memory_size if settings.memory != "batch" and settings.variant != "standard" else None,
        "precision": settings.precision,
        "channels_last": context.on_gpu,
        "data": f"uint8, on {context.device.type}",
    }


def _loop_facts(model: Model, context: BenchContext) -> dict[str, Any]:
    """Where our loop differs from our runs side by side."""
    return {"channels_last": context.on_gpu and layout_on_gpus(model.encoder) == torch.channels_last}


def _published_facts(context: BenchContext) -> dict[str, Any]:
    """Where the published loop differs."""
    precision = "fp16, loss scaled" if context.on_gpu else "fp32"
    return {"precision": precision, "channels_last": False, "data": "Pillow pictures, DataLoader without workers"}
