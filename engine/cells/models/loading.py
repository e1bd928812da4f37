"""Loading of a model made of cells: from a directory, or from an operator's own code."""

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn

from penstock.engine.cells.errors import InvalidCell
from penstock.engine.cells.models.layers import tensors_of
from penstock.engine.cells.models.lstm import lstm_classifier, lstm_language_model, lstm_seq2seq
from penstock.engine.cells.models.model import CellModel
from penstock.engine.cells.models.tree import binary_tree_classifier, child_sum_tree_classifier
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.checkpoint import Tensors, read_tensors, resolve_model, revision_of
from penstock.engine.model.files import Config, read_config, read_json

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


class LoadedCells(NamedTuple):
    """A model and the hash of all that decides its results."""

    model: CellModel
    revision: str


class _Directory:
    """A directory of a model: its configuration, and its tensors with the shapes that the configuration implies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Config = read_json(path / _CONFIG)
        self.weights: Tensors = read_tensors(path)

    def number(self, name: str, least: int = 1) -> int:
        """A whole number of config.json."""
        value = self.config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise CheckpointError(
                f"{self.path / _CONFIG}: {name!r} must be a whole number of {least} or more; found {value!r}."
            )
        return value

    def token(self, name: str, vocab_size: str) -> int:
        """A token of config.json, which gives the size of its vocabulary too."""
        token, size = self.number(name, 0), self.number(vocab_size)
        if token >= size:
            raise CheckpointError(
                f"{self.path / _CONFIG}: {name!r} must be a token in [0, {size}), by {vocab_size!r}; found {token}."
            )
        return token

    def require(self, tensor: str, *shape: str) -> None:
        """Raise CheckpointError unless a tensor has the shape that numbers of config.json give."""
        self.weights.take(tensor, *map(self.number, shape))

    def require_layers(self, prefix: str) -> None:
        """Raise CheckpointError unless an LSTM has as many layers, of such width, as config.json says."""
        num_layers, width = self.number("num_layers"), self.number("hidden_size")
        for layer in range(num_layers):
            self.weights.take(f"{prefix}weight_hh_l{layer}", 4 * width, width)
        if f"{prefix}weight_hh_l{num_layers}" in self.weights:
            raise CheckpointError(f"{self.path}: {prefix[:-1]!r} has more layers than config.json's num_layers.")


_Reader = Callable[[_Directory, torch.dtype, int], CellModel]


def _language_model(found: _Directory, dtype: torch.dtype, max_rows: int) -> CellModel:
    found.require("embedding.weight", "vocab_size", "embedding_size")
    found.require("output.weight", "vocab_size", "hidden_size")
    found.require_layers("lstm.")
    end = found.token("eos_token_id", "vocab_size")
    return lstm_language_model(found.weights, end_token=end, dtype=dtype, max_rows=max_rows)


def _classifier(found: _Directory, dtype: torch.dtype, max_rows: int) -> CellModel:
    found.require("embedding.weight", "vocab_size", "embedding_size")
    found.require("output.weight", "num_labels", "hidden_size")
    found.require_layers("lstm.")
    return lstm_classifier(found.weights, dtype=dtype, max_rows=max_rows)


def _seq2seq(found: _Directory, dtype: torch.dtype, max_rows: int) -> CellModel:
    found.require("encoder_embedding.weight", "vocab_size", "embedding_size")
    found.require("decoder_embedding.weight", "target_vocab_size", "embedding_size")
    found.require("output.weight", "target_vocab_size", "hidden_size")
    found.require_layers("encoder.")
    found.require_layers("decoder.")
    start, end = (found.token(name, "target_vocab_size") for name in ("decoder_start_token_id", "eos_token_id"))
    return lstm_seq2seq(found.weights, start_token=start, end_token=end, dtype=dtype, max_rows=max_rows)


def _tree(found: _Directory, dtype: torch.dtype, max_rows: int) -> CellModel:
    found.require("embedding.weight", "vocab_size", "embedding_size")
    found.require("linear.weight", "num_labels", "hidden_size")
    match found.config.get("tree"):
        case "binary":
            return binary_tree_classifier(found.weights, dtype=dtype, max_rows=max_rows)
        case "child_sum":
            most = found.number("max_children")
            arities = tuple([arity for arity in (1, 2, 4, 8, 16, 32) if arity < most] + [most])
            return child_sum_tree_classifier(found.weights, arities=arities, dtype=dtype, max_rows=max_rows)
        case other:
            raise UnsupportedCheckpoint(f"{found.path}: 'tree' must be binary or child_sum; found {other!r}.")


CELL_MODELS: Mapping[str, _Reader] = {
    "lstm_lm": _language_model,
    "lstm_classifier": _classifier,
    "lstm_seq2seq": _seq2seq,
    "tree_lstm": _tree,
}


def is_made_of_cells(model: str) -> bool:
    """Whether a model directory or Hugging Face id is a model made of cells. Raises CheckpointError for no model."""
    directory = resolve_model(model)
    if (directory / "modules.json").exists():  # an embedding model of sentence-transformers
        return False
    return str(read_config(directory).get("model_type")) in CELL_MODELS


def load_cells(directory: Path, *, dtype: torch.dtype = torch.float32, max_rows: int = 512) -> LoadedCells:
    """Read a directory of config.json and model.safetensors. `max_rows`: of one batch of each cell.

    Raises CheckpointError for files that are missing, damaged or contradict each other, UnsupportedCheckpoint, and
    UnsupportedDevice for weights beyond the range of `dtype`.
    """
    found = _Directory(directory)
    model_type = found.config.get("model_type")
    reader = CELL_MODELS.get(model_type) if isinstance(model_type, str) else None
    if reader is None:
        raise UnsupportedCheckpoint(
            f"{directory}: model_type {model_type!r} is no model made of cells. "
            f"Supported model types: {', '.join(sorted(CELL_MODELS))}."
        )
    try:
        model = reader(found, dtype, max_rows)
    except InvalidCell as error:
        raise CheckpointError(f"{directory}: {error}") from error
    found.weights.require_range(dtype)
    return LoadedCells(model, revision_of(directory))


def save_cells(directory: Path, config: Mapping[str, Any], **modules: nn.Module) -> None:
    """Write torch modules as a directory that `load_cells` reads: `save_cells(path, config, embedding=..., lstm=...)`.

    Raises what `load_cells` raises where the modules are not those that the configuration implies.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _CONFIG).write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors_of(**modules).items()}, directory / _WEIGHTS)
    load_cells(directory)


