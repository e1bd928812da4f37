"""The engine without Kafka, from texts to vectors, with the default batches and lanes of a worker."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import uvloop

from penstock.engine import EngineLanes, PackedBatch, TaskOptions, load_engine
from penstock.engine.types import Float32Array
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.worker.resolved_settings import ResolvedSettings, resolve
from penstock.worker.settings import WorkerSettings

_POLL_TEXTS = 512  # tokenized at once, as the records of a fetch: the lanes start while the rest is tokenized
_OPTIONS = TaskOptions("embed")


class EngineAlone:
    """One engine with its tokenizer. A context manager."""

    def __init__(self, model: Path, dtype: str) -> None:
        self.engine = load_engine(str(model), dtype=dtype, device="cpu")
        given = WorkerSettings.model_validate({"model": str(model), "dtype": dtype, "device": "cpu"})
        self.settings = resolve(given, self.engine.info)
        self.lanes = self.settings.lanes
        self._tokenizer = Tokenizer.from_directory(model)

    def close(self) -> None:
        self._tokenizer.close()

    def embed(self, texts: Sequence[str]) -> tuple[Float32Array, float]:
        """Vectors [n, dim] in the order of the texts, and the seconds from the first text to the last vector."""
        return uvloop.run(self._embed(texts))

    def tokenize_s(self, texts: Sequence[str]) -> float:
        """Seconds of tokenization alone."""
        started = time.perf_counter()
        self._tokenizer.encode(texts, truncate=False)
        return time.perf_counter() - started

    def batch_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each batch that `embed` runs."""
        encoded = self._tokenizer.encode(texts, truncate=False)
        return [sum([len(sequence.ids) for sequence in batch]) for batch in fifo_batches(encoded, self.settings)]

    async def _embed(self, texts: Sequence[str]) -> tuple[Float32Array, float]:
        lanes = EngineLanes(self.engine, self.lanes)
        try:
            started = time.perf_counter()
            futures = []
            underfull: list[Encoded] = []
            for start in range(0, len(texts), _POLL_TEXTS):
                encoded = await self._tokenizer.encode_async(texts[start : start + _POLL_TEXTS], truncate=False)
                *full, underfull = fifo_batches(underfull + encoded, self.settings)
                futures += [lanes.submit(pack(batch)) for batch in full]
            futures.append(lanes.submit(pack(underfull)))
            rows = [row for future in futures for row in (await future).rows]
            return np.stack(rows), time.perf_counter() - started
        finally:
            await lanes.close()


def fifo_batches(encoded: Sequence[Encoded], settings: ResolvedSettings) -> list[list[Encoded]]:
    """Batches in order of arrival, each but the last as large as the caps of the settings allow."""
    batches: list[list[Encoded]] = []
    tokens = 0
    for sequence in encoded:
        tokens += len(sequence.ids)
        if not batches or tokens > settings.max_batch_tokens or len(batches[-1]) == settings.max_batch_sequences:
            batches.append([])
            tokens = len(sequence.ids)
        batches[-1].append(sequence)
    return batches


def pack(sequences: Sequence[Encoded]) -> PackedBatch:
    """A packed batch of tokenized texts."""
    return PackedBatch.of([sequence.ids for sequence in sequences], [_OPTIONS] * len(sequences))
