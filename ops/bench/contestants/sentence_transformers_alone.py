"""The alternative to the engine alone: SentenceTransformer.encode on the whole device, at its fastest batch size."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from penstock.engine.types import Float32Array

DEFAULT_BATCH = 32
BATCHES = (32, 64, 128, 256)
_TRIES = 3  # of a batch size: the first is its warm-up


class SentenceTransformersAlone:
    """The model in one dtype. sentence-transformers sorts the texts of a call by length and pads each batch."""

    def __init__(self, model: Path, dtype: str, device: str = "cpu", cores: int | None = None) -> None:
        """`cores`: threads of torch on a CPU; None: torch's default."""
        self._model: Any = SentenceTransformer(str(model), device=device).to(getattr(torch, dtype))
        self._cores = cores

    @property
    def max_tokens(self) -> int:
        """A longer text is cut."""
        return int(self._model.max_seq_length)

    def embed(self, texts: Sequence[str], batch_size: int) -> tuple[Float32Array, float]:
        """Vectors [n, dim] in the order of the texts, and seconds."""
        if self._cores is not None:
            torch.set_num_threads(self._cores)
        started = time.perf_counter()
        vectors = self._model.encode(list(texts), batch_size=batch_size, show_progress_bar=False)
        return np.asarray(vectors, np.float32), time.perf_counter() - started

    def tried(self, texts: Sequence[str], batches: Sequence[int]) -> dict[int, float]:
        """Texts a second at each batch size, the best of three times, the fastest size first."""
        rates = {batch: len(texts) / min(self.embed(texts, batch)[1] for _ in range(_TRIES)) for batch in batches}
        return dict(sorted(rates.items(), key=lambda one: -one[1]))
