"""Classifiers on encoder-decoders, against transformers' own class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.types import ENTAIL, Int32Array
from tests.engine.helpers import VOCAB, edit_json, pack, random_sequences, randomise

pytestmark = pytest.mark.slow

END, START = 3, 4
NAMES = {0: "contradiction", 1: "neutral", 2: "entailment"}
_AUTO_CLASSIFIER: Any = transformers.AutoModelForSequenceClassification  # transformers leaves from_config untyped
_CLASSES: dict[str, Any] = {"bart": transformers.BartConfig, "mbart": transformers.MBartConfig}
_SIZE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 130,
    "eos_token_id": END,
    "decoder_start_token_id": START,
}


def save_model(directory: Path, family: str, **changes: Any) -> Any:
    model = _AUTO_CLASSIFIER.from_config(_CLASSES[family](**(_SIZE | changes))).eval()
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


@pytest.mark.parametrize(
    ("family", "changes"),
    [("bart", {}), ("bart", {"scale_embedding": True, "activation_function": "relu"}), ("mbart", {})],
)
def test_logits_are_those_of_transformers_whatever_the_batch(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    model = save_model(tmp_path, family, id2label=NAMES, label2id={name: i for i, name in NAMES.items()}, **changes)
    engine = load_engine(str(tmp_path), engine="auto", dtype="float32", device="cpu")
    assert engine.info.tasks == {"embed", "classify", ENTAIL}
    assert (engine.info.max_tokens, engine.info.labels) == (130, tuple(NAMES.values()))
    rows = engine.run(pack(texts(), TaskOptions(ENTAIL))).rows
    np.testing.assert_allclose(rows, [logits_of(model, sequence) for sequence in texts()], atol=1e-5)
    # Of an embedding sentence-transformers, too, reads the decoder.
    [vector] = engine.run(pack(texts()[:1], TaskOptions("embed", "mean", normalize=False))).rows
    with torch.no_grad():
        hidden = model.base_model(input_ids=torch.from_numpy(texts()[0])[None].long()).last_hidden_state[0]
    np.testing.assert_allclose(vector, hidden.mean(dim=0).numpy(), atol=1e-5)


def test_a_text_without_an_end_is_read_at_its_last_token(tmp_path: Path) -> None:
    """transformers refuses it; tokenizers end every text."""
    model, [text] = save_model(tmp_path, "bart"), [texts()[0]]
    engine = load_engine(str(tmp_path), engine="auto", dtype="float32", device="cpu")
    without = np.append(text[:-1], END + 1).astype(np.int32)
    [row] = engine.run(pack([without], TaskOptions("classify"))).rows
    with torch.no_grad():
        hidden = model.base_model(input_ids=torch.from_numpy(without)[None].long()).last_hidden_state[0, -1]
        expected = torch.softmax(model.classification_head(hidden), dim=0).numpy()
    np.testing.assert_allclose(row, expected, atol=1e-5)


def test_one_label_is_a_pairs_score(tmp_path: Path) -> None:
    model = save_model(tmp_path, "bart", num_labels=1)
    engine = load_engine(str(tmp_path), engine="auto", dtype="float32", device="cpu")
    rows = engine.run(pack(texts(), TaskOptions("rerank"))).rows
    expected = [1 / (1 + np.exp(-logits_of(model, sequence))) for sequence in texts()]
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_without_labels_there_are_three(tmp_path: Path) -> None:
    save_model(tmp_path, "bart")
    edit_json(tmp_path / "config.json", id2label=None, label2id=None)
    engine = load_engine(str(tmp_path), engine="auto", dtype="float32", device="cpu")
    assert engine.info.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize("end", [[END, START], None])
def test_an_end_that_is_not_one_token_is_refused(tmp_path: Path, end: Any) -> None:
    save_model(tmp_path, "bart")
    edit_json(tmp_path / "config.json", eos_token_id=end)
    with pytest.raises(UnsupportedCheckpoint, match="eos_token_id is"):
        load_engine(str(tmp_path), engine="auto", dtype="float32", device="cpu")
