"""Exports that import their module on first use: torch takes seconds, and `memwrap --help` does not need it."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`, which imports a name on first use.

    homes: for each name the module that defines it, or the module of that name itself.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        return module if module.__name__ == f"{package}.{name}" else getattr(module, name)

    return get
