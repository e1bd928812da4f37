"""The alternative to the engine alone: sentence-transformers on all cores, at its fastest batch size."""

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


class SentenceTransformersAlone:
    """The model in one dtype. sentence-transformers sorts the texts of a call by length and pads each batch."""

    def __init__(self, model: Path, dtype: str, cores: int) -> None:
        self._model: Any = SentenceTransformer(str(model), device="cpu").to(getattr(torch, dtype))
        self._cores = cores

    def embed(self, texts: Sequence[str], batch_size: int) -> tuple[Float32Array, float]:
        """Vectors [n, dim] in the order of the texts, and seconds."""
        torch.set_num_threads(self._cores)
        started = time.perf_counter()
        vectors = self._model.encode(list(texts), batch_size=batch_size, show_progress_bar=False)
        return np.asarray(vectors, np.float32), time.perf_counter() - started
