"""The alternative to labels of requests: transformers' zero-shot-classification, at its fastest batch size."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from penstock.engine.types import Float32Array

_TRIES = 2  # of a batch size: the first is its warm-up


class ZeroShotPipeline:
    """The pipeline in one dtype. It pads the pairs of a batch, in the order of the texts."""

    def __init__(self, model: Path, dtype: str, device: str = "cpu", cores: int | None = None) -> None:
        """`cores`: threads of torch on a CPU; None: torch's default."""
        auto: Any = transformers.AutoModelForSequenceClassification  # transformers leaves these untyped
        make: Any = transformers.pipeline
        tokenizer: Any = transformers.AutoTokenizer
        self._pipeline = make(
            "zero-shot-classification",
            model=auto.from_pretrained(model, dtype=getattr(torch, dtype)).eval(),
            tokenizer=tokenizer.from_pretrained(model),
            device=device,
        )
        self._cores = cores

    def classify(self, texts: Sequence[str], labels: Sequence[str], batch_size: int) -> tuple[Float32Array, float]:
        """Scores [texts, labels], of which one label holds, and seconds. `batch_size`: in pairs."""
        if self._cores is not None:
            torch.set_num_threads(self._cores)
        started = time.perf_counter()
        answers = self._pipeline(list(texts), list(labels), batch_size=batch_size)
        seconds = time.perf_counter() - started
        scores = [dict(zip(answer["labels"], answer["scores"], strict=True)) for answer in answers]
        return np.array([[one[label] for label in labels] for one in scores], np.float32), seconds

    def tried(self, texts: Sequence[str], labels: Sequence[str], batches: Sequence[int]) -> dict[int, float]:
        """Texts a second at each batch size, the better of two times, the fastest size first."""
        rates = {
            batch: len(texts) / min(self.classify(texts, labels, batch)[1] for _ in range(_TRIES)) for batch in batches
        }
        return dict(sorted(rates.items(), key=lambda one: -one[1]))
