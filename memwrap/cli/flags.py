"""A command-line flag for each field of `Settings`."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from memwrap.training.settings import Settings

# The first setting of each panel of --help; the settings after it belong to the same panel.
PANELS = {"samples": "Data", "encoder": "Model", "memory": "Memory", "epochs": "Training"}


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for each setting to a command; it gets those that were given as a dict, its argument `settings`."""
    own = [each for each in inspect.signature(command).parameters.values() if each.name != "settings"]
    flags = list(_flags())

    def run(**given: Any) -> Any:
        values = {flag.name: given.pop(flag.name) for flag in flags}
        settings = {name: _split(name, value) for name, value in values.items() if value is not None}
        return command(**given, settings=settings)

    parameters = [*own, *flags]
    # typer reads a command's flags from its signature.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


def _flags() -> Iterator[inspect.Parameter]:
    panel = ""
    for name, field in Settings.model_fields.items():
        panel = PANELS.get(name, panel)
        kind, choices = _kind_and_choices(field.annotation)
        is_list = get_origin(kind) is tuple
        text = field.description or ""
        option = typer.Option(
            help=f"{text} One of {', '.join(choices)}." if choices and not is_list else text,
            rich_help_panel=panel,
            show_default=False,
            autocompletion=completing(choices),
        )
        flag_type: Any = str if is_list or choices else kind
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[flag_type | None, option]
        )


def _kind_and_choices(annotation: Any) -> tuple[Any, tuple[str, ...]]:
    """The plain type of a field, such as float or tuple[str, ...], and the choices of a Literal."""
    while get_origin(annotation) not in (None, tuple, Literal):  # Annotated, or a union with None
        annotation = next(each for each in get_args(annotation) if each is not NoneType)
    item = get_args(annotation)[0] if get_origin(annotation) is tuple else annotation
    return annotation, get_args(item) if get_origin(item) is Literal else ()


def _split(name: str, value: Any) -> Any:
    """Lists are written with commas."""
    if get_origin(_kind_and_choices(Settings.model_fields[name].annotation)[0]) is not tuple:
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def repeat_flags(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of a command's flags that were given, as command-line arguments."""
    flags: dict[str | None, Any] = {flag.name: flag for flag in context.command.params}
    arguments = []
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = flags[name]
            arguments += [flag.opts[0]] if flag.is_flag else [flag.opts[0], str(context.params[name])]
    return arguments


def completing(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Shell completion for a flag with these values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete
