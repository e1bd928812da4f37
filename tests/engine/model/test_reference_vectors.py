"""Sparse weights and token vectors of texts are those of sentence-transformers, bit for bit the same in any batch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import FAMILIES
from penstock.engine.model import vectors
from penstock.engine.types import BatchOutput, Float32Array
from penstock.engine.vector_rows import split_sparse
from penstock.producer.tokenization import Tokenizer
from tests.engine.helpers import config_of, edited_tensors, pack, randomise
from tests.engine.model.test_reference_texts import LONGER, TEXTS, VOCAB, edit, save_tokenizer, tokenizer_of

pytestmark = pytest.mark.slow

ALL = [*TEXTS, *LONGER]
MASKED = tuple(name for name, family in FAMILIES.items() if family.masked_lm is not None)
_AUTO_MASKED: Any = transformers.AutoModelForMaskedLM  # transformers leaves from_config untyped


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the vocabulary has several, the last one not full."""
    monkeypatch.setattr(vectors, "_BLOCK", 150)


def run(directory: Path, texts: Sequence[str], task: str, *, alone: bool = False) -> list[Float32Array]:
    """Rows of texts, tokenized and cut as a worker does it, in one batch or each `alone`."""
    engine, tokenizer = load_engine(str(directory), dtype="float32", device="cpu"), Tokenizer.from_directory(directory)
    encoded = tokenizer.encode(texts, truncate=True, max_tokens=engine.info.max_tokens)
    tokenizer.close()
    types = [np.zeros_like(one.ids) if one.token_type_ids is None else one.token_type_ids for one in encoded]
    places = [[i] for i in range(len(texts))] if alone else [list(range(len(texts)))]
    outputs: list[BatchOutput] = [
        engine.run(pack([encoded[i].ids for i in some], TaskOptions(task), [types[i] for i in some])) for some in places
    ]
    return [row for output in outputs for row in output.rows]


def assert_same_bits(rows: Sequence[Float32Array], others: Sequence[Float32Array]) -> None:
    assert [row.tobytes() for row in rows] == [row.tobytes() for row in others]


def save_masked_lm(directory: Path, family: str, **config: Any) -> None:
    """A random ...ForMaskedLM with the tokenizer of its family, of at most 100 tokens."""
    save_tokenizer(directory, tokenizer_of(family))
    edit(directory / "tokenizer_config.json", model_max_length=100)
    model = _AUTO_MASKED.from_config(config_of(family, vocab_size=VOCAB, **config)).eval()
    randomise(model)
    model.save_pretrained(directory)


def assert_sparse_as_in_sentence_transformers(directory: Path) -> list[Float32Array]:
    reference = SparseEncoder(str(directory), device="cpu", local_files_only=True)
    rows = run(directory, ALL, "embed_sparse")
    for text, row in zip(ALL, rows, strict=True):
        expected = reference.encode(text, convert_to_sparse_tensor=False).numpy()  # alone, without padding
        ids, weights = split_sparse(row)
        np.testing.assert_array_equal(ids, np.flatnonzero(expected))
        np.testing.assert_allclose(weights, expected[ids], rtol=1e-6, atol=1e-5)
        assert 0 < len(ids) < len(expected)
    assert_same_bits(run(directory, ALL, "embed_sparse", alone=True), rows)
    return rows


@pytest.mark.parametrize("family", MASKED)
def test_a_masked_language_model_gives_the_weights_of_sparse_encoder(tmp_path: Path, family: str) -> None:
    save_masked_lm(tmp_path, family)
    rows = assert_sparse_as_in_sentence_transformers(tmp_path)
    assert len({row.tobytes() for row in rows}) > len(ALL) // 2  # texts have weights of their own
    info = load_engine(str(tmp_path), device="cpu").info
    assert (sorted(info.tasks), info.dim) == (["embed_sparse"], 0)


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_each_splade_pooling_is_that_of_sparse_encoder(tmp_path: Path, pooling: Any, activation: Any) -> None:
    save_masked_lm(tmp_path / "plain", "bert")
    transformer = SparseEncoder(str(tmp_path / "plain"), device="cpu")[0]
    modules = [transformer, SpladePooling(pooling, activation)]
    SparseEncoder(modules=modules, device="cpu").save(str(tmp_path / "model"))
    assert_sparse_as_in_sentence_transformers(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"pooling_strategy": "mean"}, "no 'mean' of 'relu'"), ({"temperature": 2}, "SpladePooling with temperature")],
)
def test_another_splade_pooling_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    save_masked_lm(tmp_path / "plain", "bert")
    SparseEncoder(str(tmp_path / "plain"), device="cpu").save(str(tmp_path / "model"))
    edit(tmp_path / "model" / "1_SpladePooling" / "config.json", **changes)
    with pytest.raises(CheckpointError, match=reason):
        load_engine(str(tmp_path / "model"), device="cpu")


def test_a_model_saved_by_version_5_is_read(tmp_path: Path) -> None:
    save_masked_lm(tmp_path / "plain", "distilbert")
    model = tmp_path / "model"
    SparseEncoder(str(tmp_path / "plain"), device="cpu").save(str(model))
    old = (model / "modules.json").read_text(encoding="utf-8")
    for new, name in (("base.modules.transformer.Transformer", "MLMTransformer"),
                      ("sparse_encoder.modules.splade_pooling.SpladePooling", "SpladePooling")):  # fmt: skip
        old = old.replace(f"sentence_transformers.{new}", f"sentence_transformers.sparse_encoder.models.{name}")
    (model / "modules.json").write_text(old, encoding="utf-8")
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 30, "do_lower_case": false}', encoding="utf-8")
    assert load_engine(str(model), device="cpu").info.max_tokens == 30
    assert_sparse_as_in_sentence_transformers(model)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_decoder_that_is_not_the_word_table_counts(tmp_path: Path, is_tied: bool) -> None:
    """Also where config.json ties them: transformers then warns, and takes what the file holds."""
    save_masked_lm(tmp_path, "bert", tie_word_embeddings=is_tied)
    chance = torch.Generator().manual_seed(1)
    with edited_tensors(tmp_path) as tensors:
        for name, shape in (("weight", (VOCAB, 48)), ("bias", (VOCAB,))):
            tensors[f"cls.predictions.decoder.{name}"] = torch.randn(shape, generator=chance) / 5
    assert_sparse_as_in_sentence_transformers(tmp_path)


def test_a_head_that_is_not_known_is_refused_and_not_run_padded(tmp_path: Path) -> None:
    save_masked_lm(tmp_path / "albert", "albert")
    with pytest.raises(UnsupportedCheckpoint, match=r"'albert' is not implemented\. Those of bert, "):
        load_engine(str(tmp_path / "albert"), device="cpu", engine="auto")
    save_masked_lm(tmp_path / "bert", "bert")
    with pytest.raises(UnsupportedCheckpoint, match="makes no vector of a text"):
        load_engine(str(tmp_path / "bert"), device="cpu", engine="padded")
