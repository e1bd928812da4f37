"""Files that are downloaded from the hub: those that decide results, and no pickles."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from penstock.engine.errors import CheckpointError
from penstock.engine.model.checkpoint import resolve_model


def test_vocabularies_of_older_tokenizers_are_downloaded_and_pickles_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(repo: str, *, allow_patterns: list[str], **_: Any) -> str:
        asked.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("org/name") == tmp_path
    needed = ("spiece.model", "0_Transformer/sentencepiece.bpe.model", "vocab.txt", "0_Transformer/vocab.txt")
    for name in (*needed, "model.safetensors", "1_Pooling/config.json", "README.md"):
        assert any(fnmatch(name, pattern) for pattern in asked), name
    for name in ("pytorch_model.bin", "modeling_own.py", "2_Dense/pytorch_model.bin"):
        assert not any(fnmatch(name, pattern) for pattern in asked), name


def test_a_name_that_may_be_a_wrong_path_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, **_: Any) -> str:
        raise OSError("404")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(CheckpointError, match=r"'models/brt' is no local directory \(models is one\), and the .*: 404"):
        resolve_model("models/brt")
    with pytest.raises(CheckpointError, match=r"'org/brt' is no local directory, and the"):
        resolve_model("org/brt")
