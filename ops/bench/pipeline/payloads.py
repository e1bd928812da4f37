"""Random sequences, from pools so large that none is twice in flight: no cache and no single flight answers them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.ops.bench.common.lengths import Lengths, uniform
from penstock.ops.bench.pipeline.loads import Payload

_FIRST_ID, _NULL_VOCABULARY, _NULL_MAX_TOKENS = (
    1000,
    30_000,
    512,
)  # ids below the first are special or unused in BERT's vocabularies
_WORD_PREFIXES = ("##", "[", "<")  # continuations and special tokens


def sequences(payload: Payload, lengths: Lengths, model: Path | None, seed: int) -> list[Any]:
    """One sequence for each length: token ids, or a text of as many words. `model`: None is the null engine."""
    random = np.random.default_rng(seed)
    splits = np.cumsum(lengths)[:-1]
    if payload == "ids":
        ids = random.integers(_FIRST_ID, vocabulary_size(model), int(lengths.sum())).astype(np.uint32)
        return np.split(ids, splits)
    if model is None:
        raise ValueError("The null engine has no tokenizer. This is a bug.")
    words = random.choice(vocabulary_words(model), int(lengths.sum()))
    return [" ".join(group) for group in np.split(words, splits)]


def calls(
    payload: Payload, low: int, high: int, rows: int, count: int, model: Path | None, seed: int
) -> list[list[Any]]:
    """`count` calls of `rows` sequences each, of uniform lengths."""
    found = sequences(payload, uniform(low, high, rows * count, seed), model, seed)
    return [found[start : start + rows] for start in range(0, len(found), rows)]


def vocabulary_size(model: Path | None) -> int:
    """Of a checkpoint's model."""
    if model is None:
        return _NULL_VOCABULARY
    size: int = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    return size


def max_tokens(model: Path | None) -> int:
    """Longest sequence that a checkpoint takes: its positions, or less where sentence-transformers' file says so."""
    if model is None:
        return _NULL_MAX_TOKENS
    limits: list[int | None] = []
    for name, key in (("config.json", "max_position_embeddings"), ("sentence_bert_config.json", "max_seq_length")):
        if (model / name).exists():
            limits.append(json.loads((model / name).read_text(encoding="utf-8")).get(key))
    return min(limit for limit in limits if limit is not None)


def vocabulary_words(model: Path) -> npt.NDArray[np.str_]:
    """Words that are one token each in the checkpoint's tokenizer, so that words count as tokens do."""
    vocabulary = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words = [word for word in vocabulary if word.isascii() and word.isalnum() and not word.startswith(_WORD_PREFIXES)]
    return np.array(sorted(words))
