"""Columns of the results of a task: their values, and their types in Arrow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.producer.answer_stream import Result
from penstock.producer.errors import PenstockError
from penstock.producer.wire.messages import BIT_DTYPES, INT8_DTYPES, Classification, Options
from penstock.producer.wire.plain_rows import plain_row

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
        self._task, self._values = task, _VALUES[task]
        dtype = options.dtype
        self._of_vectors = np.dtype(dtype if dtype in INT8_DTYPES else BIT_DTYPES.get(dtype, "float32"))
        self._has_lists = options.most_labels != 1 and task == "classify"
        self.names = tuple(self.of(()))

    def of(self, results: Sequence[Result]) -> Columns:
        """The results' columns."""
        plain = [None if isinstance(row, PenstockError) else plain_row(self._task, row) for row in results]
        columns: Columns = {
            name: [row if row is None or key is None else row.get(key) for row in plain]
            for name, key in self._values.items()
        }
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


# Task -> result name -> the key of a plain row, or None: the row itself.
_VALUES: dict[str, Mapping[str, str | None]] = {
    "classify": {"label": "label", "score": "score"},
    "embed": {"embedding": None},
    "embed_all": {name: name for name in ("embedding", "token_embeddings", "indices", "values")},
    "embed_sparse": {"indices": "indices", "values": "values"},
    "embed_tokens": {"token_embeddings": None},
    "generate": {"generated": "text", "finish": "finish"},
    "rerank": {"score": None},
}
