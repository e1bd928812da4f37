"""An engine whose results show what it was given, and which fails on one token."""

import threading
from collections.abc import Sequence

import numpy as np

from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch

POISON = 66


def answer(ids: Sequence[int]) -> Float32Array:
    return np.array([len(ids), ids[0], ids[-1], sum(ids)], np.float32)


class SmallEngine:
    """Answers [length, first id, last id, sum]; fails where a sequence holds POISON, or always once it is `broken`."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.batches: list[list[list[int]]] = []  # the ids of each batch it was given, probes included
        self.broken = False
        self.may_run = threading.Event()
        self.may_run.set()

    def run(self, batch: PackedBatch) -> BatchOutput:
        assert self.may_run.wait(60)
        sequences = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
        self.batches.append([ids.tolist() for ids in sequences])
        if self.broken or POISON in batch.token_ids:
            raise ValueError("cannot compute this")
        return BatchOutput([answer(ids.tolist()) for ids in sequences], 0.001)
