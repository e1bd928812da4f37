"""A tokenizer that cannot be loaded as transformers loads it keeps a worker from starting; a missing one does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.errors import CheckpointError
from penstock.engine.types import ModelInfo
from penstock.worker.model_loading import load_tokenizer
from penstock.worker.model_settings import ModelSettings
from tests.engine.helpers import save_tokenizer, write_json

INFO = ModelInfo("m", "r", "float32", "cpu", 100, 128, frozenset({"embed"}), 4, ())


@pytest.fixture
def settings(tmp_path: Path) -> ModelSettings:
    """Of a sentence-transformers directory without weights."""
    write_json(tmp_path / "modules.json", [{"type": "sentence_transformers.models.Transformer", "path": ""}])
    given: dict[str, Any] = {"model": str(tmp_path)}
    return ModelSettings(**given)


def test_a_checkpoint_without_a_tokenizer_is_served_by_token_ids(settings: ModelSettings) -> None:
    assert load_tokenizer(settings, INFO) is None


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("sentence_xlnet_config.json", {"query_length": 8}, "query_length: not implemented"),
        ("tokenizer.json", {}, "cannot be read as a tokenizer"),
        ("modules.json", [{"path": "../elsewhere"}], "outside the model's directory"),
    ],
)
def test_a_tokenizer_that_would_give_other_tokens_is_refused_with_its_reason(
    tmp_path: Path, settings: ModelSettings, name: str, content: object, reason: str
) -> None:
    write_json(tmp_path / name, content)
    with pytest.raises(CheckpointError, match=reason):
        load_tokenizer(settings, INFO)


@pytest.mark.parametrize("info", [replace(INFO, max_tokens=3), replace(INFO, cut_tokens=2)])
def test_a_limit_that_leaves_no_room_for_text_is_refused(
    tmp_path: Path, settings: ModelSettings, info: ModelInfo
) -> None:
    save_tokenizer(tmp_path, ["card"])
    with pytest.raises(CheckpointError, match=r"leaves no room for text.*max_seq_length"):
        load_tokenizer(settings, info)
    tokenizer = load_tokenizer(settings, replace(INFO, max_tokens=4))
    assert tokenizer is not None
    tokenizer.close()
