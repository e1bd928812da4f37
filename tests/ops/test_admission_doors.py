"""Each way to load a checkpoint refuses it with one reason: a worker's, `penstock check` and `penstock parity`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.worker.model_loading import load_model
from penstock.worker.model_settings import ModelSettings
from tests.engine.helpers import save_encoder, write_json
from tests.ops.command_line import penstock

pytestmark = pytest.mark.slow


def save_adapter(directory: Path) -> str:
    write_json(directory / "adapter_config.json", {"base_model_name_or_path": "some/where"})
    return "is an adapter"


def save_decoder(directory: Path) -> str:
    sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    transformers.GPT2LMHeadModel(transformers.GPT2Config.from_dict(sizes)).save_pretrained(directory)
    return "predicts the next token"


def save_quantised(directory: Path) -> str:
    save_encoder(directory, "bert", quantization_config={"quant_method": "fp8"})
    return "quantised weights (quantization_config)"


@pytest.mark.parametrize("save", [save_adapter, save_decoder, save_quantised])
def test_all_of_them_refuse(tmp_path: Path, save: Callable[[Path], str]) -> None:
    reason = save(tmp_path)
    for arguments in (["check", "--model"], ["parity"]):
        code, text = penstock(*arguments, str(tmp_path))
        assert (code, reason in text) == (1, True), text
    for engine in ("auto", "packed", "padded"):
        given: dict[str, Any] = {"model": str(tmp_path), "engine": engine}
        with pytest.raises(UnsupportedCheckpoint) as refused:
            load_model(ModelSettings(**given))
        assert reason in str(refused.value)
