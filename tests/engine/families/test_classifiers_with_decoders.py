"""Classifiers on encoder-decoders, against transformers' own class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.engine import Engine, TaskOptions, load_engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.gpu.support import require_supported
from penstock.engine.model.program import record
from penstock.engine.packed_model import weights_of
from penstock.engine.types import ENTAIL, Int32Array
from tests.engine.helpers import VOCAB, config_of, edit_json, pack, random_sequences, randomise

pytestmark = pytest.mark.slow

END, START = 2, 4  # of the configuration
NAMES = {0: "contradiction", 1: "neutral", 2: "entailment"}
_AUTO_CLASSIFIER: Any = transformers.AutoModelForSequenceClassification  # transformers leaves from_config untyped
MODELS = [("bart", "packed"), ("bart", "padded"), ("mbart", "auto")]  # which runs mBART padded


def save_model(directory: Path, family: str = "bart", **changes: Any) -> Any:
    config = config_of("bart", **changes)
    if family == "mbart":
        config = transformers.MBartConfig.from_dict(config.to_dict() | {"model_type": "mbart"})
    model = _AUTO_CLASSIFIER.from_config(config).eval()
    randomise(model)
    model.save_pretrained(directory)
    return model


def texts() -> list[Int32Array]:
    """Of one end, as a text alone has, of three, as a pair has, and one that has words behind its end."""
    sequences = [np.where(one == END, END + 1, one) for one in random_sequences((5, 40, 1, 130, 9, 40))]
    for sequence in sequences:
        sequence[-1] = END
    sequences[1][[10, 11]] = END
    sequences[4][[2, -1]] = END, END + 1
    return [sequence.astype(np.int32) for sequence in sequences]


def logits_of(model: Any, sequence: Int32Array) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(sequence)[None].long()).logits[0].numpy()


def load(directory: Path, engine: str = "packed") -> Engine:
    return load_engine(str(directory), engine=engine, dtype="float32", device="cpu")


@pytest.mark.parametrize(("family", "engine"), MODELS)
@pytest.mark.parametrize(
    "changes", [{}, {"scale_embedding": True, "activation_function": "relu", "decoder_start_token_id": 0}]
)
def test_logits_are_those_of_transformers_whatever_the_batch(
    tmp_path: Path, family: str, engine: str, changes: dict[str, Any]
) -> None:
    model = save_model(tmp_path, family, id2label=NAMES, label2id={name: i for i, name in NAMES.items()}, **changes)
    loaded = load(tmp_path, engine)
    assert loaded.info.tasks == {"embed", "classify", ENTAIL}
    assert (loaded.info.max_tokens, loaded.info.labels) == (130, tuple(NAMES.values()))
    rows = loaded.run(pack(texts(), TaskOptions(ENTAIL))).rows
    np.testing.assert_allclose(rows, [logits_of(model, sequence) for sequence in texts()], atol=1e-5)
    # Of an embedding sentence-transformers, too, reads the decoder.
    [vector] = loaded.run(pack(texts()[:1], TaskOptions("embed", "mean", normalize=False))).rows
    with torch.no_grad():
        hidden = model.base_model(input_ids=torch.from_numpy(texts()[0])[None].long()).last_hidden_state[0]
    np.testing.assert_allclose(vector, hidden.mean(dim=0).numpy(), atol=1e-5)


@pytest.mark.parametrize("engine", ["packed", "padded"])
def test_a_text_without_an_end_is_read_at_its_last_token(tmp_path: Path, engine: str) -> None:
    """transformers refuses it; tokenizers end every text."""
    model = save_model(tmp_path)
    without = np.append(texts()[0][:-1], END + 1).astype(np.int32)
    [row] = load(tmp_path, engine).run(pack([without], TaskOptions("classify"))).rows
    with torch.no_grad():
        hidden = model.base_model(input_ids=torch.from_numpy(without)[None].long()).last_hidden_state[0, -1]
        expected = torch.softmax(model.classification_head(hidden), dim=0).numpy()
    np.testing.assert_allclose(row, expected, atol=1e-5)


def test_one_label_is_a_pairs_score(tmp_path: Path) -> None:
    model = save_model(tmp_path, num_labels=1)
    rows = load(tmp_path).run(pack(texts(), TaskOptions("rerank"))).rows
    expected = [1 / (1 + np.exp(-logits_of(model, sequence))) for sequence in texts()]
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_without_labels_there_are_three(tmp_path: Path) -> None:
    save_model(tmp_path)
    edit_json(tmp_path / "config.json", id2label=None, label2id=None)
    assert load(tmp_path).info.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize("engine", ["packed", "padded"])
@pytest.mark.parametrize("end", [[END, START], None, VOCAB, -1])
def test_an_end_that_is_not_one_token_is_refused(tmp_path: Path, engine: str, end: Any) -> None:
    save_model(tmp_path)
    edit_json(tmp_path / "config.json", eos_token_id=end)
    with pytest.raises(UnsupportedCheckpoint, match="eos_token_id is"):
        load(tmp_path, engine)


def test_devices_without_the_decoders_operations_refuse_it(tmp_path: Path) -> None:
    """A forward pass without the decoder would give the encoder's states."""
    weights = weights_of(save_model(tmp_path))
    with pytest.raises(UnsupportedDevice, match="a decoder that reads the encoder's tokens has no kernel"):
        require_supported(weights)
    with pytest.raises(UnsupportedCheckpoint, match="a decoder that reads the encoder's tokens"):
        record(weights, width_of=lambda dense: len(dense.weight), bytes_per_value=4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"decoder_start_token_id": VOCAB}, f"decoder_start_token_id is {VOCAB}"),
        ({"decoder_start_token_id": None}, "decoder_start_token_id is None"),
        ({"is_decoder": True}, "is_decoder"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder"),
        ({"is_causal": True}, "is_causal"),
        ({"is_causal": False}, "is_causal"),  # of the decoder too
        ({"max_position_embeddings": 129}, r"config.json implies \(131, 48\)"),
        ({"vocab_size": VOCAB + 1}, f"vocab_size of config.json is {VOCAB + 1}"),
        ({"encoder_layers": 1}, "would not be used"),
        ({"decoder_layers": 2}, "would not be used"),
        ({"num_hidden_layers": 5}, "'num_hidden_layers' 5"),
        ({"num_attention_heads": 2}, "'encoder_attention_heads' is 4 and 'num_attention_heads' 2"),
        ({"activation_function": "snake"}, "activation 'snake'"),
    ],
)
def test_settings_that_are_not_run_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    save_model(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(CheckpointError, match=reason):
        load(tmp_path)
