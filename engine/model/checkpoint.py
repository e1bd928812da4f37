"""Reader of model directories: what is admitted, its weights and limits, and the hash of all that decides results."""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint, UnsupportedDevice, wider_than
from penstock.engine.model.adapter import has_adapter, merge_adapter
from penstock.engine.model.admission import EMBED, EMBED_SPARSE, RERANK, Admission, admit
from penstock.engine.model.files import Config, read_safetensors, weight_files
from penstock.engine.model.model_place import local_directory
from penstock.engine.model.module_list import read_modules

# Beside JSON: vocabularies (*.txt) and SentencePiece models of older tokenizers, templates; the card has dimensions.
_RESULT_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja", "artifact.metadata")
_HUB_PATTERNS = [*_RESULT_FILES, *(f"*/{pattern}" for pattern in _RESULT_FILES), "README.md"]
_WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Names that older versions of TensorFlow's and transformers' checkpoints have, as transformers reads them.
_OLD_NAMES = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
_IN_LAYER = re.compile(r"(?:^|\.)(?:layers?|block|h|albert_layers)\.\d+\.")
# Of older versions: computed from config.json, or, in T5, without effect.
_BUFFERS = (
    "inv_freq",
    "position_ids",
    ".attn.bias",
    ".attn.masked_bias",
    "EncDecAttention.relative_attention_bias.weight",
)


@dataclass(frozen=True, slots=True)
class Checkpoint(Admission):
    """Contents of a model directory, not yet interpreted by a family's reader."""

    weights: "Tensors"  # of the transformer


class Tensors:
    """Tensors of a safetensors file or a set of shards, as float32, with their shapes and values checked."""

    def __init__(self, directory: Path, tensors: dict[str, torch.Tensor]) -> None:
        self._directory = directory
        self._tensors = tensors
        self._largest: dict[str, float] = {}  # magnitude of each tensor that was taken

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
        """The tensor as float32. A -1 in `shape` matches any size.

        Raises CheckpointError when it is missing or misshapen, or holds NaN or infinity.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self._directory}: tensor {name!r} is missing from the safetensors files.")
        if len(shape) != tensor.ndim or any(
            want not in (-1, have) for want, have in zip(shape, tensor.shape, strict=True)
        ):
            raise CheckpointError(
                f"{self._directory}: tensor {name!r} has shape {tuple(tensor.shape)}, but config.json implies {shape}."
            )
        values = tensor.float()
        if name not in self._largest:
            self._largest[name] = self._magnitude(name, values)
        return values

    def take_scaled(self, name: str, factor: float, *shape: int) -> torch.Tensor:
        """The tensor times `factor`, which is the value that `require_range` looks at. Raises as `take` does."""
        values = self.take(name, *shape)
        self._largest[name] = max(self._largest[name], self._magnitude(name, values) * factor)
        return values * factor

    def leave_out(self, prefix: str) -> None:
        """Forget the tensors of a part that the reference does not load: `require_layers_used` does not miss them."""
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if not name.startswith(prefix)}

    def require_layers_used(self) -> None:
        """Raise UnsupportedCheckpoint for a tensor of a layer that was not taken, or the bias of a weight that was.

        Called after all readers.
        """
        unused = self._tensors.keys() - self._largest.keys()
        require_no_layers(self._directory, unused)
        biases = sorted(f"{stem}.bias" for stem in _stems(unused, "bias") & _stems(self._largest, "weight"))
        if biases:
            raise UnsupportedCheckpoint(
                f"{self._directory}: the family has no such bias, so {', '.join(biases[:3])} would not be used."
            )

    def require_finite(self) -> None:
        """Raise CheckpointError for a tensor, taken or not, that holds NaN or infinity."""
        for name, tensor in self._tensors.items():
            self._magnitude(name, tensor.float())

    def require_range(self, dtype: torch.dtype) -> None:
        """Raise UnsupportedDevice for a tensor that was taken and has, as it is used, a value beyond `dtype`."""
        for name, largest in self._largest.items():
            if not math.isfinite(torch.tensor(largest).to(dtype).item()):
                in_dtype = str(dtype).removeprefix("torch.")
                raise UnsupportedDevice(
                    f"{self._directory}: tensor {name!r} is used with a value of {largest:.4g}, which overflows in "
                    f"{in_dtype}. {wider_than(in_dtype)}"
                )

    def _magnitude(self, name: str, values: torch.Tensor) -> float:
        if values.numel() == 0:
            return 0.0
        low, high = values.aminmax()  # one pass, and NaN where there is one
        largest = torch.maximum(-low, high).item()
        if not math.isfinite(largest):
            raise CheckpointError(
                f"{self._directory}: tensor {name!r} holds values that are not finite (NaN or infinity). The file is "
                "damaged, or its training diverged; take an earlier or another checkpoint."
            )
        return largest


def _stems(names: Iterable[str], last: str) -> set[str]:
    """The names that end in `last`, without it."""
    return {stem for stem, _, part in (name.rpartition(".") for name in names) if part == last}


def require_no_layers(directory: Path, unused: Iterable[str]) -> None:
    """Raise UnsupportedCheckpoint where tensors of layers would not be used: layers more than config.json has, or LoRA.

    Tensors outside of layers are those of heads that serve training.
    """
    of_layers = sorted(name for name in unused if _IN_LAYER.search(name) and not name.endswith(_BUFFERS))
    if of_layers:
        raise UnsupportedCheckpoint(
            f"{directory}: by config.json, the tensors {', '.join(of_layers[:3])} would not be used "
            f"({len(of_layers)} in all). Correct config.json, or save the model without them."
        )


def default_name(model: str) -> str:
    """Default model name: the last part of its path, as written, or of its id."""
    return Path(os.path.abspath(model)).name  # "." has a name, and a link keeps its own


def resolve_model(model: str) -> Path:
    """The directory of a model: `model` itself, or a Hugging Face id from the local cache or the hub.

    Raises CheckpointError for anything else.
    """
    if (directory := local_directory(model)) is not None:
        return directory
    from huggingface_hub import snapshot_download  # slow to import, and needed for ids only

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_PATTERNS))
    except Exception as error:  # the hub client raises a dozen unrelated types; each means the same here
        parent = Path(model).parent
        beside = f" ({parent} is one)" if parent.is_dir() else ""
        raise CheckpointError(
            f"{model!r} is no local directory{beside}, and the Hugging Face hub did not give it: {error}"
        ) from error


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read configuration, modules and weights. Raises CheckpointError, which names the file and the remedy."""
    found = admit(directory)
    tensors = _read_present(found.root)
    if has_adapter(found.root):
        is_tied = found.config.get("tie_word_embeddings") is not False
        merge_adapter(found.root, tensors, has_tied_head=is_tied and found.task in (EMBED_SPARSE, RERANK))
    weights = Tensors(found.root, tensors)
    return Checkpoint(directory, found.config, found.modules, found.task, found.sentence_transformers, weights)


