"""`penstock convert`: directories with pickles become directories that are served, or nothing appears."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from penstock.engine import load_engine
from tests.engine.helpers import (
    pack,
    random_sequences,
    save_classifier,
    save_encoder,
    save_sentence_transformer,
    save_tokenizer,
    write_json,
)
from tests.ops.command_line import penstock

pytestmark = pytest.mark.slow


def convert(source: Path, target: Path) -> tuple[int, str]:
    """Exit code, and what is said, as one line of words."""
    return penstock("convert", str(source), str(target))


def pickle_weights(directory: Path) -> None:
    """Replace a directory's safetensors by the pickle of older versions, which ties tensors by their storage."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save(tensors, directory / "pytorch_model.bin")


def rows(directory: Path) -> Any:
    return load_engine(str(directory), dtype="float32", device="cpu").run(pack(random_sequences((3, 9)))).rows


def test_every_other_file_is_copied_and_results_stay(tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path, ["a", "river"], normalize=True)
    model, converted = tmp_path / "model", tmp_path / "out" / "converted"
    expected = rows(model)
    pickle_weights(model)
    (model / "training_args.bin").write_bytes(b"of no use here")
    (model / "notes.txt").write_text("kept", encoding="utf-8")
    code, said = convert(model, converted)
    assert code == 0, said
    assert "can be served" in said
    np.testing.assert_array_equal(rows(converted), expected)
    names = {str(path.relative_to(model)) for path in model.rglob("*") if path.is_file()}
    copied = {str(path.relative_to(converted)) for path in converted.rglob("*") if path.is_file()}
    assert copied == names - {"pytorch_model.bin", "training_args.bin"} | {"model.safetensors"}
    for name in copied - {"model.safetensors"}:
        assert (converted / name).read_bytes() == (model / name).read_bytes()
    assert [path.name for path in converted.parent.iterdir()] == ["converted"]


def test_a_head_is_kept(tmp_path: Path) -> None:
    save_classifier(tmp_path / "model", "bert", num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
    pickle_weights(tmp_path / "model")
    assert convert(tmp_path / "model", tmp_path / "converted")[0] == 0
    assert load_engine(str(tmp_path / "converted"), dtype="float32", device="cpu").info.labels == ("a", "b", "c")


def test_shards_stay_shards(tmp_path: Path) -> None:
    save_encoder(tmp_path / "model", "bert")
    expected, tensors = rows(tmp_path / "model"), load_file(tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "model.safetensors").unlink()
    places = {name: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, name in enumerate(tensors)}
    for shard in set(places.values()):
        torch.save({name: tensors[name] for name in tensors if places[name] == shard}, tmp_path / "model" / shard)
    write_json(tmp_path / "model" / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": places})
    code, said = convert(tmp_path / "model", tmp_path / "converted")
    assert code == 0, said
    np.testing.assert_array_equal(rows(tmp_path / "converted"), expected)


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was_run",)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "model", "bert")
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Trap()}, protocol=2))
    code, said = convert(tmp_path / "model", tmp_path / "converted")
    assert code == 1, said
    assert "is not run: unsupported GLOBAL posix.mkdir" in said
    assert "weights_only" not in said  # torch's advice is to run the pickle
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1", "is damaged"),
        ({"a": 3}, "not hold a dictionary of tensors"),
        ([torch.ones(2)], "not hold a dictionary of tensors"),
        ({"embeddings.word_embeddings.weight": torch.ones(2)}, "The converted directory: tensor"),
    ],
)
def test_what_cannot_be_served_does_not_appear(tmp_path: Path, content: Any, reason: str) -> None:
    save_encoder(tmp_path / "model", "bert")
    (tmp_path / "model" / "model.safetensors").unlink()
    file = tmp_path / "model" / "pytorch_model.bin"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    code, said = convert(tmp_path / "model", tmp_path / "converted")
    assert (code, reason in said) == (1, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: {"a": torch.eye(3).to_sparse()}, "tensor 'a' is sparse, which"),
        (lambda: {"a": torch.eye(3).to_sparse_csr()}, "tensor 'a' is sparse, which"),
        (lambda: {"a": torch.ones(3, device="meta")}, "tensor 'a' has no data, which"),
        (lambda: {"a": torch.ones(3, dtype=torch.complex32)}, "tensor 'a' is of torch.complex32, which"),
        (lambda: {"a": torch.ones(3, dtype=torch.complex128)}, "tensor 'a' is of torch.complex128, which"),
        (
            lambda: {"b": torch.ones(3), "a": torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)},
            "tensor 'a' is of torch.qint8, which",
        ),
        (lambda: {"__metadata__": torch.ones(3)}, "tensor '__metadata__' has the name of the file's own header, which"),
        (lambda: {7: torch.ones(1), "7": torch.ones(2)}, "tensor '7' has the name of another, which"),
        (lambda: {"\ud800": torch.ones(1)}, "cannot be written as safetensors: UnicodeEncodeError"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of sparse and of quantised tensors
def test_what_safetensors_cannot_hold_is_named(tmp_path: Path, content: Callable[[], Any], reason: str) -> None:
    save_encoder(tmp_path / "model", "bert")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(content(), tmp_path / "model" / "pytorch_model.bin")
    code, said = convert(tmp_path / "model", tmp_path / "converted")
    assert (code, reason in said, "pytorch_model.bin" in said) == (1, True, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    save_encoder(tmp_path / "model", "bert")
    pickle_weights(tmp_path / "model")
    (tmp_path / "there").mkdir()
    assert "exists" in convert(tmp_path / "model", tmp_path / "there")[1]
    assert "is inside" in convert(tmp_path / "model", tmp_path / "model" / "out")[1]
    assert "is not a directory" in convert(tmp_path / "nowhere", tmp_path / "out")[1]
    assert list((tmp_path / "there").iterdir()) == []


def test_a_directory_without_pickles_is_told(tmp_path: Path) -> None:
    save_encoder(tmp_path / "model", "bert")
    assert convert(tmp_path / "model", tmp_path / "out") == (
        1,
        f"Error: {tmp_path / 'model'} has no pytorch_model.bin to convert.",
    )


def test_the_way_that_the_refusal_names_ends_in_a_model_that_is_served(tmp_path: Path) -> None:
    save_encoder(tmp_path / "model", "bert")
    save_tokenizer(tmp_path / "model", ["a"])
    pickle_weights(tmp_path / "model")
    assert "penstock convert DIR OUT" in penstock("check", "--model", str(tmp_path / "model"))[1]
    assert convert(tmp_path / "model", tmp_path / "out")[0] == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"
