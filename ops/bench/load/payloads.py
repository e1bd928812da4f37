"""Random sequences, from pools so large that none is twice in flight: no cache and no single flight answers them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.ops.bench.common.draws import Lengths, uniform
from penstock.ops.bench.common.setup import shuffled_texts
from penstock.ops.bench.load.loads import Load, Payload

POISON = "poison"  # a text with this word raises, in the engine as in the alternative's encoder
_FIRST_ID = 1000  # ids below are special or unused in BERT's vocabularies
_NULL_VOCABULARY, _NULL_MAX_TOKENS = 30_000, 512
_NUM_MESSAGES = 3080  # of Banking77's test
_POOL_ROWS = 16_384  # more than are in flight of one client
_LONG_POOL_ROWS = 4096
_LONG = 200  # mean length from which the smaller pool is made, which takes a second less
_WORD_PREFIXES = ("##", "[", "<")  # continuations and special tokens


def pool_of(load: Load, model: Path | None, number: int, num_clients: int) -> list[list[Any]]:
    """Calls of one client, which no other client makes; they are more than one client has in flight."""
    if load.payload == "banking77":
        texts = shuffled_texts(_NUM_MESSAGES)[number::num_clients]
        texts = with_poison(texts, load.poison_every) if load.poison_every else texts
        return [texts[start : start + load.rows] for start in range(0, len(texts) - load.rows + 1, load.rows)]
    rows = _POOL_ROWS if (load.low + load.high) / 2 < _LONG else _LONG_POOL_ROWS
    count = rows // load.rows * load.rows
    found = sequences(load.payload, uniform(load.low, load.high, count, number), model, number)
    return [found[start : start + load.rows] for start in range(0, count, load.rows)]


def is_poison(text: object) -> bool:
    """Whether the stand-ins of a model raise on it."""
    return isinstance(text, str) and POISON in text.split()


def with_poison(texts: Sequence[str], every: int) -> list[str]:
    """The texts, each `every`-th one, from the middle of the first span on, with POISON added."""
    return [f"{text} {POISON}" if index % every == every // 2 else text for index, text in enumerate(texts)]


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
