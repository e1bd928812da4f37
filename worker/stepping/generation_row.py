"""The result of one generated sequence as the bits of a flat array, which a cache and a batch's results hold."""

from collections.abc import Sequence

import numpy as np

from penstock.engine.types import Float32Array
from penstock.producer.wire.messages import FINISHES, Generation


def generation_row(tokens: Sequence[int], finish: str) -> Float32Array:
    """int32 values: the index of the finish in FINISHES, then the tokens."""
    return np.array([FINISHES.index(finish), *tokens], np.int32).view(np.float32)


def read_generation_row(row: Float32Array) -> Generation:
    """Inverse of `generation_row`, without a text."""
    finish, *tokens = row.view(np.int32).tolist()
    return Generation(tuple(tokens), FINISHES[finish])
