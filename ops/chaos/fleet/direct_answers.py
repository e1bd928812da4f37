"""The answers of an engine that no broker and no worker has touched."""

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.engine import PackedBatch, TaskOptions
from penstock.engine.types import Engine, Float32Array
from penstock.ops.chaos.load.asked import Ids

_BATCH = 256


def direct(engine: Engine, sequences: Sequence[Ids]) -> Mapping[Ids, Float32Array]:
    """The engine's answers without Kafka."""
    rows: dict[Ids, Float32Array] = {}
    by_length = sorted(sequences, key=len)
    for start in range(0, len(by_length), _BATCH):
        chosen = by_length[start : start + _BATCH]
        arrays = [np.frombuffer(one, "<u4") for one in chosen]
        output = engine.run(PackedBatch.of(arrays, [TaskOptions("embed")] * len(chosen)))
        rows |= dict(zip(chosen, output.rows, strict=True))
    return rows
