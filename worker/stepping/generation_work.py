"""The work of a job that generates."""

from typing import NamedTuple

from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import Int32Array


class GenerationWork(NamedTuple):
    """One sequence to generate for."""

    token_ids: Int32Array  # within the vocabulary and the model's maximum
    options: GenerationOptions  # that the model allows
    seed: int  # of sampling
    stream: bool = False  # whether results so far are wanted
