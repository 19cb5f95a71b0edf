"""Case after case of each kind, what is wrong with them, and the table at the end."""

import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzz.genuine import Genuine, random_of
from fuzz.kinds import KINDS
from fuzz.sandbox import Limits, Outcome, run_case

FINDINGS = Path(__file__).parent / "findings"
CASES_OF_A_SEED = 10_000_000  # numbers of cases that belong to one seed
LARGEST_KEPT = 64 << 20  # bytes of a file that is kept with a finding


@dataclass(frozen=True)
class Finding:
    """A case that went wrong, and how to repeat it."""

    kind: str
    case: int
    words: str
    faults: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"python -m fuzz --only {self.kind} --case {self.case}"


@dataclass
class Count:
    """What happened in all cases of one kind."""

    cases: int = 0
    accepted: int = 0
    slowest: float = 0.0  # seconds
    largest: float = 0.0  # megabytes
    findings: list[Finding] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.cases += 1
        self.accepted += outcome.accepted
        self.slowest = max(self.slowest, outcome.seconds)
        self.largest = max(self.largest, outcome.megabytes)


@dataclass(frozen=True)
class Campaign:
    """Cases made from genuine files, each in its own folder within `folder`. keep: where findings are copied to."""

    genuine: Genuine
    folder: Path
    limits: Limits = field(default_factory=Limits)
    keep: Path | None = FINDINGS
    say: Callable[[str], None] = lambda text: print(text, flush=True)

    def run(self, kinds: Sequence[str], seed: int, until: float, cases: int | None = None) -> dict[str, Count]:
        """The kinds in turn until time.monotonic() is `until`, or for this number of cases of each kind."""
        counts = {kind: Count() for kind in kinds}
        number = 0
        while time.monotonic() < until and (cases is None or number < cases):
            for kind in kinds:
                self.run_one(kind, seed * CASES_OF_A_SEED + number, counts[kind])
            number += 1
        return counts

    def run_one(self, kind: str, case: int, count: Count) -> Outcome:
        """One case, added to the count."""
        folder = self.folder / f"{kind}-{case}"
        folder.mkdir()
        before = self._surroundings(folder)
        outcome = run_case(
            lambda: KINDS[kind](random_of(kind, case), self.genuine, folder),
            folder,
            self.limits,
            bait=(self.genuine.bait,),
        )
        if changed := sorted(before.items() ^ self._surroundings(folder).items()):
            fault = f"changes {changed[0][0]}, outside of its folder"
            outcome = replace(outcome, faults=(*outcome.faults, fault))
        count.add(outcome)
        if outcome.faults:
            finding = Finding(kind, case, outcome.words, outcome.faults)
            count.findings.append(finding)
            self.say(f"\n{finding.command}\n  {outcome.words}\n  " + "\n  ".join(outcome.faults))
            if self.keep is not None:
                _copy(folder, self.keep / folder.name)
        shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def _surroundings(self, own: Path) -> dict[str, object]:
        """What is around a case's folder, as native code writes files without Python noticing."""
        others = {str(path): 0 for path in self.folder.iterdir() if path != own}
        return {**others, **self.genuine.state()}


def table(counts: dict[str, Count]) -> str:
    header = ("kind", "cases", "refused", "accepted", "slowest s", "largest MB", "findings")
    rows = [
        (
            kind,
            str(count.cases),
            str(count.cases - count.accepted - len(count.findings)),
            str(count.accepted),
            f"{count.slowest:.1f}",
            f"{count.largest:.0f}",
            str(len(count.findings)),
        )
        for kind, count in counts.items()
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) if place == 0 else text.rjust(width) for place, (text, width) in enumerate(pairs))
        for pairs in ([*zip(row, widths, strict=True)] for row in (header, *rows))
    )


def _copy(folder: Path, to: Path) -> None:
    """Copy what a case was given, pipes and links as they are and sparse files cut."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, symlinks=True, copy_function=_copy_file)


def _copy_file(source: str, to: str, *, follow_symlinks: bool = True) -> None:
    status = os.lstat(source)
    if stat.S_ISFIFO(status.st_mode):
        os.mkfifo(to)
    elif stat.S_ISREG(status.st_mode):
        with Path(source).open("rb") as reading, Path(to).open("wb") as writing:
            writing.write(reading.read(LARGEST_KEPT))
            writing.truncate(status.st_size)
