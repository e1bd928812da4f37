"""Vectors and scores of texts are those of SentenceTransformer and CrossEncoder, whatever the directory says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense

from penstock.engine import TaskOptions, load_engine
from penstock.engine.types import Float32Array
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import TokenizerError
from penstock.producer.wire.messages import Text
from tests.engine.helpers import CLASSIFIERS, FAMILIES, pack, randomise, save_classifier, save_encoder, write_json
from tests.producer.tokenizer_makers import MAKERS

pytestmark = pytest.mark.slow

TEXTS = ["The Card", "the card", "where is my card where is my card where is my card where", "É a\n\n", "", "a"]
VOCAB = 400  # enough for each tokenizer


def write_modules(
    directory: Path, transformer: str = "", pooling: str = "pooling_mode_mean_tokens", more: tuple[str, ...] = ()
) -> Path:
    """A sentence-transformers directory. Returns that of the transformer, which is to be filled.

    more: modules after Pooling: Dense, which is made here, and Normalize.
    """
    kinds = {
        transformer: "Transformer",
        "1_Pooling": "Pooling",
        **{f"{2 + i}_{kind}": kind for i, kind in enumerate(more)},
    }
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    write_json(directory / "modules.json", modules)
    write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": 48, pooling: True})
    if "Dense" in more:
        dense = Dense(48, 32, bias=False, activation_function=torch.nn.Identity())
        randomise(dense)
        (directory / "2_Dense").mkdir()
        dense.save(str(directory / "2_Dense"))
    root = directory / transformer
    root.mkdir(exist_ok=True)
    return root


def save_tokenizer(directory: Path, kind: str) -> None:
    """The tokenizer, beside the config.json of a model that is saved after it."""
    MAKERS[kind](directory)
    (directory / "config.json").unlink(missing_ok=True)


def edit(path: Path, **changes: Any) -> None:
    write_json(path, (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}) | changes)


def tokenizer_of(family: str) -> str:
    """The kind of tokenizer that is published with a family, or one that any model may have."""
    same = {"mt5": "t5", "umt5": "t5", "qwen2": "qwen3"}  # embedders of Qwen2 end a text as those of Qwen3 do
    return same.get(family, family if family in MAKERS else "backend")


def run(directory: Path, texts: list[Text], task: str, engine: str, *, alone: bool = False) -> Float32Array:
    """Results of texts, tokenized and cut as a worker does it, in one batch or each `alone`."""
    loaded, tokenizer = (
        load_engine(str(directory), dtype="float32", device="cpu", engine=engine),
        Tokenizer.from_directory(directory),
    )
    encoded = tokenizer.encode(texts, truncate=True, max_tokens=loaded.info.max_tokens)
    tokenizer.close()
    ids = [one.ids for one in encoded]
    types = [np.zeros_like(one.ids) if one.token_type_ids is None else one.token_type_ids for one in encoded]
    batches = [slice(i, i + 1) for i in range(len(ids))] if alone else [slice(None)]
    outputs = [loaded.run(pack(ids[batch], TaskOptions(task), types[batch])) for batch in batches]
    return np.stack([row for output in outputs for row in output.rows])


def assert_embeds_as_sentence_transformers(
    directory: Path, texts: list[str], engines: tuple[str, ...] = ("packed",), *, atol: float = 2e-5
) -> None:
    reference = SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    expected = np.stack([reference.encode(text) for text in texts])  # alone, without padding
    for engine in engines:
        np.testing.assert_allclose(run(directory, [*texts], "embed", engine), expected, rtol=0, atol=atol)


# Of decoders, whose published checkpoints pool their last token, and for the others the mean.
LAST = ("llama", "mistral", "qwen2", "qwen3")
LONGER = [" ".join((["where", "is", "my", "card"] * 50)[:count]) for count in (1, 20, 62, 70, 200)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_embeds_texts_as_sentence_transformers_alone_and_together(tmp_path: Path, family: str) -> None:
    pooling = "pooling_mode_lasttoken" if family in LAST else "pooling_mode_mean_tokens"
    root = write_modules(tmp_path, pooling=pooling, more=("Dense", "Normalize"))  # as sentence-t5 has them
    save_tokenizer(root, tokenizer_of(family))
    edit(root / "tokenizer_config.json", model_max_length=100)
    save_encoder(root, family, vocab_size=VOCAB)
    texts = [*TEXTS, *LONGER]
    assert_embeds_as_sentence_transformers(tmp_path, texts, atol=1e-5)
    together = run(tmp_path, [*texts], "embed", "packed")
    np.testing.assert_array_equal(run(tmp_path, [*texts], "embed", "packed", alone=True), together)
    assert np.abs(together[2:] - together[0]).max(axis=1).min() > 1e-3  # texts have vectors of their own


@pytest.mark.parametrize("family", ["t5", "qwen3", "llama", "roberta"])
def test_the_prompt_is_left_out_of_the_pooling_by_its_tokens_in_any_tokenizer(tmp_path: Path, family: str) -> None:
    """As INSTRUCTOR has it. A prompt that is longer than the limit is counted as it is cut."""
    root = write_modules(tmp_path, more=("Dense", "Normalize"))
    edit(tmp_path / "1_Pooling" / "config.json", include_prompt=False)
    save_tokenizer(root, tokenizer_of(family))
    edit(root / "tokenizer_config.json", model_max_length=16)
    save_encoder(root, family, vocab_size=VOCAB)
    reference = SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    engine, tokenizer = load_engine(str(tmp_path), dtype="float32", device="cpu"), Tokenizer.from_directory(tmp_path)
    assert not tokenizer.prompts.are_pooled
    texts = [text for text in TEXTS if text]
    longest = "the card" if family == "llama" else "where is my card " * 3  # which ends no text with a special token
    for prompt in ("the card is: ", "where is", longest):
        left_out = tokenizer.count_prompt(prompt, truncate=True, max_tokens=16)
        encoded = tokenizer.encode([prompt + text for text in texts], truncate=True, max_tokens=16)
        kept = [one.ids for one in encoded if len(one.ids) > left_out]  # the reference gives the others zeros
        rows = np.stack(engine.run(pack(kept, TaskOptions("embed", prompt_tokens=left_out))).rows)
        expected = [reference.encode(text, prompt=prompt) for text in texts]
        has_rest = [len(one.ids) > left_out for one in encoded]
        np.testing.assert_allclose(rows, np.stack(expected)[has_rest], rtol=0, atol=1e-5)
        alone = [engine.run(pack([ids], TaskOptions("embed", prompt_tokens=left_out))).rows[0] for ids in kept]
        np.testing.assert_array_equal(alone, rows)
    tokenizer.close()


NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


@pytest.mark.parametrize(("name", "folder"), [*((name, "") for name in NAMES), ("roberta", "0_Transformer")])
def test_each_name_of_the_sentence_configuration_is_read(tmp_path: Path, name: str, folder: str) -> None:
    root = write_modules(tmp_path, folder)
    save_tokenizer(root, "bert")
    save_encoder(root, "bert", vocab_size=VOCAB)
    write_json(root / f"sentence_{name}_config.json", {"max_seq_length": 8, "do_lower_case": False})
    edit(root / "tokenizer_config.json", model_max_length=128)
    assert load_engine(str(tmp_path), dtype="float32", device="cpu").info.max_tokens == 8
    assert_embeds_as_sentence_transformers(tmp_path, TEXTS)


@pytest.mark.parametrize(
    ("sentence", "tokenizer", "positions", "expected"),
    [
        ({"max_seq_length": 64}, 8, 130, 64),
        ({"max_seq_length": 8}, 64, 130, 8),
        ({"max_seq_length": None}, 8, 130, 8),
        ({"max_seq_length": 64, "tokenizer_args": {"model_max_length": 16}}, 8, 130, 16),
        ({"max_seq_length": 64}, 8, 32, 32),  # no more than there are positions
        ({}, 8, 130, 8),
        ({}, 10**30, 130, 130),
        (None, 8, 130, 8),
    ],
)
@pytest.mark.parametrize("engine", ["packed", "padded"])
def test_the_limit_is_the_first_that_sentence_transformers_takes(
    tmp_path: Path, sentence: dict[str, Any] | None, tokenizer: int, positions: int, expected: int, engine: str
) -> None:
    root = write_modules(tmp_path)
    save_tokenizer(root, "bert")
    save_encoder(root, "bert", vocab_size=VOCAB, max_position_embeddings=positions)
    if sentence is not None:
        write_json(root / "sentence_bert_config.json", sentence)
    edit(root / "tokenizer_config.json", model_max_length=tokenizer)
    assert load_engine(str(tmp_path), dtype="float32", device="cpu", engine=engine).info.max_tokens == expected
    if expected < positions:
        assert_embeds_as_sentence_transformers(tmp_path, TEXTS)


@pytest.mark.parametrize("engine", ["packed", "padded"])
def test_deberta_without_a_table_of_positions_reads_on_to_the_stated_limit(tmp_path: Path, engine: str) -> None:
    root = write_modules(tmp_path)
    save_tokenizer(root, "deberta-v2")
    save_encoder(root, "deberta-v2", vocab_size=VOCAB, max_position_embeddings=20)
    write_json(root / "sentence_bert_config.json", {"max_seq_length": 64})
    assert_embeds_as_sentence_transformers(tmp_path, [*TEXTS, *LONGER], (engine,))


def test_a_directory_without_modules_has_the_limit_of_its_tokenizer(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "bert")
    save_encoder(tmp_path, "bert", vocab_size=VOCAB)
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": True})  # not read there
    edit(tmp_path / "tokenizer_config.json", model_max_length=8, do_lower_case=False)
    assert_embeds_as_sentence_transformers(tmp_path, TEXTS)


@pytest.mark.parametrize("kind", ["bert, cased by its options", "xlm-roberta", "roberta"])
def test_do_lower_case_of_the_sentence_configuration_counts(tmp_path: Path, kind: str) -> None:
    family = kind.partition(",")[0]
    root = write_modules(tmp_path)
    save_tokenizer(root, kind)
    save_encoder(root, family, vocab_size=VOCAB)
    cased = run(tmp_path, [*TEXTS], "embed", "packed")
    write_json(root / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    assert_embeds_as_sentence_transformers(tmp_path, TEXTS)
    assert np.abs(run(tmp_path, [*TEXTS], "embed", "packed") - cased).max() > 0.1


@pytest.mark.parametrize(
    "stated",
    [
        {"query_length": 8},
        {"processing_kwargs": {"text": {"truncation": False}}},
        {"tokenizer_args": {"tokenizer_file": "/etc/passwd"}},
    ],
)
def test_what_changes_tokens_and_is_not_implemented_is_refused(tmp_path: Path, stated: dict[str, Any]) -> None:
    save_tokenizer(write_modules(tmp_path), "bert")
    write_json(tmp_path / "sentence_bert_config.json", stated)
    with pytest.raises(TokenizerError, match="not implemented"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "bert, cased by its options", "bert, cut on the left", "bert, accents kept"])
def test_the_options_of_the_tokenizer_count(tmp_path: Path, kind: str) -> None:
    save_tokenizer(write_modules(tmp_path), kind)
    save_encoder(tmp_path, "bert", vocab_size=VOCAB)
    assert_embeds_as_sentence_transformers(tmp_path, TEXTS, ("packed", "padded"))


PADDED = ["a <pad> card", "<pad>", "<pad><pad> the card <pad>", "a [PAD] card", "the card"]


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert", "mpnet", "bert"])
def test_a_pad_token_in_a_text_has_the_position_that_transformers_gives_it(tmp_path: Path, family: str) -> None:
    save_tokenizer(write_modules(tmp_path), family)
    save_encoder(tmp_path, family, vocab_size=VOCAB)
    assert_embeds_as_sentence_transformers(tmp_path, PADDED, ("packed", "padded"))


def test_a_text_full_of_pad_tokens_may_have_as_many_as_the_limit(tmp_path: Path) -> None:
    save_tokenizer(write_modules(tmp_path), "roberta")
    save_encoder(tmp_path, "roberta", vocab_size=VOCAB)
    edit(tmp_path / "tokenizer_config.json", model_max_length=130)
    assert_embeds_as_sentence_transformers(tmp_path, ["<pad>" * 200, "card" * 200, "card<pad>" * 100])


PAIRS: list[Text] = [("where is my card", "the card is a card"), ("a", "card"), ("The Card " * 9, "a " * 9)]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, tokenizer_of(family)) for family in CLASSIFIERS),
        ("bert", "bert, without types"),
        ("bert", "backend"),
        ("bert", "backend with types"),
        ("roberta", "roberta with a tokenizer of bert"),
        ("roberta", "backend"),
    ],
)
def test_pairs_score_as_in_cross_encoder(tmp_path: Path, family: str, kind: str) -> None:
    save_tokenizer(tmp_path, kind)
    padding = {"pad_token_id": 0} if family in LAST else {}  # of two texts transformers' classifiers ask for it
    save_classifier(tmp_path, family, vocab_size=VOCAB, num_labels=1, **padding)
    reference = CrossEncoder(str(tmp_path), device="cpu", local_files_only=True)
    expected = np.concatenate([reference.predict([pair]) for pair in PAIRS])
    for engine in ("packed", "padded"):
        np.testing.assert_allclose(run(tmp_path, PAIRS, "rerank", engine)[:, 0], expected, atol=2e-5)
