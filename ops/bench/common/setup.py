"""What every part of a benchmark is given."""

import random
from dataclasses import dataclass
from pathlib import Path

from penstock.ops.demo.banking77 import read_messages

ROUNDS = 3  # of everything that is compared; the median counts


@dataclass(frozen=True, slots=True)
class Setup:
    """Model, data and size of one run."""

    model: Path  # checkpoint directory of all-MiniLM-L6-v2
    logs: Path  # of the processes that are started
    cores: int
    scale: float  # of the number of requests and of the duration; below 1 the figures are for trying out only

    def count(self, full: int) -> int:
        """`full`, scaled; never below 64, so that percentiles and batches exist."""
        return max(64, int(full * self.scale))


def shuffled_texts(count: int) -> list[str]:
    """Banking77's test texts, shuffled (the file is sorted by intent), from the start again when they run out."""
    texts = [message.text for message in read_messages()]
    random.Random(0).shuffle(texts)
    return [texts[index % len(texts)] for index in range(count)]
