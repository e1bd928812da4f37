"""Texts through decoders: tokens of AutoTokenizer, and the vectors of SentenceTransformer on the same directory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

from penstock.engine import load_engine
from penstock.engine.families import family_of
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.weights import RotaryAttention
from penstock.producer.tokenization import Tokenizer
from tests.engine.helpers import config_of, cpu_engine, pack, randomise, save_encoder, write_json
from tests.producer.tokenizer_makers import MAKERS, edit

pytestmark = pytest.mark.slow

_AUTO_TOKENIZER: Any = transformers.AutoTokenizer

VOCABULARY = 330  # enough for each tokenizer
TEXTS = [
    "where is my card",
    "",
    "card",
    "My CARD été 中文 🙂\n\n  the",
    "the card " * 30,
    "a <eos> b </s> c<|endoftext|>",
]
PROMPTS = {"query": "Instruct: find the card\nQuery:", "document": ""}


TOKENIZERS = {
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "llama": "llama",
    "mistral": "llama, ended by its options",
    "gemma3_text": "gemma",
}


def save_tokenizer(directory: Path, family: str) -> None:
    """The tokenizer, beside the config.json of a model that is saved after it."""
    MAKERS[TOKENIZERS[family]](directory)
    edit(directory, model_max_length=40)
    (directory / "config.json").unlink()


def modules_of(family: str) -> list[Any]:
    if family == "gemma3_text":  # as EmbeddingGemma has them
        dense = [
            Dense(into, out, bias=False, activation_function=torch.nn.Identity()) for into, out in ((48, 80), (80, 40))
        ]
        return [Pooling(48, "mean"), *dense, Normalize()]
    return [Pooling(48, "lasttoken"), Normalize()]


@pytest.mark.parametrize(
    ("kind", "config"),
    [("AutoModel", {}), ("AutoModelForCausalLM", {}), ("AutoModelForCausalLM", {"is_causal": False})],
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_without_modules_a_text_is_pooled_as_in_sentence_transformers(
    tmp_path: Path, family: str, kind: str, config: dict[str, Any]
) -> None:
    """The last token of a ...ForCausalLM, unless it attends to both sides, and the mean of a ...Model."""
    model = getattr(transformers, kind).from_config(config_of(family, vocab_size=VOCABULARY, pad_token_id=0, **config))
    randomise(model)
    save_tokenizer(tmp_path, family)
    model.save_pretrained(tmp_path)
    reference = SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    for name in ("packed", "padded"):
        engine, tokenizer = (
            load_engine(str(tmp_path), dtype="float32", device="cpu", engine=name),
            Tokenizer.from_directory(tmp_path),
        )
        ids = [one.ids for one in tokenizer.encode(TEXTS, truncate=True, max_tokens=engine.info.max_tokens)]
        np.testing.assert_allclose(engine.run(pack(ids)).rows, reference.encode(TEXTS), rtol=0, atol=1e-5)
        tokenizer.close()


@pytest.mark.parametrize("family", TOKENIZERS)
def test_texts_have_the_vectors_of_sentence_transformers(tmp_path: Path, family: str) -> None:
    """Saved by it, with prompts, alone and in a batch; their tokens are those of AutoTokenizer."""
    torch.manual_seed(0)
    plain, saved = tmp_path / "plain", tmp_path / "saved"
    save_tokenizer(plain, family)
    save_encoder(plain, family, vocab_size=VOCABULARY, pad_token_id=0)
    modules = [SentenceTransformer(str(plain), device="cpu")[0], *modules_of(family)]
    SentenceTransformer(modules=modules, prompts=PROMPTS, default_prompt_name="query", device="cpu").save(str(saved))
    reference = SentenceTransformer(str(saved), device="cpu", local_files_only=True)
    engine, tokenizer = cpu_engine(saved), Tokenizer.from_directory(saved)
    theirs = _AUTO_TOKENIZER.from_pretrained(saved)
    for prompt, name in ((PROMPTS["query"], None), ("", "document")):
        texts = [prompt + text for text in TEXTS]
        encoded = tokenizer.encode(texts, truncate=True, max_tokens=engine.info.max_tokens)
        expected = theirs(texts, truncation=True, max_length=engine.info.max_tokens)["input_ids"]
        assert [one.ids.tolist() for one in encoded] == expected
        filled = [i for i, one in enumerate(encoded) if len(one.ids)]
        rows = engine.run(pack([encoded[i].ids for i in filled])).rows
        vectors = reference.encode([TEXTS[i] for i in filled], prompt_name=name)
        np.testing.assert_allclose(rows, vectors, rtol=0, atol=1e-5)
    tokenizer.close()


@pytest.mark.parametrize("name", ["packed", "padded"])
@pytest.mark.parametrize("family", [*TOKENIZERS, "eurobert", "modernbert"])
def test_a_text_may_have_more_tokens_than_max_position_embeddings(tmp_path: Path, family: str, name: str) -> None:
    """As in sentence-transformers, where its files say so."""
    plain, saved = tmp_path / "plain", tmp_path / "saved"
    save_tokenizer(plain, family if family in TOKENIZERS else "llama")
    save_encoder(plain, family, vocab_size=VOCABULARY, pad_token_id=0)
    modules = [SentenceTransformer(str(plain), device="cpu")[0], Pooling(48, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(saved))
    write_json(saved / "sentence_bert_config.json", {"max_seq_length": 260, "do_lower_case": False})
    reference = SentenceTransformer(str(saved), device="cpu", local_files_only=True)
    engine = load_engine(str(saved), dtype="float32", device="cpu", engine=name)
    tokenizer = Tokenizer.from_directory(saved)
    assert engine.info.max_tokens == 260
    (encoded,) = tokenizer.encode(["the card " * 300], truncate=True, max_tokens=260)
    tokenizer.close()
    (row,) = engine.run(pack([encoded.ids])).rows
    np.testing.assert_allclose(row, reference.encode("the card " * 300), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("positions", "limit", "most"), [(1_000_000, 64, 64), (4_194_304, 64, 64), (200_000, 1e30, 200_000)]
)
def test_angles_are_of_no_more_tokens_than_a_text_may_have(
    tmp_path: Path, positions: int, limit: float, most: int
) -> None:
    """config.json may state more positions, for some models a million."""
    save_tokenizer(tmp_path, "llama")
    edit(tmp_path, model_max_length=limit)
    save_encoder(tmp_path, "llama", vocab_size=VOCABULARY, max_position_embeddings=positions)
    checkpoint = read_checkpoint(tmp_path)
    attention = family_of(checkpoint).encoder(checkpoint).layers[0].attention
    assert isinstance(attention, RotaryAttention)
    assert len(attention.cosines) == len(attention.sines) == cpu_engine(tmp_path).info.max_tokens == most
