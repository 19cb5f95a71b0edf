"""What a run leaves: one line of JSON, from which tables are made without training anything again.

A file of records is only ever added to. Lines that cannot be used are told and passed over; they stay where they are.
"""

import errno
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from memwrap.data import PUBLISHED, DataSet
from memwrap.errors import MemwrapError, RunError, SaveError, brief
from memwrap.reproduce.grid import MEASURED, STANDARD, Task, settings_of
from memwrap.runs.drawn import SUBSET, WHOLE
from memwrap.runs.folder import versions
from memwrap.storage.locks import alone, alone_if_free
from memwrap.storage.parsing import built
from memwrap.training.settings import ResolvedSettings, Settings
from memwrap.version import __version__

FORMAT = "memwrap record"
FORMAT_VERSION = 1
# What memories are drawn from, as metrics name it; the last: images of which the paper's share was trained on.
SHARE = "published_share"
SOURCES = (SUBSET, WHOLE, SHARE)
# Settings that are not open when they are None: all samples, no projection, no weights to begin with.
NONE_IS_A_VALUE = ("samples", "project", "weights")
ROUNDING = 1e-6  # of shares
MOST_SECONDS = 1e9  # thirty years: more is no time that a run took
ROOM = 1 << 20  # bytes, which a hundred records take


@dataclass(frozen=True)
class Origin:
    """By which program, and where, a run was made."""

    commit: str | None  # None: the program is in no repository
    dirty: bool | None  # whether its files were changed since that commit
    code: str  # SHA-256 of its files, which tells programs apart without a repository, too
    versions: dict[str, str]
    device: str
    engine: str
    side_by_side: int  # runs that were trained at the same time


@dataclass(frozen=True)
class Images:
    """The data set that a run was given."""

    source: str  # a published name, or that of a folder or zip
    fingerprint: str
    training: int  # images
    test: int


@dataclass(frozen=True)
class Seconds:
    """What a run took; of a training side by side, its share."""

    training: float
    evaluation: float


@dataclass(frozen=True)
class Record:
    """A finished run. metrics: shares from 0 to 1, as `memwrap evaluate` names them."""

    task: Task
    settings: ResolvedSettings
    images: Images
    subset: str  # a hash of the indices of the images that it was trained on
    origin: Origin
    seconds: Seconds
    date: str
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """A run that came to no result; it is tried again."""

    task: Task
    reason: str
    origin: Origin
    date: str


@dataclass(frozen=True)
class Records:
    """What files of records hold."""

    results: dict[Task, Record] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()  # the last of each run that has no result
    problems: tuple[str, ...] = ()  # lines that do not count, each with its file, its number, and why


def now() -> str:
    """The date of a record."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def origin_of(device: str, engine: str, side_by_side: int) -> Origin:
    """This program, on that device."""
    import torch

    commit, dirty = _commit()
    with_cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return Origin(commit, dirty, _own_code(), versions() | with_cuda, device, engine, side_by_side)


def source_name(data: DataSet) -> str:
    """A published name; of a folder or zip only its own name, which is never a published one."""
    own = Path(data.name).name
    name = data.name if data.name in PUBLISHED else f"./{own}" if own in PUBLISHED else own
    return name.encode("utf-8", "backslashreplace").decode()  # a file's name may be no text


def score(metrics: Mapping[str, Any], metric: str, source: str = SUBSET) -> float | None:
    """A metric from 0 to 1, with memories drawn from the source; the mean over repeats. None where it was not measured.

    Without a memory there is only an accuracy, and it has no source.
    """
    found: Any = metrics.get("standard", {}).get(metric) if metric == "accuracy" else None
    if "standard" not in metrics:
        found = metrics["drawn"].get(source, {}).get(metric, {}).get("mean")
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 1:
        raise ValueError(f"has {found!r} as {metric}; expected a share from 0 to 1")
    return float(found)


# Writing


def append(path: Path, entry: Record | Failure) -> None:
    """Add a line, which is on the disk when this returns; several processes may do so at the same time."""
    content = (json.dumps(as_json(entry), allow_nan=False) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path), path.open("ab+", buffering=0) as file:
            # What a process left that was killed while it wrote, or on a full disk, must not swallow this line.
            content = content if _ends_whole(file) else b"\n" + content
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
    except OSError as error:
        raise SaveError(f"{path}: the record of {entry.task.name} cannot be written ({error})") from error


@contextmanager
def adding_to(path: Path) -> Iterator[bool]:
    """Tells whether this is the only process that makes runs for the file; others are told, until it ends."""
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            only_one = held.enter_context(alone_if_free(path.with_name(f"{path.name}.runs")))
        except OSError as error:
            raise _not_writable(path, error) from error
        yield only_one


def check_writable(path: Path) -> None:
    """A SaveError now, if lines could not be added later, or if there is no room for some more of them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path), path.open("ab"), tempfile.TemporaryFile(dir=path.parent, buffering=0) as probe:
            if probe.write(bytes(ROOM)) != ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise _not_writable(path, error) from error


