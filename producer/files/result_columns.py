"""Columns of the results of a task: their values, and their types in Arrow."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.producer.answer_stream import Result
from penstock.producer.errors import PenstockError
from penstock.producer.wire.messages import BIT_DTYPES, INT8_DTYPES, Classification, Generation, Options
from penstock.producer.wire.vector_tables import SparseVector, TextVectors

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

Columns = dict[str, list[Any]]  # result name -> one value a row, or None
NUMBERS = frozenset({"embedding", "token_embeddings", "values"})  # columns of numbers that hardly repeat


class ResultColumns:
    """The columns of one task."""

    def __init__(self, task: str, options: Options) -> None:
        """`options.top_k` of labels other than 1 adds lists of labels and scores. `options.dtype`: of vectors."""
        if task not in _VALUES:
            raise ValueError(f"No result columns are known for the task {task!r}. This is a bug.")
        self._values = _VALUES[task]
        dtype = options.dtype
        self._of_vectors = np.dtype(dtype if dtype in INT8_DTYPES else BIT_DTYPES.get(dtype, "float32"))
        self._has_lists = options.most_labels != 1 and task == "classify"
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

    def arrow_types(self) -> "dict[str, pa.DataType]":
        """The type of each column in Arrow."""
        import pyarrow as pa

        types = {
            "embedding": pa.list_(pa.from_numpy_dtype(self._of_vectors)),
            "token_embeddings": pa.list_(pa.list_(pa.float32())),
            "indices": pa.list_(pa.uint32()),
            "values": pa.list_(pa.float32()),
            "score": pa.float64(),
            "scores": pa.list_(pa.float64()),
            "labels": pa.list_(pa.string()),
        }
        return {name: types.get(name, pa.string()) for name in self.names}

    def arrow(self, results: Sequence[Result]) -> "list[pa.Array]":
        """`of` as arrays of `arrow_types`."""
        import pyarrow as pa

        types = self.arrow_types()
        columns = self.of(results).items()
        return [
            _lists(rows, types[name]) if name in NUMBERS | {"indices"} else pa.array(rows, types[name])
            for name, rows in columns
        ]


def _lists(rows: Sequence[Any], kind: "pa.ListType") -> "pa.ListArray":
    """Lists of numbers, or of such lists of one length, without a Python object for each number."""
    import pyarrow as pa

    present = [row for row in rows if row is not None]
    offsets = pa.array(np.cumsum([0, *[0 if row is None else len(row) for row in rows]]), pa.int32())
    values: Any = np.concatenate(present) if present else np.empty(0)
    if pa.types.is_list(kind.value_type):
        starts = pa.array(np.arange(len(values) + 1) * (values.shape[1] if present else 0), pa.int32())
        numbers = pa.array(values.ravel(), kind.value_type.value_type)
        inner = pa.ListArray.from_arrays(starts, numbers)
    else:
        inner = pa.array(values, kind.value_type)
    return pa.ListArray.from_arrays(offsets, inner, mask=pa.array([row is None for row in rows]))


def _classified(results: Sequence[Result]) -> Columns:
    rows = [row if isinstance(row, Classification) else None for row in results]
    return {"label": [row and row.label for row in rows], "score": [row and row.score for row in rows]}


def _embedded(results: Sequence[Any]) -> Columns:
    return {"embedding": [_numbers(row) if isinstance(row, np.ndarray) else None for row in results]}


def _embedded_sparse(results: Sequence[Any]) -> Columns:
    rows = [row if isinstance(row, SparseVector) else None for row in results]
    return {
        "indices": [None if row is None else row.ids for row in rows],
        "values": [None if row is None else _numbers(row.weights) for row in rows],
    }


def _embedded_tokens(results: Sequence[Any]) -> Columns:
    return {"token_embeddings": _embedded(results)["embedding"]}


def _embedded_all(results: Sequence[Result]) -> Columns:
    rows = [row if isinstance(row, TextVectors) else None for row in results]
    return {
        **_embedded([row and row.vector for row in rows]),
        **_embedded_tokens([row and row.tokens for row in rows]),
        **_embedded_sparse([row and row.sparse for row in rows]),
    }


def _numbers(vector: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Signs are integers, and stay so in text."""
    return vector.astype(np.float32, copy=False) if vector.dtype.kind == "f" else vector


def _generated(results: Sequence[Result]) -> Columns:
    rows = [row if isinstance(row, Generation) else None for row in results]
    return {"generated": [row and row.text for row in rows], "finish": [row and row.finish for row in rows]}


def _reranked(results: Sequence[Result]) -> Columns:
    return {"score": [None if isinstance(row, PenstockError) else row for row in results]}


_VALUES: dict[str, Callable[[Sequence[Any]], Columns]] = {
    "classify": _classified,
    "embed": _embedded,
    "embed_all": _embedded_all,
    "embed_sparse": _embedded_sparse,
    "embed_tokens": _embedded_tokens,
    "generate": _generated,
    "rerank": _reranked,
}
