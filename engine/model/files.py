"""Files of a model's directory: JSON and safetensors only. Nothing else is opened, and no code is executed.

Each value of a JSON file is read with its type, and another type is told, not converted.
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint

WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
SPARSE_LINEAR, COLBERT_LINEAR = "sparse_linear.pt", "colbert_linear.pt"  # heads of bge-m3, as it is published
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MAX_JSON_BYTES = 256 << 20  # the index of the largest published models has some 10 MiB
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


def read_json(path: Path) -> Config:
    """The JSON object in a file. Raises CheckpointError when it is missing or is something else."""
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(value).__name__}.")
    config = Config(value)
    config.path = path
    return config


def read_any_json(path: Path) -> Any:
    """The JSON value in a file. Raises CheckpointError when it is missing, is no regular file, or is no JSON."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO without a writer would block
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a checkpoint needs it.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path} is not a regular file.")
        if status.st_size > _MAX_JSON_BYTES:
            raise CheckpointError(f"{path} cannot be read as JSON: it has {status.st_size >> 20:,} MiB.")
        try:
            return json.loads(file.read().decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error


def read_optional(path: Path) -> Config:
    """The JSON object in a file; empty where there is no such file."""
    return read_json(path) if path.exists() else Config()


def read_config(directory: Path) -> Config:
    """config.json of a transformer. Raises CheckpointError, and UnsupportedCheckpoint for an adapter alone."""
    if (directory / ADAPTER).exists() and not (directory / "config.json").exists():
        raise UnsupportedCheckpoint(
            f"{directory} is an adapter ({ADAPTER}) without its model. Put its two files beside those of the model, or "
            "merge it and save that: model.merge_and_unload().save_pretrained(OUT)."
        )
    return read_json(directory / "config.json")


def require_regular_files(directory: Path) -> None:
    """Raise CheckpointError for a FIFO, socket or device in a directory: to read it could block for ever."""
    try:
        others = [path for path in directory.iterdir() if path.exists() and not (path.is_file() or path.is_dir())]
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be read: {error}") from error
    if others:
        raise CheckpointError(f"{others[0]} is not a regular file.")


def weight_files(directory: Path) -> list[Path]:
    """model.safetensors, or without it the shards of its index, as transformers chooses. Raises CheckpointError."""
    whole, index = directory / WEIGHTS, directory / INDEX
    if whole.exists() or not index.exists():
        return [whole]
    shards = read_json(index).get("weight_map", {})
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise CheckpointError(f"{index}: `weight_map` must map names of tensors to names of files.")
    for name in shards.values():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(f"{index}: {name!r} is outside the model's directory.")
    return [directory / name for name in sorted(set(shards.values()))]


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors (memory-mapped) and metadata of one file. Raises CheckpointError when missing, a pickle, or damaged."""
    try:
        if path.suffix != ".safetensors" or not path.is_file():
            raise CheckpointError(_missing_weights(path))
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118 -- not a dict
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file ({error}); download it again.") from error


def _missing_weights(path: Path) -> str:
    pickles = sorted(p.name for pattern in PICKLES for p in path.parent.glob(pattern))
    if path.suffix == ".safetensors" and not pickles:
        return f"{path} does not exist. Weights are read from safetensors files only."
    return (
        f"{path.parent} has no {path.name if path.suffix == '.safetensors' else 'safetensors file'}, only pickles "
        f"({', '.join(pickles) or path.name}), which can run code when opened and are never read. "
        "Convert them, with all files beside them: penstock convert DIR OUT."
    )


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
