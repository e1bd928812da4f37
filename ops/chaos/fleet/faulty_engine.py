"""The engine of the chaos suite: its results identify their sequences, and it fails as it is told to."""

import random
import threading
from pathlib import Path

import numpy as np

from penstock.engine import NullEngine
from penstock.engine.types import BatchOutput, Float32Array, Int32Array, PackedBatch

VOCAB_SIZE = 30_522
POISON = VOCAB_SIZE - 1  # the token id on which the engine always fails
HANG = "hang"  # a file in the control folder; the batch that removes it never ends
# The errors, by which a log shows them.
POISONED, PASSING, OUT_OF_MEMORY = "cannot compute this", "a passing fault", "out of memory"
_FAILING_SHARE = 0.01  # of batches, for each kind of failure


def vector(token_ids: Int32Array) -> Float32Array:
    """The result of a sequence: its length, its first and last id, its sum of ids. A mix-up of answers shows."""
    return np.array([len(token_ids), token_ids[0], token_ids[-1], token_ids.sum()], np.float32)


class FaultyEngine(NullEngine):
    """Fails on the way: on poison always, on batches of several sequences at random.

    A batch that fails at random is right when it runs in parts, so no request may fail by it.
    """

    def __init__(self, name: str, control: Path, seed: int) -> None:
        super().__init__(4, name=name, vocab_size=VOCAB_SIZE)
        self._hang = control / HANG
        self._random = random.Random(seed)
        self.is_faulty = False  # set when the worker has measured the engine

    def run(self, batch: PackedBatch) -> BatchOutput:
        if self.is_faulty:
            self._fail(batch)
        return BatchOutput([vector(ids) for ids in np.split(batch.token_ids, batch.cu_seqlens[1:-1])], 0.0)

    def _fail(self, batch: PackedBatch) -> None:
        if self._was_told_to_hang():
            threading.Event().wait()
        if POISON in batch.token_ids:
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
