"""Sparse weights and token vectors of texts are those of sentence-transformers, bit for bit the same in any batch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import FAMILIES
from penstock.engine.loading.conversion import convert
from penstock.engine.model import vectors
from penstock.engine.types import BatchOutput, Float32Array
from penstock.engine.vector_rows import split_sparse, split_vectors
from penstock.producer.tokenization import Tokenizer
from tests.engine.helpers import config_of, cpu_engine, edited_tensors, pack, random_sequences, randomise, save_encoder
from tests.engine.model.test_reference_texts import (
    LONGER,
    TEXTS,
    VOCAB,
    edit,
    save_tokenizer,
    tokenizer_of,
    write_modules,
)

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


class Bgem3:
    """bge-m3 by its paper and its authors' code: what each text has, alone.

    FlagEmbedding's M3Embedder: relu(sparse_linear(h)) of each token but cls, eos, pad and unk, and the largest of equal
    tokens; colbert_linear(h) of each token but the first, L2-normalised.
    """

    def __init__(self, directory: Path) -> None:
        self.transformer = SentenceTransformer(str(directory), device="cpu", local_files_only=True)
        self.sparse, self.tokens = (
            torch.load(directory / f"{name}_linear.pt", weights_only=True) for name in ("sparse", "colbert")
        )

    def __call__(self, text: str) -> tuple[Float32Array, Float32Array, dict[int, float]]:
        features = self.transformer.preprocess([text])
        with torch.no_grad():
            hidden = self.transformer[0](features)["token_embeddings"][0]
            weights = torch.relu(F.linear(hidden, self.sparse["weight"], self.sparse["bias"]))[:, 0]
            tokens = F.normalize(F.linear(hidden[1:], self.tokens["weight"], self.tokens["bias"]), dim=-1)
        largest: dict[int, float] = {}
        for token, weight in zip(features["input_ids"][0].tolist(), weights.tolist(), strict=True):
            if token not in (0, 1, 2, 3) and weight > largest.get(token, 0.0):
                largest[token] = weight
        return self.transformer.encode(text), tokens.numpy(), largest


def save_bge_m3(directory: Path, hidden_size: int = 48) -> Path:
    """bge-m3 as it is published, but for its encoder's pickle, in "published"; returns what `convert` makes of it."""
    published = directory / "published"
    published.mkdir()
    save_tokenizer(write_modules(published, pooling="pooling_mode_cls_token", more=("Normalize",)), "xlm-roberta")
    save_encoder(published, "xlm-roberta", vocab_size=VOCAB, hidden_size=hidden_size, bos_token_id=0, eos_token_id=2)
    chance = torch.Generator().manual_seed(2)
    for name, size, mean in (("sparse", 1, 0.7), ("colbert", 40, 0.0)):  # so that most texts have a weight above 0
        state = {
            "weight": torch.randn(size, hidden_size, generator=chance) / 7,
            "bias": torch.randn(size, generator=chance) / 7 + mean,
        }
        torch.save(state, published / f"{name}_linear.pt")
    convert(published, directory / "model")
    return directory / "model"


def assert_same_bits(rows: Sequence[Float32Array], others: Sequence[Float32Array]) -> None:
    assert [row.tobytes() for row in rows] == [row.tobytes() for row in others]


def save_masked_lm(directory: Path, family: str = "bert", **config: Any) -> Path:
    """A random ...ForMaskedLM with the tokenizer of its family, of at most 100 tokens."""
    save_tokenizer(directory, tokenizer_of(family))
    edit(directory / "tokenizer_config.json", model_max_length=100)
    model = _AUTO_MASKED.from_config(config_of(family, vocab_size=VOCAB, **config)).eval()
    randomise(model)
    model.save_pretrained(directory)
    return directory


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


def test_all_of_one_pass_is_not_for_pooling_that_leaves_out_the_prompt(tmp_path: Path) -> None:
    """The vector would be of the prompt too, and that of `embed` is not."""
    model = save_bge_m3(tmp_path)
    edit(next(model.glob("*_Pooling/config.json")), include_prompt=False)
    assert sorted(load_engine(str(model), device="cpu").info.tasks) == ["embed", "embed_sparse", "embed_tokens"]


