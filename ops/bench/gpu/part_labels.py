"""Texts with labels of their own, in float16: the engine beside transformers' zero-shot pipeline, in turn."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from penstock.ops.bench.common.shapes import SHAPES
from penstock.ops.bench.contestants.labels import labels_beside_the_pipeline
from penstock.ops.bench.gpu.bench import Bench

_NUM_TEXTS = 768
_BATCHES = (32, 128, 512)


def run(bench: Bench, name: str) -> dict[str, Any]:
    """One shape of `shapes.py`."""
    with torch.inference_mode(False), tempfile.TemporaryDirectory() as folder:
        return labels_beside_the_pipeline(
            SHAPES[name](), _NUM_TEXTS, Path(folder), "float16", device=bench.device.type, batches=_BATCHES
        )
