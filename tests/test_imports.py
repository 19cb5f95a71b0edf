"""Packages import downwards only, and heavy libraries wait until they are needed."""

import ast
import subprocess
import sys
from pathlib import Path

import memwrap

PACKAGE = Path(memwrap.__file__).parent

# From the bottom to the top: a package imports itself and those before it, never those after it.
ORDER = [
    "_lazy",
    "errors",
    "version",
    "visible",
    "metrics",
    "nn",
    "storage",
    "data",
    "encoders",
    "explain",
    "models",
    "training",
    "report",
    "fused",
    "runs",
    "reproduce",
    "cli",
]
# The public face of the package: it names what lies in all others.
PUBLIC = ("__init__", "__main__", "attribution")


def package(name: str) -> str:
    """The package or root module of a dotted name: memwrap.nn.layer -> nn"""
    return name.split(".")[1] if "." in name else "__init__"


def imported_packages(path: Path) -> set[str]:
    """The packages that a file imports from, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            if node.module == "memwrap":
                names |= {f"memwrap.{alias.name}" for alias in node.names}
            else:
                names.add(str(node.module))
    return {package(name) for name in names if name.split(".")[0] == "memwrap"}


def test_every_package_has_its_place_in_the_order() -> None:
    entries = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert entries == {*ORDER, *PUBLIC}


def test_packages_import_downwards_only() -> None:
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if own not in PUBLIC:
            allowed = ORDER[: ORDER.index(own) + 1]
            assert imported_packages(path) <= set(allowed), path


def test_the_root_holds_few_files() -> None:
    assert len([path for path in PACKAGE.iterdir() if path.is_file()]) <= 8


def test_nothing_is_unpickled_but_weights_whose_hash_was_compared() -> None:
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        texts = list(map(ast.unparse, nodes))
        assert not {"import pickle", "torch.save"} & set(texts), path.name
        calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]
        assert all("weights_only=True" in map(ast.unparse, call.keywords) for call in calls), path.name
        assert texts.count("torch.load") == len(calls) == (path == PACKAGE / "encoders" / "lite.py"), path.name


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


def test_dir_shows_public_names_only() -> None:
    script = "import memwrap; assert dir(memwrap) == sorted(memwrap.__all__), dir(memwrap)"
    subprocess.run([sys.executable, "-c", script], check=True)
