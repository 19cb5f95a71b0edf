"""Records of runs: one line of JSON each, from which tables are made without training anything again."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from memwrap.data import PUBLISHED, DataSet
from memwrap.errors import MemwrapError, RunError, brief
from memwrap.reproduce.provenance import STORED, Provenance
from memwrap.reproduce.tasks import MEASURED, STANDARD, Task
from memwrap.runs.drawn import SUBSET, WHOLE
from memwrap.storage.validation import describe
from memwrap.training.settings import ResolvedSettings, Settings
from memwrap.version import __version__

FORMAT = "memwrap record"
FORMAT_VERSION = 1
# Sources of memory samples in evaluation, by their names in `metrics`. In the last one, the share of images that the
# model was trained on is that of the paper.
SHARE = "published_share"
SOURCES = (SUBSET, WHOLE, SHARE)
# Settings for which None is a value: all samples, no projection, no initial weights. Elsewhere it means "not set".
NONE_IS_A_VALUE = ("samples", "project", "weights")
# Settings that lines of format version 1 may lack, as they are newer; such runs had the default.
NEWER_SETTINGS = ("scale", "contrast")
TOLERANCE = 1e-6  # between a score and the mean of its parts

_Count = Annotated[int, Field(ge=0)]
_Duration = Annotated[float, Field(ge=0, le=1e9)]


def _check_complete(settings: Any) -> Any:
    """Refuse settings that lack a field: the default may not be the value that the run had."""
    if isinstance(settings, dict):
        required = ResolvedSettings.model_fields.keys() - set(NEWER_SETTINGS)
        if missing := sorted(required - settings.keys()):
            raise ValueError(f"{missing[0]} is missing")
    return settings


@dataclass(frozen=True, config=STORED)
class ImageInfo:
    """The data set of a run."""

    source: str  # a published name, or that of a folder or zip
    fingerprint: str
    training: _Count  # images
    test: _Count


@dataclass(frozen=True, config=STORED)
class Seconds:
    """The duration of a run; the share of one run where several were trained together."""

    training: _Duration
    evaluation: _Duration


@dataclass(frozen=True, config=STORED)
class RunRecord:
    """A finished run. metrics: numbers from 0 to 1, by the names of `memwrap evaluate`."""

    task: Task
    settings: Annotated[ResolvedSettings, BeforeValidator(_check_complete)]
    images: ImageInfo
    subset: str  # a hash of the indices of the training images
    origin: Provenance
    seconds: Seconds
    date: str
    metrics: dict[str, Any]

    def __post_init__(self) -> None:
        if ("standard" in self.metrics) != (self.task.variant == STANDARD):
            raise ValueError(f"metrics do not belong to variant {self.task.variant}")
        try:
            for metric in MEASURED:
                for source in SOURCES:
                    score(self.metrics, metric, source)
            if score(self.metrics, "accuracy") is None:
                raise ValueError("metrics have no accuracy")
            for value, expected in _redundant_scores(self.metrics):
                if abs(value - expected) > TOLERANCE:
                    raise ValueError(f"metrics give {value!r} for a score whose parts give {expected!r}")
        except (KeyError, TypeError, AttributeError, IndexError, ZeroDivisionError) as error:
            raise ValueError(f"metrics are damaged ({brief(error)})") from error


@dataclass(frozen=True, config=STORED)
class Failure:
    """A run without a result; it is tried again."""

    task: Task
    reason: str
    origin: Provenance
    date: str


@dataclass(frozen=True)
class Records:
    """The contents of record files."""

    results: dict[Task, RunRecord] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()  # the last one of each run that has no result
    problems: tuple[str, ...] = ()  # skipped lines: file, line number, reason


_KINDS: dict[Any, TypeAdapter[Any]] = {"done": TypeAdapter(RunRecord), "failed": TypeAdapter(Failure)}


def score(metrics: Mapping[str, Any], metric: str, source: str = SUBSET) -> float | None:
    """A metric from 0 to 1, averaged over repeats, with memory samples from the source. None: not measured.

    Without a memory there is an accuracy only, and it has no source.
    """
    if "standard" in metrics:
        value = metrics["standard"].get(metric) if metric == "accuracy" else None
    else:
        value = metrics["drawn"].get(source, {}).get(metric, {}).get("mean")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{metric} is {value!r}; expected a number from 0 to 1")
    return float(value)


def _redundant_scores(metrics: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Scores that are stored both whole and in parts, each with what its parts give: damage seldom hits both."""
    if table := metrics.get("standard", {}).get("confusion"):
        correct = sum(row[label] for label, row in enumerate(table))
        yield metrics["standard"]["accuracy"], correct / sum(map(sum, table))
    for scores in metrics.get("drawn", {}).values():
        for found in (scores[metric] for metric in MEASURED if metric in scores):
            repeats = [value for value in found.get("repeats", ()) if value is not None]
            if repeats:
                yield found["mean"], sum(repeats) / len(repeats)