def _not_writable(path: Path, error: OSError) -> SaveError:
    return SaveError(f"{path}: records cannot be written there ({error}); make room, or name another file")


def _ends_whole(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def as_json(entry: Record | Failure) -> dict[str, Any]:
    """What `from_json` takes."""
    outcome = "done" if isinstance(entry, Record) else "failed"
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, "outcome": outcome, **asdict(entry)}
    if isinstance(entry, Record):
        content["settings"] = entry.settings.model_dump()
    return content


# Reading


def read(paths: Sequence[Path], settings_for: Callable[[Task], Settings] = settings_of) -> Records:
    """All that files of records hold; one that is not there holds nothing.

    A run may be in them twice. With the same results it counts once. With others, the older counts, whichever file
    has it, and that is told: neither may be chosen by what it found, and a seed has but one vote.
    settings_for: what a run must have been made with; one of another recipe is no part of the table.
    """
    results: dict[Task, Record] = {}
    places: dict[Task, str] = {}
    failures: dict[Task, Failure] = {}
    problems: list[str] = []
    for place, line in _lines(paths):
        try:
            entry = from_json(_parsed(line))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
            problems.append(f"{place}: is passed over, as it {_why(error)}")
            continue
        task = entry.task
        if isinstance(entry, Failure):
            failures[task] = entry
        elif other := _other_recipe(entry, settings_for):
            problems.append(f"{place}: {task.name} is passed over, as it was made by other settings: {other}")
        elif task not in results:
            results[task], places[task] = entry, place
        elif other := _differs(results[task], entry):
            if entry.date < results[task].date:
                results[task], places[task], place = entry, place, places[task]
            problems.append(
                f"{place}: {task.name} is passed over, as it is in {places[task]}, too, with other {other}; "
                "the older counts"
            )
    left = tuple(failure for task, failure in failures.items() if task not in results)
    return Records(results, left, tuple(problems))


def _differs(one: Record, other: Record) -> str:
    """In what two records of a run differ that makes them two; nothing if it is the same run told twice."""
    if one.images.fingerprint != other.images.fingerprint:
        return "images"
    return "results" if one.metrics != other.metrics else ""


def from_json(stored: Any) -> Record | Failure:
    """The record that `as_json` gave; a ValueError, KeyError or TypeError says what is wrong with it."""
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise ValueError("is no record of memwrap's")
    if stored.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"has format version {stored.get('format_version')!r}; memwrap {__version__} reads {FORMAT_VERSION}"
        )
    task, origin, date = (
        built(Task, stored["task"], "task"),
        built(Origin, stored["origin"], "origin"),
        _text(stored, "date"),
    )
    outcome = _text(stored, "outcome")
    if outcome == "failed":
        return Failure(task, _text(stored, "reason"), origin, date)
    if outcome != "done":
        raise ValueError(f"has the outcome {outcome!r}; expected done or failed")
    record = Record(
        task=task,
        # Every value is compared with what it must be when a table is made.
        settings=_settings(stored["settings"]),
        images=built(Images, stored["images"], "images"),
        subset=_text(stored, "subset"),
        origin=origin,
        seconds=built(Seconds, stored["seconds"], "seconds"),
        date=date,
        metrics=stored["metrics"],
    )
    _check(record)
    return record


