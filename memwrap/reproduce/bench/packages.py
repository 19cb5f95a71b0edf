"""Packages that memwrap is compared with but does not need."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from memwrap.errors import MemwrapError, brief

COMPARED = ("memorywrap", "entmax")


class MissingPackageError(MemwrapError):
    """A package to compare with is missing or broken."""


def import_from(package: str, name: str) -> Any:
    """An attribute of a package, or a MissingPackageError."""
    try:
        return getattr(importlib.import_module(package), name)
    except Exception as error:  # a broken package may raise anything, and the rest is measured all the same
        raise MissingPackageError(
            f"{name} cannot be imported from {package} ({brief(error)}); pip install {package}"
        ) from error


def compared_versions() -> dict[str, str]:
    """The versions of the packages that are installed."""
    found = {}
    for name in COMPARED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