def source_name(data: DataSet) -> str:
    """A published name; for a folder or zip its own name, marked where it would read as a published one."""
    own = Path(data.name).name
    name = data.name if data.name in PUBLISHED else f"./{own}" if own in PUBLISHED else own
    return name.encode("utf-8", "backslashreplace").decode()  # file names need not be text


def to_json(entry: RunRecord | Failure) -> dict[str, Any]:
    """The contents of a line."""
    outcome = "done" if isinstance(entry, RunRecord) else "failed"
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, "outcome": outcome, **asdict(entry)}
    if isinstance(entry, RunRecord):
        content["settings"] = entry.settings.model_dump()
    return content


def parse_line(line: bytes) -> RunRecord | Failure:
    """The entry of a line; a ValueError with the reason if it cannot be used."""
    try:
        stored = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"damaged or cut short ({brief(error)})") from error
    if not isinstance(stored, dict) or stored.pop("format", None) != FORMAT:
        raise ValueError("not a record of memwrap")
    if (version := stored.pop("format_version", None)) != FORMAT_VERSION:
        raise ValueError(f"format version {version!r}; memwrap {__version__} reads {FORMAT_VERSION}")
    if (outcome := stored.pop("outcome", None)) not in ("done", "failed"):
        raise ValueError(f"outcome is {outcome!r}; expected done or failed")
    try:
        # Encoded again, because escapes may encode lone surrogates, which cannot be written into a table.
        entry: RunRecord | Failure = _KINDS[outcome].validate_json(json.dumps(stored, ensure_ascii=False).encode())
    except ValidationError as error:
        raise ValueError(describe(error)) from error
    return entry


def read_records(paths: Sequence[Path], settings_for: Callable[[Task], Settings] = Task.settings) -> Records:
    """The contents of record files; a missing file is empty.

    A run may occur twice. With equal results it counts once. With different results the older one counts, and the other
    is reported: neither may be chosen for what it found, and a seed counts once.
    settings_for: the settings that a run must have been made with. Runs with other settings are skipped.
    """
    results: dict[Task, RunRecord] = {}
    places: dict[Task, str] = {}
    failures: dict[Task, Failure] = {}
    problems: list[str] = []
    for place, line in _lines(paths):
        try:
            entry = parse_line(line)
        except ValueError as error:
            problems.append(f"{place}: skipped: {error}")
            continue
        task = entry.task
        if isinstance(entry, Failure):
            failures[task] = entry
        elif other := _different_settings(entry, settings_for):
            problems.append(f"{place}: skipped: {task.name} has other settings: {other}")
        elif task not in results:
            results[task], places[task] = entry, place
        elif other := _difference(results[task], entry):
            if entry.date < results[task].date:
                results[task], places[task], place = entry, place, places[task]
            problems.append(
                f"{place}: skipped: {task.name} has different {other} in {places[task]}, which is older or first"
            )
    open_failures = tuple(failure for task, failure in failures.items() if task not in results)
    return Records(results, open_failures, tuple(problems))


def _difference(one: RunRecord, other: RunRecord) -> str:
    """What distinguishes two records of one task; empty if they describe the same run."""
    if one.images.fingerprint != other.images.fingerprint:
        return "images"
    return "results" if one.metrics != other.metrics else ""


def _lines(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Each line that is not blank, with its place, as "records.jsonl, line 3"."""
    for path in paths:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error}); name a file of records") from error
        for number, line in enumerate(content.split(b"\n"), 1):
            if line.strip():
                yield f"{path}, line {number}", line


def _different_settings(record: RunRecord, settings_for: Callable[[Task], Settings]) -> str:
    """The settings in which a run differs from what its task asks for; empty if there are none."""
    try:
        expected = settings_for(record.task)
    except MemwrapError as error:
        return str(error)
    different = []
    for name in Settings.model_fields:
        wanted, actual = getattr(expected, name), getattr(record.settings, name)
        # Values that data or device decide: any may be right.
        is_open = (wanted is None and name not in NONE_IS_A_VALUE) or (name == "precision" and wanted == "auto")
        if not is_open and wanted != actual:
            different.append(f"{name} {actual}, expected {wanted}")
    return "; ".join(different)
