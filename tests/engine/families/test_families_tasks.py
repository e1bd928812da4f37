"""Scores of pairs and of tokens, against sentence-transformers and transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from penstock.engine import TaskOptions
from penstock.engine.errors import UnsupportedCheckpoint
from tests.engine.helpers import (
    TAGGERS,
    VOCAB,
    cpu_engine,
    edit_json,
    pack,
    random_sequences,
    save_classifier,
    save_tagger,
    write_json,
)

pytestmark = pytest.mark.slow

PAIRS = [("w1 w7 w30", "w2 w2"), ("w5", "w9 w1 w4 w4 w8 w100"), ("w3 w3", "w3")]
LENGTHS = (1, 12, 127, 2, 128, 12, 129)


def save_cross_encoder(directory: Path, **config: Any) -> None:
    """A random BERT with one logit and a tokenizer of the words w0, w1, ..."""
    save_classifier(directory, "bert", num_labels=1, **config)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(VOCAB - 5))]
    (directory / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "model_max_length": 100})


def assert_scores_equal(directory: Path) -> None:
    """The engine's `rerank` scores of PAIRS against CrossEncoder.predict's."""
    reference = CrossEncoder(str(directory), device="cpu")
    expected = reference.predict(PAIRS)
    encoded = reference.tokenizer([a for a, _ in PAIRS], [b for _, b in PAIRS])
    ids, types = ([np.array(row, np.int32) for row in encoded[key]] for key in ("input_ids", "token_type_ids"))
    assert all(row.max() == 1 for row in types)
    engine = cpu_engine(directory)
    assert engine.info.tasks == {"embed", "classify", "rerank"}
    rows = engine.run(pack(ids, TaskOptions("rerank"), types)).rows
    assert [row.shape for row in rows] == [(1,)] * len(PAIRS)
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-5)


SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0.1"}},
        {"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.0.1"}},
        {"sbert_ce_default_activation_function": IDENTITY},
        {"sbert_ce_default_activation_function": SIGMOID},
    ],
    ids=str,
)
def test_pairs_score_as_in_sentence_transformers(tmp_path: Path, stated: dict[str, Any]) -> None:
    save_cross_encoder(tmp_path)
    edit_json(tmp_path / "config.json", **stated)
    assert_scores_equal(tmp_path)


@pytest.mark.parametrize("activation", [torch.nn.Sigmoid(), torch.nn.Identity()], ids=str)
def test_pairs_score_alike_after_sentence_transformers_saved_the_model(tmp_path: Path, activation: Any) -> None:
    save_cross_encoder(tmp_path / "plain")
    CrossEncoder(str(tmp_path / "plain"), device="cpu", activation_fn=activation).save_pretrained(str(tmp_path / "st"))
    assert_scores_equal(tmp_path / "st")


def test_a_cross_encoder_still_classifies_as_transformers_does(tmp_path: Path) -> None:
    model = save_classifier(tmp_path, "bert", num_labels=1)
    sequences = random_sequences((3, 20))
    rows = cpu_engine(tmp_path).run(pack(sequences, TaskOptions("classify"))).rows
    with torch.no_grad():
        logits = [model(input_ids=torch.from_numpy(s)[None].long()).logits[0] for s in sequences]
    np.testing.assert_allclose(rows, torch.sigmoid(torch.stack(logits)).numpy(), atol=1e-5)


def test_an_activation_that_is_not_known_is_named_and_never_imported(tmp_path: Path) -> None:
    save_cross_encoder(tmp_path)
    edit_json(tmp_path / "config.json", sentence_transformers={"activation_fn": "os.system"})
    with pytest.raises(UnsupportedCheckpoint, match=r"activation 'os.system'.*Sigmoid"):
        cpu_engine(tmp_path)


@pytest.mark.parametrize("family", TAGGERS)
def test_every_token_has_its_scores(tmp_path: Path, family: str) -> None:
    model = save_tagger(tmp_path, family, id2label={0: "O", 1: "B", 2: "I"})
    engine = cpu_engine(tmp_path)
    assert engine.info.tasks == {"embed", "token_classify"}
    assert engine.info.labels == ("O", "B", "I")
    sequences = random_sequences(LENGTHS)
    rows = engine.run(pack(sequences, TaskOptions("token_classify"))).rows
    with torch.no_grad():
        for sequence, row in zip(sequences, rows, strict=True):
            logits = model(input_ids=torch.from_numpy(sequence)[None].long()).logits[0]
            assert row.dtype == np.float32
            assert row.shape == (len(sequence), 3)
            np.testing.assert_allclose(row, torch.softmax(logits, dim=1).numpy(), atol=1e-5)


def test_tokens_and_embeddings_share_a_batch(tmp_path: Path) -> None:
    save_tagger(tmp_path, "bert", num_labels=4)
    engine, sequences = cpu_engine(tmp_path), random_sequences((9, 3, 9))
    wanted = [TaskOptions("token_classify"), TaskOptions("embed"), TaskOptions("token_classify")]
    rows = engine.run(pack(sequences, wanted)).rows
    assert [row.shape for row in rows] == [(9, 4), (48,), (9, 4)]
    for row, sequence, options in zip(rows, sequences, wanted, strict=True):
        np.testing.assert_allclose(row, engine.run(pack([sequence], options)).rows[0], atol=2e-6)
