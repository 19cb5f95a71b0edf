"""Packages that memwrap does without, and is only compared with."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from memwrap.errors import MemwrapError, brief

COMPARED_WITH = ("memorywrap", "entmax")


class MissingPackageError(MemwrapError):
    """A package that is compared with is not there, or is broken."""


def taken_from(package: str, name: str) -> Any:
    """Something that a package has, or a MissingPackageError that says what to do."""
    try:
        return getattr(importlib.import_module(package), name)
    except Exception as error:  # a package that is broken may raise anything, and the rest is measured all the same
        raise MissingPackageError(
            f"{name} cannot be had from {package} ({brief(error)}); pip install {package}"
        ) from error


def versions_of_others() -> dict[str, str]:
    """Of those that are there."""
    found = {}
    for name in COMPARED_WITH:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
