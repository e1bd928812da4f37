"""Engines for the chaos suite: one whose results identify their sequences, and one that fails as it is told to."""

import random
import threading
from pathlib import Path

import numpy as np

from penstock.engine import NullEngine
from penstock.engine.types import BatchOutput, Engine, ModelInfo, PackedBatch

HANG = "hang"  # a file in the control folder; the batch that removes it never ends
# The errors, by which a log shows them.
POISONED, PASSING, OUT_OF_MEMORY = "cannot compute this", "a passing fault", "out of memory"
_FAILING_SHARE = 0.01  # of batches, for each kind of failure


class EchoEngine(NullEngine):
    """The vector of a sequence: its length, its first and last id, its sum of ids. A mix-up of answers shows."""

    def __init__(self, name: str) -> None:
        super().__init__(4, name=name)

    def run(self, batch: PackedBatch) -> BatchOutput:
        sequences = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
        rows = [np.array([len(ids), ids[0], ids[-1], ids.sum()], np.float32) for ids in sequences]
        return BatchOutput(rows, 0.0)


def poison(info: ModelInfo) -> int:
    """The token id on which a `FaultyEngine` always fails."""
    return info.vocab_size - 1


class FaultyEngine:
    """Runs another engine and fails on the way: on poison always, on batches of several sequences at random.

    A batch that fails at random is right when it runs in parts, so no request may fail by it.
    """

    def __init__(self, engine: Engine, control: Path, seed: int) -> None:
        self._engine = engine
        self._hang = control / HANG
        self._random = random.Random(seed)
        self.is_faulty = False  # set when the worker has measured the engine

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    def run(self, batch: PackedBatch) -> BatchOutput:
        if self.is_faulty:
            self._fail(batch)
        return self._engine.run(batch)

    def _fail(self, batch: PackedBatch) -> None:
        if self._was_told_to_hang():
            threading.Event().wait()
        if poison(self.info) in batch.token_ids:
            raise ValueError(POISONED)
        if len(batch.options) > 1:
            number = self._random.random()
            if number < _FAILING_SHARE:
                raise RuntimeError(PASSING)
            if number < 2 * _FAILING_SHARE:
                raise MemoryError(OUT_OF_MEMORY)

    def _was_told_to_hang(self) -> bool:
        try:
            self._hang.unlink()
        except FileNotFoundError:
            return False
        return True
