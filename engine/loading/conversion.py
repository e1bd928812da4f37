"""Conversion of a directory whose weights are pickles (*.bin) to one with safetensors and all other files.

The only place that opens pickles, by torch's loader of weights alone, and only when an operator asks for it.
"""

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file

from penstock.engine.errors import CheckpointError
from penstock.engine.generation.loading import generates, load_seq2seq
from penstock.engine.loading.encoder import load_engine
from penstock.engine.model.files import (
    COLBERT_LINEAR,
    INDEX,
    PICKLES,
    SPARSE_LINEAR,
    WEIGHTS,
    read_json,
    require_regular_files,
)

# What torch met in a pickle. The rest of its message advises to run the pickle, which this command is there to avoid.
_UNSUPPORTED = re.compile(r"unsupported (global|operand|class)[^\n]*?(?=\. |\.?$)", re.IGNORECASE | re.MULTILINE)
_WEIGHTS, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def convert(source: Path, target: Path) -> list[Path]:
    """Write a copy of a model's directory with safetensors in place of pickles; returns the files of weights.

    `target` appears when it is whole and has been loaded on the CPU; it must not exist. Raises CheckpointError, and
    UnsupportedCheckpoint for a model that is not served.
    """
    if not source.is_dir():
        raise CheckpointError(f"{source} is not a directory.")
    if target.exists() or target.is_symlink():
        raise CheckpointError(f"{target} exists. Name a directory that does not.")
    if target.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(f"{target} is inside {source}. Name a directory outside it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        written = [name for folder in _folders(source) for name in _convert_folder(folder, source, partial)]
        if not written:
            raise CheckpointError(f"{source} has no {_WEIGHTS} to convert.")
        _load(partial)
        partial.chmod(0o755)  # as mkdir makes it, not as mkdtemp does
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return [target / name for name in written]


def _folders(source: Path) -> Iterator[Path]:
    """`source` and the folders in it, without hidden ones: those hold the history of a clone."""
    for path, names, _ in os.walk(source):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield Path(path)


def _convert_folder(folder: Path, source: Path, partial: Path) -> list[Path]:
    """Copy a folder's files and convert its weights; returns the paths of the latter, relative to `source`."""
    require_regular_files(folder)
    place = folder.relative_to(source)
    (partial / place).mkdir(exist_ok=True)
    pickles = {path for pattern in PICKLES for path in folder.glob(pattern)}
    for file in folder.iterdir():
        if file.is_file() and file not in pickles and file.name != _INDEX:
            shutil.copyfile(file, partial / place / file.name)
    heads = [place / name for name in _convert_heads(folder, partial / place)]
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        return heads
    if (folder / _WEIGHTS).exists():
        _write(folder / _WEIGHTS, partial / place / WEIGHTS)
        return [*heads, place / WEIGHTS]
    return [*heads, *(_convert_shards(folder, place, partial) if (folder / _INDEX).exists() else [])]


def _convert_heads(folder: Path, target: Path) -> list[str]:
    """Convert heads that lie beside the weights; returns the names of the files."""
    found = [name for name in (SPARSE_LINEAR, COLBERT_LINEAR) if (folder / name).exists()]
    names = {name: Path(name).with_suffix(".safetensors").name for name in found}
    new = {name: own for name, own in names.items() if not (folder / own).exists()}
    for name, own in new.items():
        _write(folder / name, target / own)
    return [*new.values()]


def _convert_shards(folder: Path, place: Path, partial: Path) -> list[Path]:
    index = read_json(folder / _INDEX)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not all(
        isinstance(name, str) and Path(name).name == name != ".." for name in shards.values()
    ):
        raise CheckpointError(f"{folder / _INDEX}: `weight_map` must map names of tensors to files of this directory.")
    names = {
        old: old.replace("pytorch_model", "model").removesuffix(".bin") + ".safetensors" for old in shards.values()
    }
    for old, new in names.items():
        _write(folder / old, partial / place / new)
    moved = index | {"weight_map": {tensor: names[old] for tensor, old in shards.items()}}
    (partial / place / INDEX).write_text(json.dumps(moved, indent=2), encoding="utf-8")
    return [place / new for new in sorted(names.values())]


def _write(pickled: Path, target: Path) -> None:
    try:
        found: Any = torch.load(pickled, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{pickled} does not exist.") from None
    except Exception as error:  # torch raises many unrelated types, among them those of pickle
        found_there = _UNSUPPORTED.search(str(error))
        raise CheckpointError(
            f"{pickled} is damaged, or holds something else than weights, which is not run: "
            f"{found_there[0] if found_there else type(error).__name__}."
        ) from error
    if not isinstance(found, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise CheckpointError(f"{pickled} does not hold a dictionary of tensors.")
    names = Counter(str(name) for name in found)
    for name, tensor in found.items():
        reason = "has the name of another" if names[str(name)] > 1 else _fault(str(name), tensor)
        if reason:
            raise CheckpointError(f"{pickled}: tensor {str(name)!r} {reason}, which safetensors cannot hold.")
    # Tied tensors share their memory, which safetensors refuses.
    tensors = {str(name): tensor.detach().clone().contiguous() for name, tensor in found.items()}
    try:
        save_file(tensors, target, metadata={"format": "pt"})
    except Exception as error:  # safetensors raises many unrelated types, of names too
        raise CheckpointError(f"{pickled} cannot be written as safetensors: {error!r}.") from error


def _fault(name: str, tensor: torch.Tensor) -> str:
    """Why safetensors cannot hold a tensor; empty where it can."""
    if name == "__metadata__":
        return "has the name of the file's own header"
    if tensor.layout is not torch.strided:
        return "is sparse"
    if tensor.is_meta:
        return "has no data"
    return "" if _is_held(tensor.dtype) else f"is of {tensor.dtype}"


def _is_held(dtype: torch.dtype) -> bool:
    try:
        save({"": torch.empty(0, dtype=dtype)})
    except Exception:  # torch and safetensors raise unrelated types, by the dtype
        return False
    return True


def _load(directory: Path) -> None:
    """Load what was written, as a worker would. Raises CheckpointError."""
    try:
        if generates(str(directory)):
            load_seq2seq(str(directory))
        else:
            load_engine(str(directory), dtype="float32", device="cpu", engine="auto")
    except CheckpointError as error:
        raise type(error)(str(error).replace(str(directory), "The converted directory")) from error
