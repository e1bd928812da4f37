"""The settings of all commands, to be explained."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import typer

from penstock.ops.cli.main import MODULES
from penstock.producer.settings_sources import Settings


def settings_by_command() -> dict[str, type[Settings]]:
    """Command, such as `embed` or `dlq answer` -> its settings. Imports all commands."""
    found: dict[str, type[Settings]] = {}
    for command, module in MODULES.items():
        with suppress(ImportError):  # of an extra that is not installed, or of a checkout
            found.update(_settings(command, getattr(import_module(module), command)))
    return found


def _settings(command: str, function: Any) -> Iterator[tuple[str, type[Settings]]]:
    for name, one in _functions(command, function):
        settings = getattr(one, "settings", None)  # set by `takes`
        if settings is not None:
            yield name, settings


def _functions(command: str, function: Any) -> Iterator[tuple[str, Callable[..., Any] | None]]:
    if not isinstance(function, typer.Typer):
        yield command, function
        return
    for one in function.registered_commands:
        yield f"{command} {one.name or getattr(one.callback, '__name__', '')}", one.callback
