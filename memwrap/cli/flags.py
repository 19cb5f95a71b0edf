"""Every setting as a flag: made from `Settings`, so that there is one definition of each."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin

import typer

from memwrap.training.settings import TYPES, Settings

# The first setting of each panel of --help; those after it belong to it, too.
PANELS = {"samples": "Data", "encoder": "Model", "memory": "Memory", "epochs": "Training"}


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with a flag for each setting; it gets those that were given, by name, as its argument `settings`."""
    own = [each for each in inspect.signature(command).parameters.values() if each.name != "settings"]
    flags = _parameters()

    def run(**given: Any) -> Any:
        settings = {flag.name: given.pop(flag.name) for flag in flags}
        return command(**given, settings=_as_values(settings))

    parameters = [*own, *flags]
    # typer reads a command's flags from its signature.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


def _parameters() -> list[inspect.Parameter]:
    found, panel = [], ""
    for setting in fields(Settings):
        panel = PANELS.get(setting.name, panel)
        kind = _flag_type(TYPES[setting.name])
        option = typer.Option(
            help=_words(setting),
            rich_help_panel=panel,
            show_default=False,
            autocompletion=completing(setting.metadata["choices"] or ()),
        )
        annotation = kind | None
        found.append(
            inspect.Parameter(
                setting.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[annotation, option],
            )
        )
    return found


def given_again(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of a command's flags that were given, as they can be given again."""
    flags: dict[str | None, Any] = {flag.name: flag for flag in context.command.params}
    again = []
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = flags[name]
            again += [flag.opts[0]] if flag.is_flag else [flag.opts[0], str(context.params[name])]
    return again


def completing(values: Iterable[str]) -> Callable[[str], list[str]]:
    """What a shell is told of a flag's values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def _flag_type(declared: Any) -> Any:
    """What a flag takes: a list is written with commas, so it is text."""
    kinds = [kind for kind in (get_args(declared) or (declared,)) if kind is not type(None)]
    kind = declared if get_origin(declared) is tuple else kinds[0]
    return str if get_origin(kind) is tuple else kind


def _is_list(declared: Any) -> bool:
    return any(get_origin(kind) is tuple for kind in (declared, *get_args(declared)))


def _words(setting: Any) -> str:
    words: str = setting.metadata["help"]
    choices = setting.metadata["choices"]
    if choices and _flag_type(TYPES[setting.name]) is str and not _is_list(TYPES[setting.name]):
        words += f" One of {', '.join(choices)}."
    return words


def _as_values(given: dict[str, Any]) -> dict[str, Any]:
    """Flags that were given, with lists taken apart."""
    values = {}
    for name, value in given.items():
        if value is None:
            continue
        parts = [part.strip() for part in value.split(",") if part.strip()] if _is_list(TYPES[name]) else value
        values[name] = parts
    return values
