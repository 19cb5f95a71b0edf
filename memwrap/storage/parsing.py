"""Dataclasses from JSON that somebody may have changed: each field is there, and is what it has to be."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def built(kind: Callable[..., _T], given: Any, name: str, typed: bool = True) -> _T:
    """The dataclass that `asdict` made what is given of, dataclasses and tuples of them within it included.

    A KeyError for what is missing, a TypeError for what is unknown or of another type; name: what they call it.
    typed: False leaves it to others to look at the values.
    """
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(given, dict):
        raise TypeError(f"{name} is a {type(given).__name__}")
    if missing := sorted(known - given.keys()):
        raise KeyError(f"{name}.{missing[0]}")
    hints = get_type_hints(kind) if typed else {}
    return kind(**{own: _value(value, hints.get(own, Any), f"{name}.{own}") for own, value in given.items()})


def _value(value: Any, hint: Any, name: str) -> Any:
    """A value of JSON as a field of a dataclass holds it."""
    if is_dataclass(hint):
        return built(hint, value, name)  # type: ignore[arg-type]
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_value(each, get_args(hint)[0], f"{name}[{place}]") for place, each in enumerate(value))
    if not _fits(value, hint):
        raise TypeError(f"{name} is {value!r}")
    return value


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(each, get_args(hint)[1]) for each in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
