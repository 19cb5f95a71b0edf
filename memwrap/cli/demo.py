"""memwrap demo."""

import shlex
from dataclasses import asdict
from pathlib import Path

from memwrap.cli.show import percent
from memwrap.cli.terminal import at_home, errors, plain_console, print_json
from memwrap.cli.train import refuse_here
from memwrap.metrics import mean_and_spread
from memwrap.runs.demo import REPORT, DemoResult, compare, demo_settings, require_demo
from memwrap.training.settings import PAPER_VARIANTS


def demo(out: Path, seeds: int, as_json: bool) -> None:
    """See `memwrap demo --help`."""
    out = at_home(out)
    refuse_here(out)
    require_demo(out)
    results = _compare(out, seeds)
    summary = {
        variant: mean_and_spread([each.accuracy for each in results if each.variant == variant])
        for variant in reversed(PAPER_VARIANTS)
    }
    if as_json:
        means = {variant: {"mean": mean, "spread": spread} for variant, (mean, spread) in summary.items()}
        print_json(
            {
                "run": str(out),
                "report": str(out / REPORT),
                "results": [asdict(each) for each in results],
                "summary": means,
            }
        )
        return
    console = plain_console()
    console.print(f"accuracy on {results[0].test_images} other digits, mean and standard deviation of {seeds}:")
    for variant, (mean, spread) in summary.items():
        console.print(f"  {variant:12} {percent(mean)} ± {100 * spread:.2f}")
    console.print(f"\nA run with a memory is in {out}. Try:")
    console.print("  " + shlex.join(["memwrap", "predict", str(out), str(out / "pictures")]))
    console.print("  " + shlex.join(["memwrap", "explain", str(out), str(out / "pictures")]))
    console.print("  " + shlex.join(["memwrap", "evaluate", str(out)]))
    console.print(f"Explanations of some predictions, to open in a browser: {out / REPORT}")


def _compare(out: Path, seeds: int) -> list[DemoResult]:
    """All results, each printed as soon as it is known."""
    settings, results = demo_settings(PAPER_VARIANTS[0], 0), []
    errors.print(
        f"training {len(PAPER_VARIANTS)} variants on {settings.samples} digits, {settings.epochs} epochs, "
        f"{seeds} seeds ..."
    )
    for result in compare(seeds, out):
        results.append(result)
        errors.print(f"  {result.variant}, seed {result.seed}: {percent(result.accuracy)}")
    return results
