"""The settings of all commands: to be explained, and to find environment variables that are none of them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer

from penstock.ops.cli.main import MODULES
from penstock.producer.settings_sources import PREFIX, Settings, env_name

_SETTINGS = ("penstock.producer.settings", "penstock.worker.settings")  # nearly all variables are theirs
# What Kubernetes sets in every pod for a service whose name begins with penstock.
_SERVICE = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")


def settings_by_command() -> dict[str, type[Settings]]:
    """Command, such as `embed` or `dlq answer` -> its settings. Imports all commands."""
    functions: dict[str, Any] = {}
    for command, module in MODULES.items():
        with suppress(ImportError):  # of an extra that is not installed, or of a checkout
            functions.update(_functions(command, getattr(import_module(module), command)))
    return {name: one.settings for name, one in functions.items() if hasattr(one, "settings")}  # set by `takes`


def _functions(command: str, function: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(function, typer.Typer):
        yield command, function
        return
    for one in function.registered_commands:
        yield f"{command} {one.name or getattr(one.callback, '__name__', '')}", one.callback


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that no command reads.

    Called by a command that runs, whose settings are imported; those of others are, until all variables are known.
    """
    unknown = [name for name, value in environment.items() if value and _is_ours(name, value)]
    for module in ("", *_SETTINGS, *MODULES.values()):
        if module:
            with suppress(ImportError):  # of an extra that is not installed, or of a checkout
                import_module(module)
        known = set(_known_names())
        unknown = [name for name in unknown if name.upper() not in known]
        if not unknown:
            return []
    return [_sentence(name, known) for name in unknown]


def _is_ours(name: str, value: str) -> bool:
    is_of_service = _SERVICE.search(name) or (name.endswith("_PORT") and "://" in value)
    return name.upper().startswith(PREFIX) and not is_of_service


def _known_names() -> Iterator[str]:
    """The variables of all settings classes that are imported."""
    remaining = [Settings]
    while remaining:
        cls = remaining.pop()
        remaining += cls.__subclasses__()
        yield from map(env_name, cls.model_fields)


def _sentence(name: str, known: set[str]) -> str:
    near = get_close_matches(name.upper(), sorted(known), 1)
    hint = f"Did you mean {near[0]}?" if near else "Unset it."
    return f"The environment variable {name} is no setting. {hint}"
