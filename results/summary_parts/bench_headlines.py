"""Picks what the README tells of speed from the records of `memwrap bench`: a few comparisons, the newest of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memwrap.reproduce.bench import inference, memory, training
from memwrap.reproduce.bench.record import BenchRecord, Row
from memwrap.reproduce.bench.words import bytes_shown, seconds_shown
from memwrap.reproduce.grid import BATCH, RANDOM, STANDARD
from memwrap.reproduce.rendering import plain_text
from memwrap.reproduce.rows import ENCODERS, VARIANTS, once
from summary_parts.bench_tables import file_of
from summary_parts.markdown import markdown_table
from summary_parts.wording import NOTHING, encoder_name, span, where

LARGE_MEMORIES = (50_000, 1_000_000)  # encodings, whose cost the README tells


@dataclass(frozen=True)
class Headline:
    """Which rows it is made of, and what it says of one of them."""

    holds: Callable[[Row], bool]
    said: Callable[[Row, BenchRecord], str]


@dataclass(frozen=True)
class PassContext:
    """A headline for one encoder."""

    label: str
    encoder: str
    device: str
    record: str  # its name, and whether it is whole
    rounds: int
    text: str


def paragraphs(measured: Mapping[str, BenchRecord]) -> list[str]:
    """Where it was measured, and the headlines. What was measured by --quick tells nothing of speed."""
    measured = {name: record for name, record in measured.items() if not record.asked.get("quick")}
    by_place: dict[str, list[str]] = {}
    for name, record in measured.items():
        by_place.setdefault(where([record]), []).append(f"[{plain_text(name)}](results/{file_of(name)})")
    full = "; ".join(f"{', '.join(links)} on {place}" for place, links in by_place.items())
    about = (
        "**Speed**, by `memwrap bench`: the time of one thing over that of another, the median of n rounds in which "
        "both were timed; of runs side by side, which are trained at once, one run's share. The published loop is "
        "its `memorywrap` with a training loop such as its authors', written anew: one run, Pillow images that no "
        "worker loads ahead, fp16; ours is in bf16 with all images on the device. It leaves the GPU waiting, so its "
        "time is much that of the host, and other records may be of other hosts; its arithmetic alone has a line of "
        f"its own. Full tables: {full}."
    )
    told = _headlines(measured)
    return [about, *([_table(told)] if told else [])] if measured else []


def _headlines(measured: Mapping[str, BenchRecord]) -> list[PassContext]:
    """Each comparison once for a device and an encoder: the newest."""
    newest: dict[tuple[str, str, str], PassContext] = {}
    for headline in HEADLINES:
        for name, record in sorted(measured.items(), key=lambda item: item[1].date):
            for row in record.rows:
                if row.encoder is not None and headline.holds(row):
                    said, device = headline.said(row, record), record.origin.device
                    source = name if record.complete else f"{name} (stopped before its end)"
                    told = PassContext(_label_of(row), row.encoder, device, source, row.rounds, said)
                    newest[device, told.label, told.encoder] = told
    return list(newest.values())


def _label_of(row: Row) -> str:
    """What is compared; a memory's size is in the name already."""
    what = f"predicting {row.facts.get('batch')} images" if row.part == memory.PART else row.subject
    return f"{what}: {row.name}, against {row.base}"


def _table(told: Sequence[PassContext]) -> str:
    """A line for each comparison on a device, and a column for each encoder."""
    encoders = sorted(once(each.encoder for each in told), key=_paper_order)
    lines = []
    for label, device in once((each.label, each.device) for each in told):
        own = {each.encoder: each for each in told if (each.label, each.device) == (label, device)}
        texts = [plain_text(own[encoder].text) if encoder in own else NOTHING for encoder in encoders]
        sources = plain_text(", ".join(once(each.record for each in own.values())))
        if len({each.device for each in told}) > 1:
            sources = f"{plain_text(device)}: {sources}"
        lines.append([plain_text(label), *texts, f"{sources}, n = {span(each.rounds for each in own.values())}"])
    return markdown_table(["", *map(encoder_name, encoders), "from"], lines)


def _paper_order(encoder: str) -> tuple[int, str]:
    """The paper's encoders first, in its order."""
    known = list(ENCODERS)
    return (known.index(encoder) if encoder in known else len(known)), encoder


# Which rows make a headline


def _is_side_by_side(part: str) -> Callable[[Row], bool]:
    return lambda row: _beside_published(row, part) and "side_by_side" in row.facts


def _is_step_of(name: str) -> Callable[[Row], bool]:
    return lambda row: _beside_published(row, training.STEPS) and row.name == name


def _beside_published(row: Row, part: str) -> bool:
    return row.part == part and row.base == training.PUBLISHED


def _is_step_with(way: str) -> Callable[[Row], bool]:
    """Training that takes its memory that way, beside training without one."""
    return lambda row: _beside_standard(row, training.STEPS) and row.facts.get("memory") == way


def _is_read(row: Row) -> bool:
    """Ours beside no memory, where the class of each image is waited for; the published layer has rows of its own."""
    ours = _beside_standard(row, inference.PART) and row.name.startswith(VARIANTS["memory_wrap"])
    return ours and row.facts.get("classes_read") is True


def _is_memory_of(size: int) -> Callable[[Row], bool]:
    return lambda row: _beside_standard(row, memory.PART) and row.facts.get("memory") == size


def _beside_standard(row: Row, part: str) -> bool:
    return row.part == part and row.base == VARIANTS[STANDARD]


# What a headline says


def _times_as_fast(row: Row, record: BenchRecord) -> str:
    times = f"{seconds_shown(row.seconds.median)}, {seconds_shown(row.base_seconds.median)}"
    return f"{1 / row.ratio.median:.1f} times as fast ({times})"


def _times_as_fast_and_quartiles(row: Row, record: BenchRecord) -> str:
    """Of whole trainings, which differ more from round to round than others do."""
    if row.rounds == 1:
        return _times_as_fast(row, record)
    fastest, slowest = (1 / each for each in (row.ratio.lower, row.ratio.upper))
    return f"{_times_as_fast(row, record)}; quartiles {slowest:.1f} to {fastest:.1f}"


def _ratio(row: Row, record: BenchRecord) -> str:
    return f"{row.ratio.median:.2f}"


def _ratio_read_and_not(row: Row, record: BenchRecord) -> str:
    unread = [
        f"; {_ratio(other, record)} if nobody waits for the classes"
        for other in record.rows
        if (other.part, other.encoder, other.name, other.base) == (row.part, row.encoder, row.name, row.base)
        and other.facts == row.facts | {"classes_read": False}
    ]
    return "".join([_ratio(row, record), *unread])


def _ratio_and_room(row: Row, record: BenchRecord) -> str:
    if row.peak is None or row.base_peak is None:
        return _ratio(row, record)
    return f"{_ratio(row, record)}; peak {bytes_shown(row.peak)}, {row.base}'s {bytes_shown(row.base_peak)}"


HEADLINES = (
    Headline(_is_side_by_side(training.STEPS), _times_as_fast),
    Headline(_is_step_of(training.LOOP), _times_as_fast),
    Headline(_is_step_of(training.ARITHMETIC), _times_as_fast),
    Headline(_is_side_by_side(training.WHOLE), _times_as_fast_and_quartiles),
    Headline(_is_step_with(RANDOM), _ratio),
    Headline(_is_step_with(BATCH), _ratio),
    Headline(_is_read, _ratio_read_and_not),
    *(Headline(_is_memory_of(size), _ratio_and_room) for size in LARGE_MEMORIES),
)
