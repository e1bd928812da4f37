"""Reader of model directories: JSON and safetensors only. No code of a checkpoint is executed."""

import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from penstock.engine.errors import CheckpointError

Config = dict[str, Any]

_HUB_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*/*.safetensors", "*/*.json", "README.md"]
_RESULT_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")  # the last two: older tokenizers
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Module:
    """One entry of sentence-transformers' modules.json."""

    kind: str  # last component of its type: "Transformer", "Pooling", "Dense", "Normalize", ...
    directory: Path


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Contents of a model directory, not yet interpreted by a family's reader."""

    directory: Path  # holds tokenizer.json
    config: Config  # config.json of the transformer
    weights: "Tensors"  # of the transformer
    modules: tuple[Module, ...]  # empty for a plain Hugging Face directory
    max_tokens: int | None  # the smallest limit that a file states; None: the position table alone limits
    sentence_transformers: Config = field(default_factory=dict)  # config_sentence_transformers.json; {}: there is none

    @property
    def root(self) -> Path:
        """The directory of the transformer's config.json and weights."""
        return self.modules[0].directory if self.modules else self.directory


class Tensors:
    """Tensors of a safetensors file or a set of shards, as float32, with their shapes checked."""

    def __init__(self, directory: Path, tensors: dict[str, torch.Tensor]) -> None:
        self._directory = directory
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def prefix(self, candidates: tuple[str, ...], probe: str) -> str:
        """The prefix under which the tensor `probe` exists; checkpoints of one family differ in it."""
        for prefix in candidates:
            if prefix + probe in self._tensors:
                return prefix
        raise CheckpointError(
            f"{self._directory}: no tensor named {probe!r}, with or without a prefix of {candidates}."
        )

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor as float32. A -1 in `shape` matches any size. Raises CheckpointError when missing or misshapen."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self._directory}: tensor {name!r} is missing from the safetensors files.")
        if len(shape) != tensor.ndim or any(
            want not in (-1, have) for want, have in zip(shape, tensor.shape, strict=True)
        ):
            raise CheckpointError(
                f"{self._directory}: tensor {name!r} has shape {tuple(tensor.shape)}, but config.json implies {shape}."
            )
        return tensor.float()

    def require_numbers(self) -> None:
        """Raise CheckpointError for a tensor that holds NaN."""
        for name, tensor in self._tensors.items():
            if tensor.is_floating_point() and bool(tensor.isnan().any()):
                raise CheckpointError(f"{self._directory}: tensor {name!r} holds values that are not numbers (NaN).")


def default_name(model: str) -> str:
    """Default model name: the last part of its path, as written, or of its id."""
    return Path(os.path.abspath(model)).name  # "." has a name, and a link keeps its own


def resolve_model(model: str) -> Path:
    """The directory of a model: `model` itself, or a Hugging Face id from the local cache or the hub.

    Raises CheckpointError for anything else.
    """
    path = Path(model)
    if path.is_dir():
        return path
    if path.exists() or model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise CheckpointError(
            f"{model!r} is not a directory. Give a model directory, or a Hugging Face id such as org/name."
        )
    from huggingface_hub import snapshot_download  # slow to import, and needed for ids only

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_PATTERNS))
    except Exception as error:  # the hub client raises a dozen unrelated types; each means the same here
        raise CheckpointError(
            f"{model!r} is no local directory, and the Hugging Face hub did not give it: {error}"
        ) from error


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read configuration, modules and weights. Raises CheckpointError, which names the file and the remedy."""
    modules = _read_modules(directory)
    root = modules[0].directory if modules else directory
    config = read_json(root / "config.json")
    return Checkpoint(
        directory=directory if (directory / "tokenizer.json").exists() else root,
        config=config,
        weights=read_tensors(root),
        modules=modules,
        max_tokens=_stated_max_tokens(directory, root),
        sentence_transformers=_read_optional(directory / "config_sentence_transformers.json"),
    )


def memory_checkpoint(name: str, config: Config, tensors: dict[str, torch.Tensor]) -> Checkpoint:
    """A checkpoint of tensors in memory. Errors give `name` as the directory."""
    directory = Path(name)
    return Checkpoint(directory, config, Tensors(directory, tensors), modules=(), max_tokens=None)


def read_json(path: Path) -> Config:
    """The JSON object in a file. Raises CheckpointError when it is missing or is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a checkpoint needs it.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(value).__name__}.")
    return value


def read_tensors(directory: Path) -> Tensors:
    """The tensors of model.safetensors, or of the shards that model.safetensors.index.json names."""
    tensors: dict[str, torch.Tensor] = {}
    for file in _weight_files(directory):
        tensors.update(read_safetensors(file)[0])
    return Tensors(directory, tensors)


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [directory / "model.safetensors"]
    shards = read_json(index).get("weight_map", {})
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise CheckpointError(f"{index}: `weight_map` must map names of tensors to names of files.")
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


def revision_of(checkpoint_directory: Path, extra_files: tuple[Path, ...] = ()) -> str:
    """SHA-256 over names and contents of every file that decides results, and of `extra_files`, as 32 hex digits.

    Equal revisions give equal results, so the tokenizer's files count too. Files of the directory, of its modules and
    of an index of shards are read, and no other folders. Raises CheckpointError for a broken modules.json or index.
    """
    folders = {checkpoint_directory, *(module.directory for module in _read_modules(checkpoint_directory))}
    files = {path for folder in folders for pattern in _RESULT_FILES for path in folder.glob(pattern)}
    files.update(path for folder in folders for path in _weight_files(folder))
    named = {Path(os.path.relpath(path, checkpoint_directory)).as_posix(): path for path in files if path.is_file()}
    total = hashlib.sha256()
    for name, path in (*sorted(named.items()), *(("head", path) for path in extra_files)):
        with path.open("rb") as file:
            total.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()[:32]


def _read_modules(directory: Path) -> tuple[Module, ...]:
    path = directory / "modules.json"
    if not path.exists():
        return ()
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        modules = tuple(Module(str(e["type"]).rpartition(".")[2], directory / e["path"]) for e in entries)
        is_inside = all(m.directory.resolve().is_relative_to(directory.resolve()) for m in modules)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a sentence-transformers module list: {error!r}") from error
    if not is_inside:
        raise CheckpointError(f"{path} names a module outside the model's directory.")
    if not modules or modules[0].kind != "Transformer":
        raise CheckpointError(f"{path} must begin with a Transformer module.")
    return modules


def _stated_max_tokens(directory: Path, root: Path) -> int | None:
    """The smaller of max_seq_length in sentence_bert_config.json and the tokenizer's model_max_length, if stated."""
    limits = []
    for path, key in (
        (root / "sentence_bert_config.json", "max_seq_length"),
        (directory / "tokenizer_config.json", "model_max_length"),
    ):
        value = _read_optional(path).get(key)
        if isinstance(value, int | float) and 0 < value < math.inf:
            limits.append(int(value))
    return min(limits, default=None)


def _read_optional(path: Path) -> Config:
    return read_json(path) if path.exists() else {}


def _missing_weights(path: Path) -> str:
    pickles = sorted(p.name for pattern in _PICKLES for p in path.parent.glob(pattern))
    if path.suffix == ".safetensors" and not pickles:
        return f"{path} does not exist. Weights are read from safetensors files only."
    return (
        f"{path.parent} has no {path.name if path.suffix == '.safetensors' else 'safetensors file'}, only pickles "
        f"({', '.join(pickles) or path.name}), which can run code when opened and are never read. If you trust them, "
        "convert them: transformers.AutoModel.from_pretrained(DIR).save_pretrained(OUT, safe_serialization=True)."
    )
