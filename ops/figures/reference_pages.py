"""Pages of the manual that are made from the software: the command line, the settings and the Python API.

A hook of mkdocs, which `ops/mkdocs.yml` names.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer import Typer
from typer.testing import CliRunner

import penstock
from penstock.ops.cli.main import COMMANDS, MODULES, app
from penstock.producer.settings import ClientSettings, KafkaSettings
from penstock.worker.settings import WorkerSettings

_Method = ast.FunctionDef | ast.AsyncFunctionDef

_COLUMNS = "100"
_MODULE = re.compile(r"\b[a-z_]+(\.[a-z_]+)*\.(?=[A-Z])")
_TABLES: dict[str, type[BaseModel]] = {
    "kafka": KafkaSettings,
    "client": ClientSettings,
    "worker": WorkerSettings,
}  # of the configuration file


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs."""
    pages = {"reference-cli.md": command_line(), "reference-settings.md": settings(), "reference-python.md": python()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def command_line() -> str:
    """`--help` of every command, as a terminal prints it."""
    parts = ["# Command line\n\nThis page is made from the commands' own help.\n", _help()]
    for name in COMMANDS:
        parts.append(f"## penstock {name}\n")
        parts.append(_help(name))
        for inner in _inner_commands(name):
            parts += [f"### penstock {name} {inner}\n", _help(name, inner)]
    return "\n".join(parts)


def settings() -> str:
    """The settings, by table of the configuration file."""
    parts = [
        "# Settings\n\nThis page is made from the settings themselves. [Configuration](configuration.md) tells where\n"
        "they are given, and `penstock config` which are in force.\n"
    ]
    of_kafka = KafkaSettings.model_fields.keys()
    for table, model in _TABLES.items():
        parts.append(f"## [{table}]\n\n| setting | type | default | meaning |\n|---|---|---|---|")
        own = {name: one for name, one in model.model_fields.items() if table == "kafka" or name not in of_kafka}
        parts += [_row(name, field) for name, field in own.items() if name != "config"]
        parts.append("")
    return "\n".join(parts)


def python() -> str:
    """The names that `from penstock import …` gives."""
    parts = ["# Python API\n\nThis page is made from the code. [Clients](clients.md) is the introduction.\n"]
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        if isinstance(thing, type):
            parts += [f"## {name}\n", *[f"```python\n{head}\n```\n" for head in _heads(thing)]]
    return "\n".join(parts)


def _help(*command: str) -> str:
    environment = {"COLUMNS": _COLUMNS, "TERMINAL_WIDTH": _COLUMNS, "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*command, "--help"], prog_name="penstock", env=environment)
    if result.exit_code:
        raise RuntimeError(f"penstock {' '.join(command)} --help ended with {result.exit_code}: {result.output}")
    return f"```text\n{result.stdout.strip()}\n```\n"


def _inner_commands(name: str) -> list[str]:
    function = getattr(import_module(MODULES[name]), name)
    of_group = function.registered_commands if isinstance(function, Typer) else []
    return [str(one.name or getattr(one.callback, "__name__", "")) for one in of_group]


def _row(name: str, field: FieldInfo) -> str:
    default = "" if field.default in (PydanticUndefined, None) else f"`{field.default}`"
    kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
    kind = _MODULE.sub("", kind).replace(" | ", " or ")
    return f"| `{name}` | `{kind}` | {default} | {(field.description or '').replace('|', '&#124;')} |"


def _heads(kind: type) -> Iterator[str]:
    """The source of a class without methods, then of each public method, its bases' too, to its docstring's end."""
    lines, methods = _source(kind)
    yield "\n".join(lines[: min(map(_first_line, methods), default=len(lines) + 1) - 1]).strip()
    bases = () if issubclass(kind, Exception) else kind.__mro__
    for lines, methods in map(_source, [one for one in bases if one.__module__.startswith("penstock")]):
        for method in methods:
            if ast.get_docstring(method) and not method.name.startswith("_"):
                yield textwrap.dedent("\n".join(lines[_first_line(method) - 1 : method.body[0].end_lineno]))


def _source(kind: type) -> tuple[list[str], list[_Method]]:
    lines = inspect.getsource(kind).splitlines()
    (tree,) = ast.parse("\n".join(lines)).body
    assert isinstance(tree, ast.ClassDef)
    return lines, [one for one in tree.body if isinstance(one, _Method)]


def _first_line(method: _Method) -> int:
    return min([method.lineno, *[one.lineno for one in method.decorator_list]])