def test_bge_m3_gives_each_kind_of_vector_and_all_of_one_pass(tmp_path: Path) -> None:
    model = save_bge_m3(tmp_path)
    reference = Bgem3(tmp_path / "published")
    info = load_engine(str(model), device="cpu").info
    assert sorted(info.tasks) == ["embed", "embed_all", "embed_sparse", "embed_tokens"]
    assert (info.dim, info.token_dim) == (48, 40)
    texts = [*ALL, "<unk> card <pad> card"]
    found = {task: run(model, texts, task) for task in info.tasks}
    for index, text in enumerate(texts):
        dense, tokens, weights = reference(text)
        row = {task: rows[index] for task, rows in found.items()}
        np.testing.assert_allclose(row["embed"], dense, atol=1e-5)
        np.testing.assert_allclose(row["embed_tokens"], tokens, atol=1e-5)
        ids, values = split_sparse(row["embed_sparse"])
        assert ids.tolist() == sorted(weights)
        np.testing.assert_allclose(values, [weights[token] for token in ids.tolist()], atol=1e-5)
        together = split_vectors(row["embed_all"], info.dim, info.token_dim)
        assert_same_bits(together, [row["embed"], row["embed_tokens"], row["embed_sparse"]])
    assert 3 <= sum(len(row) > 0 for row in found["embed_sparse"]) < len(texts)
    for task, rows in found.items():
        assert_same_bits(run(model, texts, task, alone=True), rows)


def test_a_batch_may_ask_for_each_kind_of_vector(tmp_path: Path) -> None:
    model = save_bge_m3(tmp_path)
    engine, sequences = cpu_engine(model), random_sequences([3, 7, 1, 7, 20, 3, 1, 2])
    options = [TaskOptions(task) for task in sorted(engine.info.tasks)] * 2
    together = engine.run(pack(sequences, options)).rows
    alone = [engine.run(pack([one], wanted)).rows[0] for one, wanted in zip(sequences, options, strict=True)]
    assert_same_bits(together, alone)


def test_a_sequence_of_one_token_has_its_vector(tmp_path: Path) -> None:
    """Every sequence has at least one, so that a length of 0 need not mean anything."""
    engine = cpu_engine(save_bge_m3(tmp_path))
    output = engine.run(pack(random_sequences([1, 2]), TaskOptions("embed_tokens")))
    assert [row.shape for row in output.rows] == [(1, 40), (1, 40)]
    output = engine.run(pack([np.array([0, 2], np.int32)], TaskOptions("embed_sparse")))
    assert output.rows[0].shape == (0,)


def test_heads_of_bge_m3_count_alone_and_in_the_revision(tmp_path: Path) -> None:
    model = save_bge_m3(tmp_path)
    both = load_engine(str(model), device="cpu").info
    (model / "colbert_linear.safetensors").unlink()
    one = load_engine(str(model), device="cpu").info
    assert (sorted(one.tasks), one.token_dim) == (["embed", "embed_sparse"], 0)
    assert one.revision != both.revision
    edit(model / "config.json", eos_token_id=5)
    with pytest.raises(UnsupportedCheckpoint, match="its own special tokens"):
        load_engine(str(model), device="cpu")


@pytest.mark.parametrize(("save", "task"), [(save_masked_lm, "embed_sparse"), (save_bge_m3, "embed_all")])
def test_one_sequence_overflows_and_the_others_are_as_without_it(tmp_path: Path, save: Any, task: str) -> None:
    sequences, huge = random_sequences([5, 1, 64, 3]), VOCAB - 1
    model = save(tmp_path)
    with edited_tensors(model) as tensors:
        (words,) = [name for name in tensors if name.endswith("word_embeddings.weight")]
        tensors[words][huge] = 3e38
    engine = cpu_engine(model)
    output = engine.run(pack([*sequences, np.array([7, huge, 8], np.int32)], TaskOptions(task)))
    assert output.not_finite == (4,)
    assert_same_bits(output.rows[:4], engine.run(pack(sequences, TaskOptions(task))).rows)


def test_a_head_that_is_not_known_is_refused_and_not_run_padded(tmp_path: Path) -> None:
    save_masked_lm(tmp_path / "albert", "albert")
    with pytest.raises(UnsupportedCheckpoint, match=r"'albert' is not implemented\. Those of bert, "):
        load_engine(str(tmp_path / "albert"), device="cpu", engine="auto")
    save_masked_lm(tmp_path / "bert", "bert")
    with pytest.raises(UnsupportedCheckpoint, match="makes no vector of a text"):
        load_engine(str(tmp_path / "bert"), device="cpu", engine="padded")
