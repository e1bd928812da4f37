"""Texts with labels of their own, in float32: the engine alone beside transformers' zero-shot pipeline, in turn."""

from penstock.ops.bench.common.setup import Details, Setup
from penstock.ops.bench.common.shapes import SHAPES
from penstock.ops.bench.contestants.labels import labels_beside_the_pipeline

_NUM_TEXTS = {"MiniLM-L6": 128, "DeBERTa-v3-base": 16}  # of each shape, about as long


def run(setup: Setup, shape: str) -> Details:
    """Parts `labels-minilm` and `labels-deberta`."""
    num_texts = setup.count(_NUM_TEXTS[shape], least=4)
    return labels_beside_the_pipeline(SHAPES[shape](), num_texts, setup.logs / shape, "float32", cores=setup.cores)
