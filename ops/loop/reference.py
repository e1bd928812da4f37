"""The vectors that sentence-transformers computes from a checkpoint: what those in the target are compared with."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.engine.types import Float32Array


class Reference:
    """One checkpoint, loaded. Its calls block."""

    def __init__(self, model: Path) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(model), device="cpu")

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        return int(self.encode(["a text"]).shape[1])

    def encode(self, texts: Sequence[str]) -> Float32Array:
        """One vector a text."""
        return np.asarray(self._model.encode([*texts], batch_size=64, show_progress_bar=False), np.float32)
