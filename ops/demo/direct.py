"""Run texts on the engine without Kafka, in batches. Used to train the head and to check it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from penstock.engine.types import Engine, Float32Array, PackedBatch, TaskOptions

_BATCH_SEQUENCES = 64


def run_directly(engine: Engine, directory: Path, task: str, texts: Sequence[str]) -> Float32Array:
    """Run texts. Returns [n, dim] for "embed", [n, labels] for "classify". `directory` holds the tokenizer.json."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(engine.info.max_tokens)
    rows: list[Float32Array] = []
    for start in range(0, len(texts), _BATCH_SEQUENCES):
        encoded = tokenizer.encode_batch(list(texts[start : start + _BATCH_SEQUENCES]))
        ids = [np.array(encoding.ids, np.int32) for encoding in encoded]
        rows += engine.run(PackedBatch.of(ids, [TaskOptions(task)] * len(ids))).rows
    return np.stack(rows)
