"""Values of a checkpoint's JSON files: each is read with its type, and another type is told, not converted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from penstock.engine.errors import CheckpointError

_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}
_MAX_INT = 1 << 31
_MAX_SIZE = 1 << 20  # of a vocabulary, a length, a width: some of them are allocated before a tensor shows their size

_T = TypeVar("_T", int, float, bool, str, list[Any], dict[str, Any])


class Config(dict[str, Any]):
    """A JSON object, and the file that it is from."""

    path = Path("config.json")


def setting(config: Mapping[str, Any], key: str, default: _T) -> _T:
    """The value of a key; `default` where it is missing or null. Raises CheckpointError for another type than its.

    A whole number is a number too.
    """
    value: Any = config.get(key)
    if value is None:
        return default
    kind = type(default)
    if type(value) is int and not -_MAX_INT < value < _MAX_INT:
        raise CheckpointError(f"{_place(config)}: {key!r} is out of range: {value}.")
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise CheckpointError(f"{_place(config)}: {key!r} must be {_NAMES[kind]}, not {value!r}.")
    typed: _T = value
    return typed


def require_int(config: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A size, at least 1; `default` where it is missing or null. Raises CheckpointError for anything else."""
    value = config.get(key)
    if value is None and not default:
        raise CheckpointError(f"{_place(config)}: {key!r} is missing.")
    value = default if value is None else value
    if type(value) is not int or value <= 0:
        raise CheckpointError(f"{_place(config)}: {key!r} must be a positive integer, not {value!r}.")
    if value > _MAX_SIZE:
        raise CheckpointError(f"{_place(config)}: {key!r} is above {_MAX_SIZE:,}: {value}.")
    return value


def stated_rows(config: Mapping[str, Any], key: str) -> int:
    """Rows of a table as a configuration states them; -1, any, where it does not. Raises CheckpointError."""
    return -1 if config.get(key) is None else require_int(config, key)


def _place(config: Mapping[str, Any]) -> Path:
    return config.path if isinstance(config, Config) else Config.path
