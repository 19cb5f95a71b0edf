"""python -m fuzz: attack for some minutes, print what was found."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="memwrap-fuzz-") as scratch:
        _prepare(Path(scratch))
        # Only now: libraries look for their caches when they are imported.
        from fuzz.campaign import CASES_OF_A_SEED, Campaign, Count, table
        from fuzz.genuine import make
        from fuzz.kinds import KINDS
        from fuzz.sandbox import Limits

        kinds = arguments.only.split(",") if arguments.only else list(KINDS)
        if unknown := set(kinds) - set(KINDS):
            print(f"there is no kind {', '.join(sorted(unknown))}; known are {', '.join(KINDS)}", file=sys.stderr)
            return 2
        (folder := Path(scratch) / "cases").mkdir()
        campaign = Campaign(make(Path(scratch) / "genuine"), folder, Limits())
        if arguments.case is not None:
            counts = {kind: Count() for kind in kinds}
            for kind in kinds:
                outcome = campaign.run_one(kind, arguments.case, counts[kind])
                print(f"{kind} {arguments.case}: {'accepted' if outcome.accepted else 'refused'} {outcome.message}")
        else:
            until = time.monotonic() + 60 * arguments.minutes
            print(f"seed {arguments.seed}, cases from {arguments.seed * CASES_OF_A_SEED}", flush=True)
            counts = campaign.run(kinds, arguments.seed, until, arguments.cases)
        print(f"\n{table(counts)}")
        return 1 if any(count.findings for count in counts.values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Attack memwrap with changed files.")
    parser.add_argument("--minutes", type=float, default=10, help="how long; default 10")
    parser.add_argument("--seed", type=int, default=0, help="which cases; default 0")
    parser.add_argument("--only", help="kinds, as in images,zips,runs,reports,yaml; default all")
    parser.add_argument("--cases", type=int, help="stop after this number of cases of each kind")
    parser.add_argument("--case", type=int, help="only this case, as a finding names it; needs --only")
    return parser.parse_args()


def _prepare(scratch: Path) -> None:
    """One thread, no GPU, no network of Hugging Face, and all caches in a folder of their own."""
    (home := scratch / "home").mkdir()
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HOME": str(home), "MPLCONFIGDIR": str(home)}
    os.environ |= {name: str(home) for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")}
    for name in ("HF_HUB_OFFLINE", "MEMWRAP_DEBUG"):  # memwrap itself has to stay off the network
        os.environ.pop(name, None)
    sys.dont_write_bytecode = True


if __name__ == "__main__":
    sys.exit(main())
