"""Types of a served model's readers: of the options of `generate`, and of the fields of a sequence of cells."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.engine.generation_options import GenerationOptions
from penstock.worker.requests.sequence_work import SequenceWork

ReadFields = Callable[[Mapping[str, Any]], SequenceWork]  # raises InvalidRequest
ReadOptions = Callable[[Mapping[str, Any]], GenerationOptions]  # raises InvalidOption, which names the option
