"""`penstock config`: settings with their origins, and the meaning of each."""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from inspect import get_annotations
from typing import Annotated, Any, Literal

import typer
from pydantic.fields import FieldInfo

from penstock.ops.cli.command_settings import settings_by_command
from penstock.ops.cli.setting_options import choices, is_secret, metavar, option_name, takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_USAGE, fail
from penstock.producer.secret_url import SecretUrl
from penstock.producer.settings import ClientSettings
from penstock.producer.settings_sources import LISTS, FileSettings, Settings, env_name
from penstock.worker.model_settings import ModelSettings
from penstock.worker.resolved_settings import open_settings
from penstock.worker.settings import WorkerSettings

config = typer.Typer(add_completion=False, no_args_is_help=True)

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
    owners: dict[str, list[str]] = {}  # explanation -> those that it is true of
    known = _settings_by_owner()
    has_others = any(name in settings.model_fields for owner, settings in known.items() if not _is_bench(owner))
    for owner, settings in known.items():
        if name in settings.model_fields and not (has_others and _is_bench(owner)):
            owners.setdefault("\n".join(_explanation(settings, name)), []).append(owner)
    if not owners:
        near = get_close_matches(name, {name for settings in known.values() for name in settings.model_fields}, 1)
        fail(f"{key} is no setting.{f' Did you mean {near[0]}?' if near else ''}")
        raise typer.Exit(EXIT_USAGE)
    if len(owners) == 1:
        typer.echo("\n".join([name, *owners]))
    else:
        typer.echo("\n\n".join([f"{name} of {', '.join(of)}\n{text}" for text, of in owners.items()]))
    raise typer.Exit(EXIT_OK)


def _settings_by_owner() -> dict[str, type[Settings]]:
    commands = {name: of for name, of in settings_by_command().items() if of not in (WorkerSettings, ClientSettings)}
    return {"a worker": WorkerSettings, "a client": ClientSettings, **dict(sorted(commands.items()))}


def _is_bench(owner: str) -> bool:
    """Whether it is a benchmark. Their own settings are explained where no other command has one of that name."""
    return owner.startswith("bench ")


@config.callback()
def _config(
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="KEY", callback=_explain, is_eager=True, help="Explain one setting."),
    ] = None,
) -> None:
    """Print the settings of a worker or a client with the origin of each, or explain one of any command.

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
    return "\n\n".join([*tables, *_lists(settings)])


def _lists(settings: FileSettings) -> Iterator[str]:
    """The lists of tables: each of [[routes]]."""
    for name in LISTS:
        for one in getattr(settings, name, ()):
            given = one.model_dump(mode="json", include=one.model_fields_set)
            yield "\n".join([f"[[{name}]]", *(f"{key} = {_toml_value(value)}" for key, value in given.items())])


def _toml_value(value: object) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {_toml_value(one)}' for key, one in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _toml_line(settings: FileSettings, name: str) -> str:
    """A key with its value. A comment where there is no value, or it is or holds a secret."""
    value, origin = getattr(settings, name), _origin(settings, name)
    if value is None:
        return f"# {name} is not set ({origin})"
    if is_secret(type(settings).model_fields[name]):
        return f"# {name} is a secret ({origin})"
    if isinstance(value, SecretUrl) and str(value) != value.get_secret_value():
        return f"# {name} holds a secret: {value} ({origin})"
    shown = value if isinstance(value, bool | int | float | dict) else str(value)
    return f"{name} = {_toml_value(shown)}  # {origin}"


def _json(settings: FileSettings) -> dict[str, Any]:
    """Table -> setting -> value and origin; and the lists of tables."""
    values = settings.model_dump(mode="json")
    return {
        table: {name: {"value": values[name], "origin": _origin(settings, name)} for name in names}
        for table, names in _by_table(type(settings)).items()
    } | {name: values[name] for name in LISTS if name in values}


def _origin(settings: FileSettings, name: str) -> str:
    is_open = isinstance(settings, WorkerSettings) and name in open_settings(settings)
    return _LATER if is_open else settings.origins.get(name, "default")


def _by_table(settings: type[FileSettings]) -> dict[str, list[str]]:
    """Table -> the settings that it is printed with."""
    tables: dict[str, list[str]] = {table: [] for table in settings.tables()}
    for name in settings.model_fields.keys() - {"config", *LISTS}:
        tables[_table(settings, name)].append(name)
    order = list(settings.model_fields)
    return {table: sorted(names, key=order.index) for table, names in tables.items()}


def _table(settings: type[Settings], name: str) -> str:
    """The table of the class that has defined a setting last; empty for a setting that no file holds."""
    bases = [base for base in settings.__mro__ if "table" in vars(base) and name in get_annotations(base)]
    return str(vars(bases[0])["table"]) if bases else ""


def _explanation(settings: type[Settings], name: str) -> Iterator[str]:
    field = settings.model_fields[name]
    yield f"  {field.description}"
    yield ""
    yield f"  type      {_type(field)}"
    yield f"  default   {_default(settings, name)}"
    yield f"  option    {option_name(name)}"
    yield f"  variable  {env_name(name)}"
    table = _table(settings, name)
    if table:
        yield f"  file      {name} in [{table}]"
    yield f"  decided   by the option, else the variable, {'else the file, ' if table else ''}else the default"


def _type(field: FieldInfo) -> str:
    bounds = [
        form.format(getattr(rule, bound))
        for bound, form in _BOUNDS.items()
        for rule in field.metadata
        if hasattr(rule, bound)
    ]
    shown = " or ".join(choices(field)) or ("flag" if field.annotation is bool else metavar(field).lower())
    return ", ".join([shown, *bounds])


def _default(settings: type[Settings], name: str) -> str:
    field = settings.model_fields[name]
    if field.is_required():
        return "none: the setting is required"
    if issubclass(settings, ModelSettings) and name in open_settings(WorkerSettings.model_construct(model="")):
        return _LATER
    return "not set" if field.default is None else str(field.default)
