"""Counts of a bulk job: of its rows, over all of its runs, and of the replies of this one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from penstock.producer.answer_stream import Result, num_chars
from penstock.producer.errors import PenstockError
from penstock.producer.files.row_blocks import Block
from penstock.producer.wire.messages import REQUEST_TOKENS, Classification, Reply


@dataclass(slots=True)
class JobReport:
    """Counts of the rows that were written. Its size depends on the labels of the model, not on the rows."""

    rows: int = 0
    failed: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # by code
    labels: Counter[str] = field(default_factory=Counter)  # best label
    lengths: Counter[int] = field(default_factory=Counter)  # texts of at most so many characters, a power of two
    vector_lengths: set[int] = field(default_factory=set)

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
            elif isinstance(result, np.ndarray):
                self.vector_lengths.add(len(result))

    def add_lengths(self, block: Block) -> None:
        """Count the lengths of a block's texts alone."""
        for text in block.texts:
            if not isinstance(text, PenstockError):
                self.lengths[1 << (max(num_chars(text), 1) - 1).bit_length()] += 1

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it; counts of labels and errors are in falling order."""
        return {
            "rows": self.rows,
            "failed": self.failed,
            "errors": dict(self.errors.most_common()),
            "labels": dict(self.labels.most_common()),
            "lengths": {str(chars): count for chars, count in sorted(self.lengths.items())},
            "vector_lengths": sorted(self.vector_lengths),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The report that `to_dict` gave. Raises KeyError, TypeError, AttributeError, ValueError or OverflowError."""
        lengths = Counter({int(chars): int(count) for chars, count in data["lengths"].items()})
        vectors = {int(length) for length in data["vector_lengths"]}
        errors, labels = ({name: int(count) for name, count in data[part].items()} for part in ("errors", "labels"))
        return cls(int(data["rows"]), int(data["failed"]), Counter(errors), Counter(labels), lengths, vectors)


class ReplyTally:
    """Rows and tokens of the replies that a client has received."""

    def __init__(self) -> None:
        self.rows = 0
        self.cached = 0  # rows that came from the workers' cache
        self.tokens = 0  # of the rows; of those from the cache as well

    def add(self, reply: Reply, num_rows: int) -> None:
        """Count a reply."""
        self.rows += num_rows
        self.cached += reply.cached
        tokens = reply.batch.get(REQUEST_TOKENS, 0)
        self.tokens += tokens if isinstance(tokens, int) else 0
