"""The work of a job that generates, and its result as the bits of a flat row, which a cache and a batch hold."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import Float32Array, Int32Array
from penstock.producer.wire.messages import FINISHES, Generation


class GenerationWork(NamedTuple):
    """One sequence to generate for."""

    token_ids: Int32Array  # within the vocabulary and the model's maximum
    options: GenerationOptions  # that the model allows
    seed: int  # of sampling
    stream: bool = False  # whether results so far are wanted


def generation_row(tokens: Sequence[int], finish: str) -> Float32Array:
    """int32 values: the index of the finish in FINISHES, then the tokens."""
    return np.array([FINISHES.index(finish), *tokens], np.int32).view(np.float32)


def read_generation_row(row: Float32Array) -> Generation:
    """Inverse of `generation_row`, without a text."""
    finish, *tokens = row.view(np.int32).tolist()
    return Generation(tuple(tokens), FINISHES[finish])
