"""The tables under results/reproduce and results/bench, and the README's section of results, from the records there.

python results/summary.py           # write them, and remove tables that no record gives any more
python results/summary.py --check   # say whether they are what the records give
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

# They lie beside this script, where Python looks first when it runs one.
from summary_parts import batch_as_memory, bench_headlines, bench_tables, paper_tables, reading, readme_section

from memwrap.errors import MemwrapError

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
MADE = ("reproduce", "bench")  # folders whose *.md are all made here


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing")
    only_check = options.parse_args().check
    wanted = files(HERE, README.read_text(encoding="utf-8"))
    too_many = leftover(HERE, wanted)
    if only_check:
        stale = [path for path, content in wanted.items() if not path.exists() or path.read_text("utf-8") != content]
        for path in [*stale, *too_many]:
            print(f"{path.relative_to(HERE.parent)}: is not what the records give; run python results/summary.py")
        if not stale and not too_many:
            print(f"{len(wanted)} files are what the records give")
        return bool(stale or too_many)
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for path in too_many:
        path.unlink()
        print(f"{path.relative_to(HERE.parent)}: removed, as no record gives it")
    return 0


def files(folder: Path, readme: str) -> dict[Path, str]:
    """What the records in a folder give: the text of each file, the README's among them."""
    runs, measured = reading.runs_in(folder), reading.measured_in(folder)
    rows, sides = paper_tables.rows_of(runs), batch_as_memory.sides_of(runs)
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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MemwrapError as error:
        sys.exit(f"results/summary.py: {error}")
