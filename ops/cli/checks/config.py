"""`penstock config`: settings with their origins, and the meaning of each."""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from inspect import get_annotations
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from penstock.ops.cli.setting_options import is_secret, metavar, option_name, takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_USAGE, fail
from penstock.producer.settings import ClientSettings
from penstock.producer.settings_sources import FileSettings, env_name
from penstock.worker.resolved_settings import open_settings
from penstock.worker.settings import WorkerSettings

config = typer.Typer(add_completion=False, no_args_is_help=True)

_COMMANDS: dict[str, type[FileSettings]] = {"worker": WorkerSettings, "client": ClientSettings}
_BOUNDS = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
_LATER = "decided when the model is loaded"

Format = Annotated[
    Literal["toml", "json"],
    typer.Option("--format", help="toml: a configuration file, with origins as comments. json: for programs."),
]


def _explain(key: str | None) -> None:
    if key is None:
        return
    name = key.lower().removeprefix("penstock_").removeprefix("--").replace("-", "_")
    found = {command: settings for command, settings in _COMMANDS.items() if name in settings.model_fields}
    if not found:
        near = get_close_matches(name, {name for settings in _COMMANDS.values() for name in settings.model_fields}, 1)
        fail(f"{key} is no setting.{f' Did you mean {near[0]}?' if near else ''}")
        raise typer.Exit(EXIT_USAGE)
    if len({settings.model_fields[name].description for settings in found.values()}) == 1:
        typer.echo("\n".join([name, *_explanation(next(iter(found.values())), name)]))
    else:
        texts = ["\n".join([f"{name} of a {command}", *_explanation(found[command], name)]) for command in found]
        typer.echo("\n\n".join(texts))
    raise typer.Exit(EXIT_OK)


@config.callback()
def _config(
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="KEY", callback=_explain, is_eager=True, help="Explain one setting."),
    ] = None,
) -> None:
    """Print the settings of a worker or a client with the origin of each, or explain one.

    $ penstock config worker --config penstock.toml

    $ penstock config --explain max_wait_ms
    """


@config.command()
@takes(WorkerSettings)
def worker(settings: WorkerSettings, form: Format = "toml") -> int:
    """Print the settings that `penstock worker` would have with these options. Secrets are not printed."""
    return _print(settings, form)


@config.command()
@takes(ClientSettings)
def client(settings: ClientSettings, form: Format = "toml") -> int:
    """Print the settings that a client would have with these options. Secrets are not printed."""
    return _print(settings, form)


def _print(settings: FileSettings, form: str) -> int:
    text = _toml(settings) if form == "toml" else json.dumps(_json(settings), indent=2, ensure_ascii=False)
    typer.echo(text)
    return EXIT_OK


def _toml(settings: FileSettings) -> str:
    tables = [
        "\n".join([f"[{table}]", *(_toml_line(settings, name) for name in names)])
        for table, names in _by_table(type(settings)).items()
    ]
    return "\n\n".join(tables)


def _toml_line(settings: FileSettings, name: str) -> str:
    """A key with its value. A comment where there is no value, or it is a secret."""
    value, origin = getattr(settings, name), _origin(settings, name)
    if value is None:
        return f"# {name} is not set ({origin})"
    if is_secret(type(settings).model_fields[name]):
        return f"# {name} is a secret ({origin})"
    shown = value if isinstance(value, bool | int | float) else str(value)
    return f"{name} = {json.dumps(shown, ensure_ascii=False)}  # {origin}"


def _json(settings: FileSettings) -> dict[str, dict[str, Any]]:
    """Table -> setting -> value and origin."""
    values = settings.model_dump(mode="json")
    return {
        table: {name: {"value": values[name], "origin": _origin(settings, name)} for name in names}
        for table, names in _by_table(type(settings)).items()
    }


def _origin(settings: FileSettings, name: str) -> str:
    is_open = isinstance(settings, WorkerSettings) and name in open_settings(settings)
    return _LATER if is_open else settings.origins.get(name, "default")


def _by_table(settings: type[FileSettings]) -> dict[str, list[str]]:
    """Table -> the settings that it is printed with."""
    tables: dict[str, list[str]] = {table: [] for table in settings.tables()}
    for name in settings.model_fields.keys() - {"config"}:
        tables[_table(settings, name)].append(name)
    order = list(settings.model_fields)
    return {table: sorted(names, key=order.index) for table, names in tables.items()}


def _table(settings: type[FileSettings], name: str) -> str:
    """The table of the class that has defined a setting last."""
    return next(str(vars(base)["table"]) for base in settings.__mro__ if name in get_annotations(base))


def _explanation(settings: type[FileSettings], name: str) -> Iterator[str]:
    field = settings.model_fields[name]
    yield f"  {field.description}"
    yield ""
    yield f"  type      {_type(field)}"
    yield f"  default   {_default(settings, name)}"
    yield f"  option    {option_name(name)}"
    yield f"  variable  {env_name(name)}"
    if name != "config":
        yield f"  file      {name} in [{_table(settings, name)}]"
    yield "  decided   by the option, else the variable, else the file, else the default"


def _type(field: FieldInfo) -> str:
    literals = [kind for kind in (field.annotation, *get_args(field.annotation)) if get_origin(kind) is Literal]
    bounds = [
        form.format(getattr(rule, bound))
        for bound, form in _BOUNDS.items()
        for rule in field.metadata
        if hasattr(rule, bound)
    ]
    if literals:
        shown = " or ".join(get_args(literals[0]))
    else:
        shown = "flag" if field.annotation is bool else metavar(field).lower()
    return ", ".join([shown, *bounds])


def _default(settings: type[FileSettings], name: str) -> str:
    field = settings.model_fields[name]
    if field.is_required():
        return "none: the setting is required"
    if settings is WorkerSettings and name in open_settings(WorkerSettings.model_construct(model="")):
        return _LATER
    return "not set" if field.default is None else str(field.default)
