"""Counts of a bulk job: of its rows, over all of its runs, and of the replies of this one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import PlainSerializer

from penstock.producer.answer_stream import Result
from penstock.producer.errors import PenstockError
from penstock.producer.files.row_blocks import Block
from penstock.producer.row_inputs import lengths
from penstock.producer.wire.messages import Classification, Reply
from penstock.producer.wire.vector_tables import TextVectors

# In JSON, in falling order of the counts, or in the order of the keys.
_Falling = Annotated[Counter[str], PlainSerializer(lambda counts: dict(counts.most_common()))]
_Rising = Annotated[Counter[int], PlainSerializer(lambda counts: dict(sorted(counts.items())))]


@dataclass(slots=True)
class JobReport:
    """Counts of the rows that were written. Its size depends on the labels of the model, not on the rows.

    pydantic reads and writes it, in the manifest and as `--report`.
    """

    rows: int = 0
    failed: int = 0
    errors: _Falling = field(default_factory=Counter)  # by code
    labels: _Falling = field(default_factory=Counter)  # best label
    lengths: _Rising = field(default_factory=Counter)  # texts of at most so many characters, a power of two
    vector_lengths: Annotated[set[int], PlainSerializer(sorted)] = field(default_factory=set)

    def add(self, block: Block, results: Sequence[Result]) -> None:
        """Count the rows of a block."""
        self.add_lengths(block)
        self.rows += len(results)
        for result in results:
            if isinstance(result, PenstockError):
                self.failed += 1
                self.errors[result.code] += 1
            elif isinstance(result, Classification):
                self.labels[result.label] += 1
            vector = result.vector if isinstance(result, TextVectors) else result
            if isinstance(vector, np.ndarray) and vector.ndim == 1:
                self.vector_lengths.add(len(vector))

    def add_lengths(self, block: Block) -> None:
        """Count the lengths of a block's texts alone."""
        for text in block.texts:
            for num_chars in () if isinstance(text, PenstockError) else lengths(text):
                self.lengths[1 << (max(num_chars, 1) - 1).bit_length()] += 1


class ReplyTally:
    """Rows and tokens of the replies that a client has received."""

    def __init__(self) -> None:
        self.rows = 0
        self.cached = 0.0  # rows that came from the workers' cache; of a row with labels the part of its labels
        self.tokens = 0  # of the rows; of those from the cache as well

    def add(self, reply: Reply, num_rows: int, *, sequences_per_row: int = 1) -> None:
        """Count a reply, which counts sequences as cached."""
        self.rows += num_rows
        self.cached += reply.cached / sequences_per_row
        self.tokens += reply.request_tokens
