"""Arguments of every part of a suite, and its texts."""

import random
from dataclasses import dataclass
from pathlib import Path

from penstock.ops.demo.banking77 import read_messages

ROUNDS = 3  # of every comparison; its median is reported


@dataclass(frozen=True, slots=True)
class Setup:
    """Model, data and size of one run."""

    model: Path  # checkpoint directory of all-MiniLM-L6-v2
    logs: Path  # of the processes that are started
    cores: int
    scale: float  # of the number of requests and of the duration
    before: str | None = None  # an earlier commit, for the part that compares with it

    def count(self, full: int) -> int:
        """`full`, scaled; at least 64, so that there are batches and percentiles."""
        return max(64, int(full * self.scale))

    def seconds(self, full: float) -> float:
        """`full`, scaled; at least one, so that a load has answers."""
        return max(1.0, full * self.scale)


def shuffled_texts(count: int) -> list[str]:
    """Banking77's test texts, shuffled because the file is sorted by intent, and repeated when there are too few."""
    texts = [message.text for message in read_messages()]
    random.Random(0).shuffle(texts)
    return [texts[index % len(texts)] for index in range(count)]