def import_cells(path: str) -> LoadedCells:
    """The model that `package.module:attribute` names: a CellModel, or a function without arguments that returns one.

    The code runs: the path is the operator's, and never comes from a request. The revision covers the weights, the
    declarations, and the files of the loaded modules of that top-level package. Raises CheckpointError.
    """
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise CheckpointError(f"{path!r} is not of the form package.module:attribute.")
    try:
        found: Any = importlib.import_module(module_name)
        for name in attribute.split("."):
            found = getattr(found, name)
        model = found if isinstance(found, CellModel) else found()
    except Exception as error:  # of the operator's own code
        raise CheckpointError(f"{path!r} cannot be loaded: {error!r}.") from error
    if not isinstance(model, CellModel):
        raise CheckpointError(f"{path!r} must be a CellModel or a function that returns one; found {type(model)!r}.")
    _require_finite(path, model)
    return LoadedCells(model, _code_revision(model, module_name.partition(".")[0]))


def _require_finite(path: str, model: CellModel) -> None:
    """Raise CheckpointError for weights that hold NaN or infinity. Buffers may be masks, which hold -inf."""
    for cell in model.cells:
        for name, tensor in cell.step.named_parameters() if isinstance(cell.step, nn.Module) else ():
            if not bool(tensor.isfinite().all()):
                raise CheckpointError(
                    f"{path!r}: tensor {name!r} of cell {cell.spec.name!r} holds values that are not finite."
                )


def _code_revision(model: CellModel, package: str) -> str:
    total = hashlib.sha256()
    for cell in model.cells:
        total.update(f"{cell.spec!r}\n".encode())
        if isinstance(cell.step, nn.Module):
            for name, tensor in (*cell.step.named_parameters(), *cell.step.named_buffers()):
                raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
                total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\n".encode())
                total.update(raw)
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
    for name, module in sorted(modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None:
            total.update(f"{name}\0{hashlib.sha256(Path(file).read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:32]
