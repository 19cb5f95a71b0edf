"""The tables under results/reproduce and results/bench, and the README's section of results, from the records there.

python results/summary.py           # write them
python results/summary.py --check   # say whether they are what the records give

Lines of the records that do not count are told, commits in programs.json that have another code, and tables that no
record gives; each ends it with 1.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

# They lie beside this script, where Python looks first when it runs one.
from summary_parts import (
    batch_as_memory,
    bench_headlines,
    bench_tables,
    paper_tables,
    programs,
    reading,
    readme_section,
)

from memwrap.errors import MemwrapError
from memwrap.reproduce.bench.record import BenchRecord
from memwrap.reproduce.records import Records
from memwrap.storage import checkpoint

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
MADE = ("reproduce", "bench")  # folders whose *.md are all made here


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing")
    only_check = options.parse_args().check
    runs = reading.runs_in(HERE)
    problems = [*runs.problems, *programs.contradicted(programs.named_in(HERE), HERE.parent)]
    for problem in problems:
        print(problem, file=sys.stderr)
    wanted = files(HERE, README.read_bytes().decode(), runs, reading.measured_in(HERE))
    stale = [path for path, content in wanted.items() if not path.exists() or path.read_bytes() != content.encode()]
    for path in stale:
        if only_check:
            print(f"{_named(path)}: is not what the records give; run python results/summary.py")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.write_file(path, wanted[path].encode())
            print(f"{_named(path)}: written")
    too_many = leftover(HERE, wanted)
    for path in too_many:
        print(f"{_named(path)}: no record gives it; remove it, unless records are damaged")
    if not stale:
        print(f"{len(wanted)} files are what the records give")
    return bool(problems or too_many or (only_check and stale))


def files(folder: Path, readme: str, runs: Records, measured: dict[str, BenchRecord]) -> dict[Path, str]:
    """What the records in a folder give: the text of each file, the README's among them."""
    rows, sides = paper_tables.rows_of(runs), batch_as_memory.sides_of(runs.results.values())
    made = paper_tables.files(rows, runs) | batch_as_memory.files(sides) | bench_tables.files(measured)
    section = [
        *paper_tables.paragraphs(rows, runs),
        *batch_as_memory.paragraphs(sides),
        *bench_headlines.paragraphs(measured),
    ]
    return {
        **{folder / name: text for name, text in made.items()},
        README: readme_section.with_section(readme, section),
    }


def leftover(folder: Path, wanted: Iterable[Path]) -> list[Path]:
    """Tables that lie in a folder of made ones, and that no record gives."""
    return sorted({path for name in MADE for path in folder.glob(f"{name}/*.md")} - set(wanted))


def _named(path: Path) -> Path:
    return path.relative_to(HERE.parent)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (MemwrapError, OSError, UnicodeError) as error:
        sys.exit(f"results/summary.py: {error}")
