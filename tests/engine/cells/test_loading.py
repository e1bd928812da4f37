"""Directories of models made of cells, and models of an operator's own code."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from penstock.engine.cells.models.layers import weights_of
from penstock.engine.cells.models.loading import import_cells, is_made_of_cells, load_cells, save_cells
from penstock.engine.cells.models.lstm import lstm_classifier, lstm_language_model, lstm_seq2seq
from penstock.engine.cells.models.model import CellModel
from penstock.engine.cells.models.tree import binary_tree_classifier, child_sum_tree_classifier
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from tests.engine.cells.loop import run_all

VOCAB, WORDS, WIDTH, LABELS, LAYERS = 30, 6, 9, 4, 2
SIZES = {"vocab_size": VOCAB, "embedding_size": WORDS, "hidden_size": WIDTH}


class TreeCell(nn.Module):
    """DGL's cell of a binary TreeLSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.W_iou = nn.Linear(WORDS, 3 * WIDTH, bias=False)
        self.U_iou = nn.Linear(2 * WIDTH, 3 * WIDTH, bias=False)
        self.b_iou = nn.Parameter(torch.randn(1, 3 * WIDTH))
        self.U_f = nn.Linear(2 * WIDTH, 2 * WIDTH)


def child_sum_cell() -> nn.Module:
    parts = {"ioux": (WORDS, 3), "iouh": (WIDTH, 3), "fx": (WORDS, 1), "fh": (WIDTH, 1)}
    return nn.ModuleDict({name: nn.Linear(inputs, gates * WIDTH) for name, (inputs, gates) in parts.items()})


def lstm_parts(outputs: int) -> dict[str, nn.Module]:
    lstm = nn.LSTM(WORDS, WIDTH, LAYERS, batch_first=True)
    return {"embedding": nn.Embedding(VOCAB, WORDS), "lstm": lstm, "output": nn.Linear(WIDTH, outputs)}


def seq2seq_parts() -> dict[str, nn.Module]:
    parts: dict[str, nn.Module] = {"output": nn.Linear(WIDTH, VOCAB + 1)}
    for name, rows in (("encoder", VOCAB), ("decoder", VOCAB + 1)):
        parts |= {name: nn.LSTM(WORDS, WIDTH, LAYERS), f"{name}_embedding": nn.Embedding(rows, WORDS)}
    return parts


def tree_parts(cell: nn.Module) -> dict[str, nn.Module]:
    return {"embedding": nn.Embedding(VOCAB, WORDS), "cell": cell, "linear": nn.Linear(WIDTH, LABELS)}


Case = tuple[dict[str, Any], dict[str, nn.Module], Callable[[Any], CellModel], dict[str, Any]]


def cases() -> dict[str, Case]:
    """config.json, modules, the same model without a directory, and a request."""
    torch.manual_seed(0)
    tokens = {"tokens": [1, 5, 2]}
    layers, tokens_of_end = {"num_layers": LAYERS}, {"eos_token_id": 3}
    return {
        "lm": (
            {"model_type": "lstm_lm", **SIZES, **layers, **tokens_of_end},
            lstm_parts(VOCAB),
            lambda weights: lstm_language_model(weights, end_token=3),
            {**tokens, "max_tokens": 5},
        ),
        "classifier": (
            {"model_type": "lstm_classifier", **SIZES, **layers, "num_labels": LABELS},
            lstm_parts(LABELS),
            lstm_classifier,
            tokens,
        ),
        "seq2seq": (
            {
                **{"model_type": "lstm_seq2seq", **SIZES, **layers, **tokens_of_end},
                **{"target_vocab_size": VOCAB + 1, "decoder_start_token_id": 0},
            },
            seq2seq_parts(),
            lambda weights: lstm_seq2seq(weights, start_token=0, end_token=3),
            {**tokens, "max_tokens": 5},
        ),
        "binary": (
            {"model_type": "tree_lstm", "tree": "binary", **SIZES, "num_labels": LABELS},
            tree_parts(TreeCell()),
            binary_tree_classifier,
            {**tokens, "merges": [[0, 1], [3, 2]]},
        ),
        "child_sum": (
            {"model_type": "tree_lstm", "tree": "child_sum", **SIZES, "num_labels": LABELS, "max_children": 3},
            tree_parts(child_sum_cell()),
            lambda weights: child_sum_tree_classifier(weights, arities=(1, 2, 3)),
            {**tokens, "parents": [-1, 0, 0]},
        ),
    }


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_loads_and_gives_the_same(name: str, tmp_path: Path) -> None:
    config, parts, make, request = CASES[name]
    save_cells(tmp_path, config, **parts)
    assert is_made_of_cells(str(tmp_path))
    loaded = load_cells(tmp_path, max_rows=17)
    assert {spec.max_rows for spec in loaded.model.specs} == {17}
    found, wanted = (run_all(model, [request])[0] for model in (loaded.model, make(weights_of(**parts))))
    assert found.keys() == wanted.keys()
    for emission, values in found.items():
        np.testing.assert_array_equal(values, wanted[emission])


