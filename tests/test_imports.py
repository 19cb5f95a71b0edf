"""The map of the rooms: imports go one way, and heavy libraries wait until they are needed."""

import ast
import subprocess
import sys
from pathlib import Path

import memwrap

PACKAGE = Path(memwrap.__file__).parent

# A room may import from those above it.
ROOMS = [
    "errors",
    "version",
    "durations",
    "seeds",
    "locks",
    "metrics.checks",
    "metrics.classification",
    "metrics.explanations",
    "metrics.selective",
    "metrics",
    "samplers",
    "tracing",
    "precision",
    "kernels",
    "kernels.streams",
    "kernels.blocks",
    "kernels.norms",
    "kernels.normalisation",
    "kernels.strips",
    "kernels.depthwise",
    "kernels.dropout",
    "kernels.gating",
    "kernels.neighbourhoods",
    "kernels.updating",
    "kernels.attention",
    "attention",
    "checks",
    "layer",
    "data",
    "data.labelled",
    "data.pictures",
    "data.containers",
    "data.files",
    "data.listing",
    "data.scan",
    "data.overlap",
    "data.streamed",
    "data.folders",
    "data.splits",
    "data.statistics",
    "data.download",
    "data.published",
    "data.sources",
    "transform",
    "settings",
    "recipes",
    "encoders.blocks",
    "encoders.densenet",
    "encoders.efficientnet",
    "encoders.googlenet",
    "encoders.mobilenet",
    "encoders.resnet",
    "encoders.shufflenet",
    "encoders.small",
    "encoders.tiny",
    "encoders.registry",
    "encoders",
    "surgery",
    "last_layer",
    "probes",
    "architectures",
    "store",
    "stored",
    "memory",
    "what_if",
    "flip_set",
    "explanation",
    "wording",
    "base",
    "model",
    "standard",
    "wrapping",
    "loading",
    "building",
    "inference",
    "prediction",
    "attribution.baselines",
    "attribution.explained",
    "attribution.pixels",
    "attribution.methods",
    "attribution.maps",
    "attribution.deletion",
    "attribution",
    "",
    "fingerprint",
    "report",
    "report.plain_files",
    "report.tokens",
    "report.pictures",
    "report.content",
    "report.records",
    "report.page",
    "report.making",
    "report.reading",
    "report.verifying",
    "report.figures",
    "stacked",
    "stacked.products",
    "stacked.convolutions",
    "stacked.run_by_run",
    "stacked.obstacles",
    "stacked.layers",
    "stacked.stack",
    "training.schedule",
    "training.augmentation",
    "training.step",
    "training.plan",
    "training.state",
    "training.loop",
    "training.side_by_side",
    "training",
    "evaluation",
    "runs",
    "runs.splits",
    "runs.folder",
    "runs.log",
    "runs.data",
    "runs.training",
    "runs.drawn",
    "runs.evaluation",
    "runs.reporting",
    "paper",
    "paper.published",
    "paper.verdict",
    "paper.rows",
    "paper.words",
    "paper.rendering",
    "paper.picture",
    "paper.grid",
    "paper.records",
    "paper.keeping",
    "paper.scores",
    "paper.costs",
    "paper.running",
    "paper.tables",
    "bench",
    "bench.timing",
    "bench.amounts",
    "bench.packages",
    "bench.room",
    "bench.record",
    "bench.words",
    "bench.stand",
    "bench.published_loop",
    "bench.training",
    "bench.inference",
    "bench.attention",
    "bench.memory",
    "bench.running",
    "demo",
    "cli",
    "cli.visible",
    "cli.failures",
    "cli.flags",
    "cli.signals",
    "cli.terminal",
    "cli.watch",
    "cli.reading",
    "cli.show",
    "cli.evaluate",
    "cli.predict",
    "cli.explain",
    "cli.verify",
    "cli.train",
    "cli.demo",
    "cli.reproduce",
    "cli.bench",
    "cli.app",
    "__main__",
]


def room(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def imported(path: Path) -> set[str]:
    """The rooms that a file imports from, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name.removeprefix("memwrap.") in ROOMS else str(node.module) for name in names}
    own = {name for name in found if name.split(".")[0] == "memwrap"}
    return {name.removeprefix("memwrap").removeprefix(".") for name in own}


def test_every_file_has_its_place_on_the_map() -> None:
    assert {room(path) for path in PACKAGE.rglob("*.py")} == set(ROOMS)


def test_imports_go_one_way() -> None:
    for path in PACKAGE.rglob("*.py"):
        place = ROOMS.index(room(path))
        assert [name for name in imported(path) if ROOMS.index(name) >= place] == [], path.name


def test_nothing_is_pickled() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Import) and "pickle" in {alias.name for alias in node.names}), path.name
            assert ast.unparse(node) not in ("torch.load", "torch.save"), path.name


def test_what_is_public_is_there_after_the_import_alone() -> None:
    script = (
        "import memwrap; print(*(getattr(memwrap, name) for name in memwrap.__all__)); memwrap.attribution.heatmaps"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)


def test_importing_memwrap_loads_no_heavy_library() -> None:
    heavy = {"timm", "torchvision", "transformers", "sklearn", "matplotlib", "captum", "pandas"}
    script = "import memwrap, sys; print(*sys.modules)"
    before = subprocess.run(
        [sys.executable, "-c", "import torch, sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    after = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert heavy & set(after.stdout.split()) <= heavy & set(before.stdout.split())
