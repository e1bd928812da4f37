"""Command-line options made from the fields of a settings class."""

import functools
import inspect
import os
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from rich.markup import escape

from penstock.ops.cli.command_settings import unknown_variables
from penstock.ops.cli.option_panels import in_panels, panel_of
from penstock.ops.cli.terminal import EXIT_USAGE, exit_code_of, fail
from penstock.producer.secret_url import SecretUrl, without_secrets
from penstock.producer.settings_sources import FILE_ONLY, LISTS, FileSettings, Settings, SettingsFileError, env_name

S = TypeVar("S", bound=Settings)

_KINDS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH", SecretStr: "TEXT", SecretUrl: "TEXT"}


def takes(settings: type[S], *, without: Collection[str] = ()) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Decorate `body(settings, **own) -> exit code` into a typer command with one option for each settings field.

    The settings class receives only the options that were given, as text. It reads environment variables and the
    configuration file, fills in defaults, converts and validates. The body's own parameters (typer arguments and
    options) stay as they are. In place of one that is a dataclass, whose fields several commands share, stand these
    fields, but for those in `without`. A PENSTOCK_ variable that is no setting of any command ends the command.
    """

    def decorate(body: Callable[..., int]) -> Callable[..., None]:
        own = {name: one for name, one in _signature(body).items() if name != "settings"}
        shared: dict[str, Any] = {name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)}
        flat = [part for one in own.values() for part in _parts(one) if part.name not in without]
        parameters = [*flat, *_parameters(settings)]

        def run(made: S, given: dict[str, Any]) -> int:
            for name, kind in shared.items():
                given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind) if one.name in given})
            return body(made, **given)

        @functools.wraps(body)
        def command(**given: Any) -> None:
            options = {name: value for name in settings.model_fields if (value := given.pop(name, None)) is not None}
            if unknown := unknown_variables(os.environ):
                for sentence in unknown:
                    fail(sentence)
                raise typer.Exit(EXIT_USAGE)
            try:
                made = settings(**options)
            except (ValidationError, SettingsFileError) as error:
                for sentence in _sentences(settings, options, error):
                    fail(sentence)
                raise typer.Exit(EXIT_USAGE) from error
            raise typer.Exit(exit_code_of(lambda: run(made, given)))

        del command.__wrapped__  # set by wraps; typer would read the signature of the body
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
        command.settings = settings  # type: ignore[attr-defined]  # read by `settings_by_command`
        command.__annotations__ = {param.name: param.annotation for param in parameters}
        return command

    return decorate


def option_name(field: str) -> str:
    """`max_wait_ms` -> `--max-wait-ms`."""
    return "--" + field.replace("_", "-")


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function, eval_str=True).parameters


def _parts(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """The parameters for a parameter of a body: for a dataclass, one for each field."""
    is_shared = is_dataclass(parameter.annotation)
    for one in _signature(parameter.annotation).values() if is_shared else [parameter]:
        yield one.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _parameters(settings: type[Settings]) -> Iterator[inspect.Parameter]:
    for name in in_panels(settings.model_fields):
        field = settings.model_fields[name]
        is_flag = field.annotation is bool
        if not is_flag and metavar(field) == FILE_ONLY:
            continue
        option = typer.Option(
            None,
            option_name(name) + (f"/--no-{option_name(name)[2:]}" if is_flag else ""),
            help=_help(field),
            metavar=None if is_flag else metavar(field),
            rich_help_panel=panel_of(name),
        )
        annotation = (bool | None) if is_flag else (str | None)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _help(field: FieldInfo) -> str:
    """Description, choices and default, as rich markup. `EPILOG` has the rule of the environment variables."""
    shown = f" ({', '.join(choices(field))})" if choices(field) else ""
    return f"{escape((field.description or '') + shown)} [dim]{escape(_default(field))}[/dim]"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "[required]"
    if field.default is None or field.default is False or field.default == "":
        return ""
    if field.default is True:
        return "[default: on]"
    return f"[default: {field.default:g}]" if isinstance(field.default, float) else f"[default: {field.default}]"


def metavar(field: FieldInfo) -> str:
    """The field's own, or its kind."""
    own = field.json_schema_extra
    return str(own["metavar"]) if isinstance(own, dict) and "metavar" in own else _kind(field.annotation)


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        (inner,) = (arg for arg in get_args(annotation) if arg is not type(None))
        return _kind(inner)
    if origin is Literal:
        return "CHOICE"
    if annotation not in _KINDS:
        raise TypeError(f"A field of type {annotation} has no option. This is a bug.")
    return _KINDS[annotation]


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The values that it may have; empty if they are not listed."""
    kinds = (field.annotation, *get_args(field.annotation))  # of a setting that may be open, the second has them
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


def _sentences(
    settings: type[Settings], given: Mapping[str, Any], error: ValidationError | SettingsFileError
) -> Iterator[str]:
    """Each fault of settings that were made from `given`, with the option, the variable or the line at fault."""
    if isinstance(error, SettingsFileError):
        yield str(error)
        return
    for detail in error.errors():
        field = str(detail["loc"][0]) if detail["loc"] else ""
        fault = detail["msg"].removeprefix("Value error, ")
        if field in LISTS and len(detail["loc"]) > 1:
            _, index, *names = detail["loc"]
            yield f"[[{field}]], number {int(index) + 1}: {': '.join([*map(str, names), fault])}."
            continue
        if detail["type"] == "missing":
            yield f"Missing option '{option_name(field)}' (env var: '{env_name(field)}')"
            continue
        if not field:  # of several options: its input would be all of them, with the passwords
            yield f"{fault}."
            continue
        place = settings.place_of(field, given) if issubclass(settings, FileSettings) else ""
        shown = "a secret" if is_secret(settings.model_fields[field]) else _shown(detail["input"])
        yield f"{place or f'{option_name(field)} (or {env_name(field)})'}: {fault}. Given: {shown}"


def _shown(value: object) -> str:
    """A value that was refused. Any text may be an address with a password, also one given for another setting."""
    return repr(without_secrets(value)) if isinstance(value, str) else without_secrets(repr(value))


def is_secret(field: FieldInfo) -> bool:
    """Whether the value must not be shown."""
    return SecretStr in (field.annotation, *get_args(field.annotation))