def _settings(stored: dict[str, Any]) -> ResolvedSettings:
    if missing := sorted(ResolvedSettings.model_fields.keys() - stored.keys()):
        raise KeyError(f"settings.{missing[0]}")
    return ResolvedSettings(**stored)


def _lines(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Each line that is not empty, and where it stands, as "records.jsonl, line 3"."""
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


def _parsed(line: bytes) -> Any:
    try:
        found = json.loads(line)
        # Escapes may hold what is no text, and could be written into no table.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is damaged or cut short ({brief(error)})") from error
    return found


def _why(error: Exception) -> str:
    """What is wrong with a line, as it goes on after "as it"."""
    if isinstance(error, KeyError):
        return f"has no {error.args[0]}"
    if type(error) is ValueError:
        return str(error)
    return f"is damaged ({brief(error)})"


def _text(stored: Mapping[str, Any], name: str) -> str:
    if not isinstance(stored[name], str):
        raise TypeError(f"{name} is a {type(stored[name]).__name__}")
    return str(stored[name])


def _check(record: Record) -> None:
    """What tables and estimates rely on."""
    if ("standard" in record.metrics) != (record.task.variant == STANDARD):
        raise ValueError(f"has metrics of another variant than {record.task.variant}")
    for metric in MEASURED:
        for source in SOURCES:
            score(record.metrics, metric, source)
    if score(record.metrics, "accuracy") is None:
        raise KeyError("metrics: accuracy")
    for value, parts in _told_twice(record.metrics):
        if abs(value - parts) > ROUNDING:
            raise ValueError(f"has {value!r} as a share that its own parts make {parts!r}")
    for name, value in asdict(record.seconds).items():
        if not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
            raise ValueError(f"has {value!r} seconds of {name}")


def _told_twice(metrics: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """What metrics hold whole and in parts, each with what the parts make of it: damage is seldom done to both."""
    if table := metrics.get("standard", {}).get("confusion"):
        right = sum(row[place] for place, row in enumerate(table))
        yield metrics["standard"]["accuracy"], right / sum(map(sum, table))
    for scores in metrics.get("drawn", {}).values():
        for found in (scores[metric] for metric in MEASURED if metric in scores):
            known = [value for value in found.get("repeats", ()) if value is not None]
            if known:
                yield found["mean"], sum(known) / len(known)


def _other_recipe(record: Record, settings_for: Callable[[Task], Settings]) -> str:
    """In which of its settings a run differs from what its task asks for, in words; nothing if in none."""
    try:
        expected = settings_for(record.task)
    except MemwrapError as error:
        return str(error)
    found = []
    for name in Settings.model_fields:
        wanted, had = getattr(expected, name), getattr(record.settings, name)
        # Left to the data or the device, so that any value may be right.
        is_open = (wanted is None and name not in NONE_IS_A_VALUE) or (name == "precision" and wanted == "auto")
        if not is_open and wanted != had:
            found.append(f"{name} {had}, expected {wanted}")
    return "; ".join(found)


# The program itself


def code_of(package: Path) -> str:
    """The hash of a package's files of Python, with their names: which program it is."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"\0{path.relative_to(package).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _own_code() -> str:
    return code_of(_package())


@cache
def _commit() -> tuple[str | None, bool | None]:
    """The commit that the program is at, and whether its files were changed since."""
    # An installed package may lie within a repository that is not its own.
    if _git("ls-files", "--error-unmatch", "version.py") is None or (commit := _git("rev-parse", "HEAD")) is None:
        return None, None
    return commit, bool(_git("status", "--porcelain", "--", "."))


def _git(*arguments: str) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", *arguments], cwd=_package(), capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout.strip()
    return None


def _package() -> Path:
    return Path(__file__).parent.parent
