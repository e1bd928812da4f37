"""Readers of requests that a served model needs beside validation: options of `generate`, or graphs of cells."""

from typing import NamedTuple

from penstock.engine.types import ModelInfo
from penstock.worker.requests.generation import GenerationRequests
from penstock.worker.requests.readers import ReadFields, ReadOptions
from penstock.worker.requests.sequences import SequenceRequests


class StepRequests(NamedTuple):
    """One of the two, or none for an encoder."""

    generation: GenerationRequests | None
    cells: SequenceRequests | None


def step_requests(
    info: ModelInfo, read_options: ReadOptions | None, read_fields: ReadFields | None, max_reply_bytes: int
) -> StepRequests:
    """Called once, when the worker is made. The readers are those of its model."""
    return StepRequests(
        None if read_options is None else GenerationRequests(info, read_options),
        None if read_fields is None else SequenceRequests(info, read_fields, max_reply_bytes),
    )