def memory_checkpoint(name: str, config: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> Checkpoint:
    """A checkpoint of tensors in memory. Errors give `name` as the directory."""
    directory = Path(name)
    return Checkpoint(directory, Config(config), (), EMBED, Config(), Tensors(directory, tensors))


def read_tensors(directory: Path) -> Tensors:
    """The tensors of model.safetensors, or of the shards that model.safetensors.index.json names."""
    return Tensors(directory, _read_present(directory))


def _read_present(directory: Path) -> dict[str, torch.Tensor]:
    """The tensors of a directory under their present names."""
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(directory):
        tensors.update(read_safetensors(file)[0])
    for name, tensor in tensors.items():
        if name.endswith("weight") and tensor.dtype not in _WEIGHT_DTYPES:
            raise UnsupportedCheckpoint(
                f"{directory}: tensor {name!r} is {str(tensor.dtype).removeprefix('torch.')}. Quantised weights are "
                "not run. Serve the checkpoint that was quantised."
            )
    present = {_present_name(name): tensor for name, tensor in tensors.items()}
    if len(present) < len(tensors):
        twice = sorted(name for name in tensors if _present_name(name) != name and _present_name(name) in tensors)
        raise CheckpointError(f"{directory}: {', '.join(twice[:3])} and their present names are both there.")
    return present


def _present_name(name: str) -> str:
    for old, new in _OLD_NAMES:
        name = name.replace(old, new)
    return name


def revision_of(checkpoint_directory: Path, extra_files: tuple[Path, ...] = ()) -> str:
    """SHA-256 over names and contents of every file that decides results, and of `extra_files`, as 32 hex digits.

    Equal revisions give equal results in one precision, so the tokenizer's files count too. Files of the directory, of
    its modules and of an index of shards are read, and no other folders. Raises CheckpointError for a broken
    modules.json or index.
    """
    folders = {checkpoint_directory, *(module.directory for module in read_modules(checkpoint_directory))}
    files = {path for folder in folders for pattern in _RESULT_FILES for path in folder.glob(pattern)}
    files.update(path for folder in folders for path in weight_files(folder))
    named = {Path(os.path.relpath(path, checkpoint_directory)).as_posix(): path for path in files if path.is_file()}
    for path in extra_files:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a regular file.")
    total = hashlib.sha256()
    for name, path in (*sorted(named.items()), *(("head", path) for path in extra_files)):
        with path.open("rb") as file:
            total.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()[:32]
