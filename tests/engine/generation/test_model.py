"""Which checkpoints generate, and what a worker learns of one that does."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.errors import CheckpointError, InvalidOption, UnsupportedDevice
from penstock.engine.generation.loading import generates
from penstock.engine.generation.model import load_generation_model
from tests.engine.generation.helpers import VOCAB, save_seq2seq


@pytest.mark.parametrize(
    ("model_type", "architecture", "is_generating"),
    [
        ("t5", "T5ForConditionalGeneration", True),
        ("mt5", "MT5ForConditionalGeneration", True),
        ("bart", "BartForConditionalGeneration", True),
        ("marian", "MarianMTModel", True),
        ("t5", "T5EncoderModel", False),
        ("bart", "BartForSequenceClassification", False),
        ("bert", "BertModel", False),
        ("whisper", "WhisperForConditionalGeneration", False),
        ("t5", None, False),
    ],
)
def test_the_checkpoint_decides(tmp_path: Path, model_type: str, architecture: str | None, is_generating: bool) -> None:
    config: dict[str, Any] = {"model_type": model_type, "architectures": architecture and [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert generates(str(tmp_path)) is is_generating


def test_an_embedding_model_of_sentence_transformers_is_an_encoder(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    assert not generates(str(tmp_path))


def test_a_directory_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        generates(str(tmp_path))


def test_a_model_says_what_it_reads_and_allows(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "marian")
    model = load_generation_model(str(tmp_path), name="translator", max_rows=8, max_encode_tokens=100)
    info = model.info
    assert (info.name, info.device, info.dtype) == ("translator", "cpu", "float32")
    assert info.tasks == {"generate"}
    assert (info.vocab_size, info.max_tokens) == (VOCAB, 80)  # as many as it has positions
    assert (model.limits.max_rows, model.limits.max_encode_tokens) == (8, 100)
    assert model.options({"num_beams": 8}).num_beams == 8
    for wrong in ({"num_beams": 9}, {"max_new_tokens": 81}, {"suppress_tokens": [VOCAB]}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            model.options(wrong)


def test_an_option_of_the_checkpoint_that_is_not_implemented_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "marian")
    path = tmp_path / "generation_config.json"
    own = json.loads(path.read_text())
    path.write_text(json.dumps(own | {"max_length": 5000}))
    load_generation_model(str(tmp_path))
    path.write_text(json.dumps(own | {"diversity_penalty": 0.5}))
    with pytest.raises(InvalidOption, match="diversity_penalty is not implemented"):
        load_generation_model(str(tmp_path))


@pytest.mark.parametrize("asked", [{"device": "cuda"}, {"dtype": "float16"}])
def test_other_devices_and_precisions_are_refused(tmp_path: Path, asked: dict[str, str]) -> None:
    with pytest.raises(UnsupportedDevice, match="a model that generates"):
        load_generation_model(str(tmp_path), **asked)  # type: ignore[arg-type]  # strings, all of them
