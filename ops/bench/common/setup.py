"""The bench of the suites on two cores, and their texts."""

import os
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.part_bench import PartBench
from penstock.ops.demo.banking77 import read_messages
from penstock.ops.demo.demo_model import model_directory

ROUNDS = 3  # of every comparison; its median is reported

Details = Mapping[str, Any]


class Setup(PartBench):
    """Model, data and size of one run, by the options `scale` and `before`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.model: Path = model_directory()  # checkpoint of all-MiniLM-L6-v2
        self.logs = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # of the processes that are started; stays
        self.cores = len(os.sched_getaffinity(0))
        self.before: str | None = options.get("before")  # an earlier commit, for the part that compares with it
        self._scale: float = options["scale"]
        print(f"logs in {self.logs}", flush=True)

    def count(self, full: int, least: int = 64) -> int:
        """`full`, scaled; by default at least 64, so that there are batches and percentiles."""
        return max(least, int(full * self._scale))

    def seconds(self, full: float) -> float:
        """`full`, scaled; at least one, so that a load has answers."""
        return max(1.0, full * self._scale)


def shuffled_texts(count: int) -> list[str]:
    """Banking77's test texts, shuffled because the file is sorted by intent, and repeated when there are too few."""
    texts = [message.text for message in read_messages()]
    random.Random(0).shuffle(texts)
    return [texts[index % len(texts)] for index in range(count)]
