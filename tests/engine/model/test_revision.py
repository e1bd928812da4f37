"""The revision covers what a result depends on: every file that is read, wherever it lies, and no other."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.engine.model.checkpoint import revision_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Files of a sentence-transformers model whose modules lie at several depths. The tensors are not read."""
    directory = tmp_path / "model"
    write(directory / "tokenizer.json", "{}")
    write(directory / "vocab.txt", "[PAD]")
    write(directory / "chat_template.jinja", "{{ messages }}")
    write(directory / "sentencepiece.bpe.model", "pieces")
    paths = ["modules/first/encoder", "modules/1_Pooling", "modules/deep/er/still/2_Dense"]
    for path in paths:
        write(directory / path / "config.json", "{}")
    write(directory / paths[0] / "model.safetensors.index.json", '{"weight_map": {"a": "shards/1.safetensors"}}')
    write(directory / paths[0] / "shards" / "1.safetensors", "shard")
    write(directory / paths[2] / "model.safetensors", "tensors")
    kinds = ["Transformer", "Pooling", "Dense"]
    modules = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in zip(kinds, paths, strict=True)]
    write(directory / "modules.json", json.dumps(modules))
    return directory


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


READ = [
    "tokenizer.json",
    "vocab.txt",
    "chat_template.jinja",
    "sentencepiece.bpe.model",
    "modules/first/encoder/config.json",
    "modules/first/encoder/shards/1.safetensors",
    "modules/1_Pooling/config.json",
    "modules/deep/er/still/2_Dense/config.json",
    "modules/deep/er/still/2_Dense/model.safetensors",
]


@pytest.mark.parametrize("name", READ)
def test_every_file_that_is_read_counts(model: Path, name: str) -> None:
    before = revision_of(model)
    write(model / name, (model / name).read_text(encoding="utf-8") + " ")
    assert revision_of(model) != before


@pytest.mark.parametrize("name", ["README.md", "checkpoint-500/trainer_state.json", "checkpoint-500/model.safetensors"])
def test_files_that_are_not_read_do_not_count(model: Path, name: str) -> None:
    """A model is served from where it was trained, too: what lies beside it may be any number of files of any size."""
    before = revision_of(model)
    write(model / name, "{}")
    assert revision_of(model) == before


def test_the_order_in_which_a_disk_lists_files_does_not_count(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    glob: Callable[..., object] = Path.glob
    forwards = revision_of(shutil.copytree(model, tmp_path / "copy"))
    monkeypatch.setattr(Path, "glob", lambda self, pattern: reversed(list(glob(self, pattern))))  # type: ignore[call-overload]  # any iterator
    assert revision_of(model) == forwards


def test_the_place_and_the_way_it_is_named_do_not_count(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = revision_of(model)
    monkeypatch.chdir(model.parent)
    assert revision_of(Path("model")) == absolute
    monkeypatch.chdir(model)
    assert revision_of(Path()) == absolute
