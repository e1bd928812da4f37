"""An engine that computes nothing, to measure the rest of a pipeline."""

import numpy as np

from penstock.engine.types import BatchOutput, ModelInfo, PackedBatch


class NullEngine:
    """Implements `Engine`: a zero vector for each sequence."""

    def __init__(self, dim: int = 384, *, name: str = "null", vocab_size: int = 30_522, max_tokens: int = 512) -> None:
        tasks = frozenset({"embed"})
        self._info = ModelInfo(name, f"null-{dim}", "float32", "cpu", vocab_size, max_tokens, tasks, dim, labels=())

    @property
    def info(self) -> ModelInfo:
        return self._info

    def run(self, batch: PackedBatch) -> BatchOutput:
        rows = np.zeros((len(batch.options), self._info.dim), dtype=np.float32)
        return BatchOutput(rows=list(rows), device_s=0.0)
