"""Command-line options made from the fields of a settings class, so that there is one list of options."""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings
from rich.markup import escape

from penstock.ops.cli.screen import EXIT_USAGE, exit_code_of, fail

S = TypeVar("S", bound=BaseSettings)

_KINDS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def takes(settings: type[S]) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Decorate `body(settings, **own) -> exit code` into a typer command.

    Each field becomes an option and an environment variable; the body's own parameters (typer arguments and options)
    stay. Values go to the settings class as text: it alone converts and validates.
    """

    def decorate(body: Callable[..., int]) -> Callable[..., None]:
        own = [param for name, param in inspect.signature(body, eval_str=True).parameters.items() if name != "settings"]
        parameters = [*own, *_parameters(settings)]

        @functools.wraps(body)
        def command(**given: Any) -> None:
            values = {name: given.pop(name) for name in settings.model_fields}
            try:
                made = settings(**{name: value for name, value in values.items() if value is not None})
            except ValidationError as error:
                for sentence in _sentences(error):
                    fail(sentence)
                raise typer.Exit(EXIT_USAGE) from error
            raise typer.Exit(exit_code_of(lambda: body(made, **given)))

        del command.__wrapped__  # set by wraps; typer would look through it
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
        command.__annotations__ = {param.name: param.annotation for param in parameters}
        return command

    return decorate


def option_name(field: str) -> str:
    """`max_wait_ms` -> `--max-wait-ms`."""
    return "--" + field.replace("_", "-")


def env_name(field: str) -> str:
    """`max_wait_ms` -> `PENSTOCK_MAX_WAIT_MS`."""
    return "PENSTOCK_" + field.upper()


def _parameters(settings: type[BaseSettings]) -> Iterator[inspect.Parameter]:
    for name, field in settings.model_fields.items():
        is_flag = field.annotation is bool
        option = typer.Option(
            _default(field),
            option_name(name) + (f"/--no-{option_name(name)[2:]}" if field.default is True else ""),
            help=escape((field.description or "") + _choices(field.annotation)),
            envvar=env_name(name),
            metavar=None if is_flag else _metavar(field.annotation),
        )
        annotation = bool if is_flag else (str | None)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _default(field: FieldInfo) -> Any:
    """`...` marks a required option; a value is shown in the help as it would be typed."""
    if field.is_required():
        return ...
    if field.default is None or isinstance(field.default, bool):
        return field.default
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def _metavar(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        (inner,) = (arg for arg in get_args(annotation) if arg is not type(None))
        return _metavar(inner)
    if origin is Literal:
        return "CHOICE"
    if annotation not in _KINDS:
        raise TypeError(f"No option can be made of a field of type {annotation}. This is a bug.")
    return _KINDS[annotation]


def _choices(annotation: Any) -> str:
    return f" ({', '.join(get_args(annotation))})" if get_origin(annotation) is Literal else ""


def _sentences(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        field = str(detail["loc"][0]) if detail["loc"] else ""
        where = f"{option_name(field)} (or {env_name(field)})" if field else "The options"
        yield f"{where}: {detail['msg'].removeprefix('Value error, ')}. Given: {detail['input']!r}"
