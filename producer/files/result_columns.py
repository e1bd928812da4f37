"""Columns that results become, by task."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.producer.answer_stream import Result
from penstock.producer.errors import PenstockError
from penstock.producer.wire.messages import Classification, Generation, Options

Columns = dict[str, list[Any]]  # result name -> one value a row, or None


class ResultColumns:
    """The columns of one task."""

    def __init__(self, task: str, options: Options) -> None:
        """`options.top_k` other than 1 adds lists of labels and scores."""
        if task not in _VALUES:
            raise ValueError(f"No result columns are known for the task {task!r}. This is a bug.")
        self._values = _VALUES[task]
        self._has_lists = options.top_k != 1 and task == "classify"
        self.names = tuple(self.of(()))

    def of(self, results: Sequence[Result]) -> Columns:
        """The results' columns."""
        columns = self._values(results)
        if self._has_lists:
            rows = [row if isinstance(row, Classification) else None for row in results]
            columns["labels"] = [row and list(row.labels) for row in rows]
            columns["scores"] = [row and list(row.scores) for row in rows]
        columns["error"] = [f"{row.code}: {row.message}" if isinstance(row, PenstockError) else None for row in results]
        return columns

    def rows(self, results: Sequence[Result]) -> Iterator[tuple[Any, ...]]:
        """The same by rows."""
        return zip(*self.of(results).values(), strict=True)


def free_name(name: str, taken: Collection[str]) -> str:
    """The name of a result's column beside columns of the input."""
    while name in taken:
        name = f"penstock_{name}"
    return name


def _classified(results: Sequence[Result]) -> Columns:
    rows = [row if isinstance(row, Classification) else None for row in results]
    return {"label": [row and row.label for row in rows], "score": [row and row.score for row in rows]}


def _embedded(results: Sequence[Result]) -> Columns:
    return {
        "embedding": [row.astype(np.float32, copy=False) if isinstance(row, np.ndarray) else None for row in results]
    }


def _generated(results: Sequence[Result]) -> Columns:
    rows = [row if isinstance(row, Generation) else None for row in results]
    return {"generated": [row and row.text for row in rows], "finish": [row and row.finish for row in rows]}


def _reranked(results: Sequence[Result]) -> Columns:
    return {"score": [None if isinstance(row, PenstockError) else row for row in results]}


_VALUES: dict[str, Callable[[Sequence[Result]], Columns]] = {
    "classify": _classified,
    "embed": _embedded,
    "generate": _generated,
    "rerank": _reranked,
}
