"""The sequences that the load asks for: repeated ones, new ones, and some on which the engine always fails."""

import random
import struct

from penstock.ops.chaos.fleet.faulty_engine import POISON
from penstock.ops.chaos.load.asked import Ids

_MOST_TOKENS = 24
_NUM_REPEATED = 500  # sequences that come again and again
_POISON_SHARE = 0.005


class SequenceMix:
    """A stream of sequences that the seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._repeated = [self._new() for _ in range(_NUM_REPEATED)]

    def take(self) -> tuple[Ids, bool]:
        """One sequence, and whether it is poison. Half of all are repeated, early ones more often than late ones."""
        number = self.random.random()
        if number < 0.5:
            return self._repeated[int(self.random.random() ** 3 * _NUM_REPEATED)], False
        if number > 1 - _POISON_SHARE:
            return self._new() + struct.pack("<I", POISON), True
        return self._new(), False

    def _new(self) -> Ids:
        length = self.random.randint(1, _MOST_TOKENS)
        return struct.pack(f"<{length}I", *[self.random.randrange(1, POISON) for _ in range(length)])
