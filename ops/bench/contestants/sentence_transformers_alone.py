"""The alternative to the engine alone: SentenceTransformer.encode on the whole device, at its fastest batch size."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

_TRIES = 3  # of a batch size: the first is its warm-up


class SentenceTransformersAlone:
    """The model in one dtype. sentence-transformers sorts the texts of a call by length and pads each batch."""

    def __init__(self, model: Path, dtype: str, device: str) -> None:
        self._model: Any = SentenceTransformer(str(model), device=device).to(getattr(torch, dtype))

    @property
    def max_tokens(self) -> int:
        """A longer text is cut."""
        return int(self._model.max_seq_length)

    def seconds(self, texts: Sequence[str], batch_size: int) -> float:
        """Of one call with all texts."""
        started = time.perf_counter()
        self._model.encode(list(texts), batch_size=batch_size, show_progress_bar=False)
        return time.perf_counter() - started

    def tried(self, texts: Sequence[str], batches: Sequence[int]) -> dict[int, float]:
        """Texts a second at each batch size, the best of three times, the fastest size first."""
        rates = {batch: len(texts) / min(self.seconds(texts, batch) for _ in range(_TRIES)) for batch in batches}
        return dict(sorted(rates.items(), key=lambda one: -one[1]))