def test_the_revision_is_that_of_the_files(tmp_path: Path) -> None:
    config, parts, _, _ = CASES["classifier"]
    save_cells(tmp_path / "one", config, **parts)
    save_cells(tmp_path / "two", config, **parts)
    revisions = [load_cells(tmp_path / name).revision for name in ("one", "two")]
    assert revisions[0] == revisions[1]
    save_cells(tmp_path / "two", config, **lstm_parts(LABELS))
    assert load_cells(tmp_path / "two").revision != revisions[0]


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("lm", {"model_type": "bert"}, UnsupportedCheckpoint, "'bert' is no model made of cells.*lstm_classifier"),
        ("lm", {"model_type": ["lstm_lm"]}, UnsupportedCheckpoint, "no model made of cells"),
        ("lm", {"eos_token_id": None}, CheckpointError, "'eos_token_id' must be a whole number of 0 or more"),
        ("lm", {"eos_token_id": 30}, CheckpointError, r"'eos_token_id' must be a token in \[0, 30\)"),
        ("seq2seq", {"eos_token_id": 31}, CheckpointError, r"'eos_token_id' must be a token in \[0, 31\)"),
        ("seq2seq", {"decoder_start_token_id": 31}, CheckpointError, "'decoder_start_token_id' must be a token in"),
        ("lm", {"vocab_size": 31}, CheckpointError, "'embedding.weight' has shape"),
        ("lm", {"num_layers": 3}, CheckpointError, "'lstm.weight_hh_l2' is missing"),
        ("lm", {"num_layers": 1}, CheckpointError, "more layers than config.json's num_layers"),
        ("lm", {"hidden_size": True}, CheckpointError, "'hidden_size' must be a whole number"),
        ("classifier", {"num_labels": 5}, CheckpointError, "'output.weight' has shape"),
        ("seq2seq", {"target_vocab_size": 30}, CheckpointError, "'decoder_embedding.weight' has shape"),
        ("binary", {"tree": "ternary"}, UnsupportedCheckpoint, "'tree' must be binary or child_sum"),
        ("binary", {"tree": "child_sum", "max_children": 2}, CheckpointError, "'cell.ioux.weight' is missing"),
        ("child_sum", {"max_children": 0}, CheckpointError, "'max_children' must be"),
    ],
)
def test_a_directory_that_contradicts_itself_is_rejected(
    name: str, change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    config, parts, _, _ = CASES[name]
    with pytest.raises(error, match=message):
        save_cells(tmp_path, {**config, **change}, **parts)


@pytest.mark.parametrize("name", ["lstm.bias_ih_l0", "lstm.bias_hh_l1"])
def test_an_lstm_has_all_biases_or_none(name: str, tmp_path: Path) -> None:
    config, parts, _, _ = CASES["lm"]
    save_cells(tmp_path, config, **parts)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"'{name}' is missing"):
        load_cells(tmp_path)


def test_weights_that_are_not_numbers_are_rejected(tmp_path: Path) -> None:
    """The likeliest token of a head that is NaN would always be the same one."""
    config, parts, _, _ = CASES["lm"]
    save_cells(tmp_path, config, **parts)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["output.weight"][7, 2] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'output\.weight' holds values that are not finite"):
        load_cells(tmp_path)


def test_files_that_are_missing_or_no_checkpoint_are_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        load_cells(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CASES["lm"][0]))
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not exist"):
        load_cells(tmp_path)


CODE = """
import torch
from penstock.engine.cells.contract import Cell, CellSpec, StateSpec
from penstock.engine.cells.models.model import CellModel

SUM = StateSpec("sum", 1)

def step(states, inputs):
    new = states["sum"] + inputs["value"][:, None]
    return {"sum": new}, {"sum": new}

def make():
    return CellModel.of([Cell(CellSpec("sum", (SUM,), ("value",), emits=(SUM,)), step)],
                        lambda request, graph: graph.add("sum", value=request["values"]))

class Models:
    sums = make()

def broken():
    raise RuntimeError("no weights")

number = 7
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module `own_cells.sums` that can be imported."""
    file = tmp_path / "own_cells" / "sums.py"
    file.parent.mkdir()
    file.write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return file


def forget_modules() -> None:
    for name in [name for name in sys.modules if name.startswith("own_cells")]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize("attribute", ["make", "Models.sums"])
def test_an_operators_own_model_is_imported(package: Path, attribute: str) -> None:
    forget_modules()
    model, revision = import_cells(f"own_cells.sums:{attribute}")
    assert run_all(model, [{"values": [1, 2]}])[0]["sum"].ravel().tolist() == [1, 3]
    assert len(revision) == 32


def test_the_revision_of_code_is_that_of_its_package(package: Path) -> None:
    revisions = []
    for comment in ("", "# the same\n", "# the same\n"):
        forget_modules()
        package.write_text(CODE + comment)
        revisions.append(import_cells("own_cells.sums:make").revision)
    assert revisions[0] != revisions[1] == revisions[2]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_cells.sums", "not of the form"),
        (":make", "not of the form"),
        ("own_cells.no:make", "No module named"),
        ("own_cells.sums:no", "no attribute 'no'"),
        ("own_cells.sums:broken", "no weights"),
        ("own_cells.sums:number", "not callable"),
        ("builtins:dict", "must be a CellModel"),
    ],
)
def test_a_path_without_a_model_is_rejected(package: Path, path: str, message: str) -> None:
    forget_modules()
    with pytest.raises(CheckpointError, match=message):
        import_cells(path)
