"""All measurements that are asked for, one after the other."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from memwrap import encoders
from memwrap.data import DataSet
from memwrap.errors import SettingsError
from memwrap.reproduce.bench import attention, inference, memory, training
from memwrap.reproduce.bench.amounts import amounts_for, encoders_for
from memwrap.reproduce.bench.packages import versions_of_others
from memwrap.reproduce.bench.record import BenchRecord, Finding, LeftOut, Row
from memwrap.reproduce.bench.stand import MADE_UP, BenchContext, clear, supply_from
from memwrap.reproduce.bench.timing import Stopwatch, clock_for
from memwrap.reproduce.records import now, origin_of
from memwrap.runs.training import device_name

PARTS = (training.STEPS, training.SIZES, training.WHOLE, inference.PART, attention.PART, memory.PART)
_BY_ENCODER: dict[str, Callable[[BenchContext, str], Iterator[Finding]]] = {
    training.STEPS: training.measure_steps,
    training.SIZES: training.measure_sizes,
    training.WHOLE: training.measure_trainings,
    inference.PART: inference.measure,
    memory.PART: memory.measure,
}


@dataclass(frozen=True)
class Asked:
    """What is to be measured, and how much of it. Empty parts stand for all, empty encoders for the device's usual."""

    parts: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    side_by_side: int = 5
    rounds: int | None = None
    quick: bool = False


def resolve_settings(asked: Asked, device: torch.device) -> Asked:
    """The same with nothing left open; a SettingsError for what is not known."""
    _check("part", asked.parts, PARTS)
    _check("encoder", asked.encoders, encoders.names())
    if asked.side_by_side < 1 or (asked.rounds is not None and asked.rounds < 1):
        raise SettingsError(
            f"side_by_side is {asked.side_by_side} and rounds is {asked.rounds}; expected numbers of at least 1"
        )
    chosen = tuple(part for part in PARTS if part in asked.parts) or PARTS
    return replace(asked, parts=chosen, encoders=tuple(dict.fromkeys(asked.encoders)) or encoders_for(device.type))


def stand_for(asked: Asked, device: torch.device, data: DataSet | None = None) -> BenchContext:
    """Where it is measured. data: whose images are taken; None: made-up ones."""
    amounts = amounts_for(device.type, asked.quick, asked.rounds)
    supply = MADE_UP if data is None else supply_from(data, amounts)
    return BenchContext(device, amounts, Stopwatch(clock_for(device), random.Random(0)), asked.side_by_side, supply)


def findings(asked: Asked, stand: BenchContext, tell: Callable[[str], None] = lambda _: None) -> Iterator[Finding]:
    """Each as soon as it is there. asked: settled. tell: hears what is measured next."""
    for part in asked.parts:
        if part == attention.PART:
            tell(part)
            yield from attention.measure(stand)
            continue
        for encoder in asked.encoders:
            tell(f"{part}, {encoder}")
            yield from _BY_ENCODER[part](stand, encoder)
            clear(stand.device)


def record_of(asked: Asked, stand: BenchContext, found: Sequence[Finding], complete: bool) -> BenchRecord:
    """What was found so far, with all that tells where and by what."""
    origin = origin_of(device_name(stand.device), "bench", stand.side_by_side)
    return BenchRecord(
        date=now(),
        complete=complete,
        origin=replace(origin, versions=origin.versions | versions_of_others()),
        threads=torch.get_num_threads(),
        asked=asdict(asked),
        amounts=asdict(stand.amounts),
        images=stand.supply.words,
        rows=tuple(each for each in found if isinstance(each, Row)),
        left_out=tuple(each for each in found if isinstance(each, LeftOut)),
    )


def _check(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise SettingsError(f"{what} is {name!r}; expected one of {', '.join(known)}")
