"""Packages that memwrap does without, and is only compared with."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from memwrap.errors import MemwrapError, brief

COMPARED_WITH = ("memorywrap", "entmax")


class MissingPackageError(MemwrapError):
    """A package that is compared with is not there."""


def imported(name: str) -> ModuleType:
    """The package, or a MissingPackageError that says what to do."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(f"{name} cannot be imported ({brief(error)}); pip install {name}") from error


def versions_of_others() -> dict[str, str]:
    """Of those that are there."""
    found = {}
    for name in COMPARED_WITH:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
