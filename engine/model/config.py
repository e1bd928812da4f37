"""Values of a checkpoint's configuration: each is read with its type, and another type is told, not converted."""

from typing import Any, TypeVar

from penstock.engine.errors import CheckpointError

Config = dict[str, Any]  # a JSON object

_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}

_T = TypeVar("_T", int, float, bool, str, list[Any], dict[str, Any])


def setting(config: Config, key: str, default: _T) -> _T:
    """The value of a key; `default` where it is missing or null. Raises CheckpointError for another type than its.

    A whole number is a number too.
    """
    value: Any = config.get(key)
    if value is None:
        return default
    kind = type(default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise CheckpointError(f"config.json: {key!r} must be {_NAMES[kind]}, not {value!r}.")
    typed: _T = value
    return typed


def require_int(config: Config, key: str, default: int = 0) -> int:
    """A positive whole number; `default` where it is missing or null. Raises CheckpointError for anything else."""
    value = config.get(key)
    if value is None:
        value = default
    if type(value) is not int or value <= 0:
        raise CheckpointError(f"config.json: {key!r} must be a positive integer, not {value!r}.")
    return value
