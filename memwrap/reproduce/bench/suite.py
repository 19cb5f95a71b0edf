"""Runs all measurements of `memwrap bench`, one after the other."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from memwrap import encoders
from memwrap.data import DataSet
from memwrap.errors import SettingsError
from memwrap.reproduce.bench import inference, large_memory, sparsemax, training
from memwrap.reproduce.bench.context import RANDOM_IMAGES, BenchContext, clear, images_from
from memwrap.reproduce.bench.packages import compared_versions
from memwrap.reproduce.bench.record import BenchRecord, Finding, Measurement, Skipped
from memwrap.reproduce.bench.sizes import default_encoders, sizes_for
from memwrap.reproduce.bench.timing import Stopwatch, clock_for
from memwrap.reproduce.provenance import current_date, current_provenance
from memwrap.runs.training import device_name

_BY_ENCODER: dict[str, Callable[[BenchContext, str], Iterator[Finding]]] = {
    training.STEPS: training.measure_steps,
    training.SIZES: training.measure_sizes,
    training.WHOLE: training.measure_trainings,
    inference.PART: inference.measure,
    large_memory.PART: large_memory.measure,
}
PARTS = (training.STEPS, training.SIZES, training.WHOLE, inference.PART, sparsemax.PART, large_memory.PART)


@dataclass(frozen=True)
class BenchOptions:
    """What is measured. Without parts all of them; without encoders the device's default ones."""

    parts: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    side_by_side: int = 5
    rounds: int | None = None
    quick: bool = False

    def resolve(self, device: torch.device) -> "BenchOptions":
        """The options with defaults filled in; a SettingsError for unknown values."""
        for what, given, known in (("part", self.parts, PARTS), ("encoder", self.encoders, encoders.names())):
            for name in given:
                if name not in known:
                    raise SettingsError(f"{what} is {name!r}; expected one of {', '.join(known)}")
        if self.side_by_side < 1 or (self.rounds is not None and self.rounds < 1):
            raise SettingsError(f"side_by_side is {self.side_by_side} and rounds is {self.rounds}; expected at least 1")
        parts = tuple(part for part in PARTS if part in self.parts) or PARTS
        return replace(self, parts=parts, encoders=tuple(dict.fromkeys(self.encoders)) or default_encoders(device.type))


def make_context(options: BenchOptions, device: torch.device, data: DataSet | None = None) -> BenchContext:
    """The context of all measurements. data: whose images are used; None: random ones."""
    sizes = sizes_for(device.type, options.quick, options.rounds)
    images = RANDOM_IMAGES if data is None else images_from(data, sizes)
    return BenchContext(device, sizes, Stopwatch(clock_for(device), random.Random(0)), options.side_by_side, images)


def measure(
    options: BenchOptions, context: BenchContext, progress: Callable[[str], None] = lambda _: None
) -> Iterator[Finding]:
    """Yield each finding at once. options: resolved. progress: called with what is measured next."""
    for part in options.parts:
        if part == sparsemax.PART:
            progress(part)
            yield from sparsemax.measure(context)
            continue
        for encoder in options.encoders:
            progress(f"{part}, {encoder}")
            yield from _BY_ENCODER[part](context, encoder)
            clear(context.device)


def make_record(options: BenchOptions, context: BenchContext, found: Sequence[Finding], complete: bool) -> BenchRecord:
    """The record of what was found so far."""
    origin = current_provenance(device_name(context.device), "bench", context.side_by_side)
    return BenchRecord(
        date=current_date(),
        complete=complete,
        origin=replace(origin, versions=origin.versions | compared_versions()),
        threads=torch.get_num_threads(),
        asked=asdict(options),
        amounts=asdict(context.sizes),
        images=context.images.description,
        rows=tuple(each for each in found if isinstance(each, Measurement)),
        left_out=tuple(each for each in found if isinstance(each, Skipped)),
    )
