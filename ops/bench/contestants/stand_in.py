"""Stand-ins for a model where delivery is measured: work of a known time, and inputs that cannot be computed."""

import time
from collections.abc import Callable

import numpy as np

from penstock.engine import NullEngine
from penstock.engine.types import BatchOutput, Engine, Float32Array, ModelInfo, PackedBatch
from penstock.ops.bench.load.payloads import POISON, is_poison
from penstock.producer.tokenization import Tokenizer

SEQUENCE_S = 0.004  # of the stand-in: a member computes 250 sequences a second
_DIM = 384

Encode = Callable[[list[str]], Float32Array]


class Unanswerable(ValueError):
    """The exception that poison causes."""


class SleepingEngine(NullEngine):
    """Sleeps for each sequence as long as a model would compute it."""

    def run(self, batch: PackedBatch) -> BatchOutput:
        time.sleep(len(batch.options) * SEQUENCE_S)
        return super().run(batch)


def sleeping_encode(texts: list[str]) -> Float32Array:
    """The same for the alternative."""
    time.sleep(len(texts) * SEQUENCE_S)
    return np.zeros((len(texts), _DIM), np.float32)


class PoisonableEngine:
    """Runs another engine; raises on batches with the token of POISON."""

    def __init__(self, engine: Engine, poison: int) -> None:
        self._engine = engine
        self._poison = poison

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    def run(self, batch: PackedBatch) -> BatchOutput:
        if self._poison in batch.token_ids:
            raise Unanswerable("The batch holds poison.")
        return self._engine.run(batch)


def poisonable(encode: Encode) -> Encode:
    """The same for the alternative."""

    def checked(texts: list[str]) -> Float32Array:
        if any(is_poison(text) for text in texts):
            raise Unanswerable("The batch holds poison.")
        return encode(texts)

    return checked


def poison_token(model: str) -> int:
    """The only token of POISON. Raises ValueError if the checkpoint has no such word."""
    tokenizer = Tokenizer.from_directory(model)
    try:
        empty, word = tokenizer.encode(["", POISON], truncate=False)
    finally:
        tokenizer.close()
    tokens = set(word.ids.tolist()) - set(empty.ids.tolist())
    if len(tokens) != 1:
        raise ValueError(f"{POISON!r} is no single token of {model}.")
    return int(tokens.pop())
