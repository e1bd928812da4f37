"""An engine that computes nothing, to measure the rest of a pipeline."""

import numpy as np

from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch
from penstock.engine.vector_rows import join_vectors

_TOKEN_DIM = 2
_TASKS = frozenset({"embed", "embed_sparse", "embed_tokens", "embed_all"})
_EMPTY = np.empty(0, np.float32)


class NullEngine:
    """Implements `Engine`: zeros for each sequence, or for each of its tokens; a sparse vector without ids."""

    def __init__(self, dim: int = 384, *, name: str = "null", vocab_size: int = 30_522, max_tokens: int = 512) -> None:
        dtype, device = "float32", "cpu"
        self._info = ModelInfo(
            name, f"null-{dim}", dtype, device, vocab_size, max_tokens, _TASKS, dim, labels=(), token_dim=_TOKEN_DIM
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    def run(self, batch: PackedBatch) -> BatchOutput:
        rows = list(np.zeros((len(batch.options), self._info.dim), dtype=np.float32))
        for place, options in enumerate(batch.options):
            if options.task != "embed":
                num_tokens = int(batch.cu_seqlens[place + 1] - batch.cu_seqlens[place])
                rows[place] = _row(options.task, rows[place], np.zeros((num_tokens, _TOKEN_DIM), np.float32))
        return BatchOutput(rows=rows, device_s=0.0)


def _row(task: str, vector: Float32Array, tokens: Float32Array) -> Float32Array:
    if task == "embed_sparse":
        return _EMPTY
    return tokens if task == "embed_tokens" else join_vectors(vector, tokens, _EMPTY)
