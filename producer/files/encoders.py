"""Encoders of finished rows: results become columns, and blocks with them the bytes of a part, to be joined."""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.producer.answer_stream import Result
from penstock.producer.errors import PenstockError
from penstock.producer.files.arrow_rows import objects_of
from penstock.producer.files.row_blocks import Block, JsonLine, Object
from penstock.producer.wire.messages import BIT_DTYPES, Classification, Generation, Options

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

_Columns = dict[str, list[Any]]  # result name -> one value a row, or None


class ResultColumns:
    """The columns of one task."""

    def __init__(self, task: str, options: Options) -> None:
        """`options.top_k` of labels other than 1 adds lists of labels and scores. `options.dtype`: of vectors."""
        if task not in _VALUES:
            raise ValueError(f"No result columns are known for the task {task!r}. This is a bug.")
        self._values = _VALUES[task]
        self.of_vectors = np.dtype(BIT_DTYPES.get(options.dtype, "float32"))
        self._has_lists = options.most_labels != 1 and task == "classify"
        self.names = tuple(self.of(()))

    def of(self, results: Sequence[Result]) -> _Columns:
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


class TableEncoder(ABC):
    """Encoder of one format."""

    header = b""  # before the first row of the output

    def __init__(self, columns: Sequence[str] | None, schema: Any, results: ResultColumns) -> None:
        """`columns`, `schema`: of the input."""
        self._columns = list(columns or ())
        self._results = results

    @abstractmethod
    def encode(self, block: Block, results: Sequence[Result]) -> bytes:
        """Bytes of a block with one result a row, to be appended to those before it."""


class CsvEncoder(TableEncoder):
    """Lines of CSV. They end in CRLF: otherwise Python 3.11 leaves a lone CR unquoted."""

    def __init__(self, columns: Sequence[str] | None, schema: Any, results: ResultColumns) -> None:
        super().__init__(columns, schema, results)
        self.header = _csv_lines([[*self._columns, *[_free_name(name, self._columns) for name in results.names]]])

    def encode(self, block: Block, results: Sequence[Result]) -> bytes:
        rows = zip(_objects(block), self._results.rows(results), strict=True)
        return _csv_lines([[*[fields[name] for name in self._columns], *values] for fields, values in rows])


class JsonlEncoder(TableEncoder):
    """Lines of JSON. Those of the input keep their own text, so that no number is rounded."""

    def encode(self, block: Block, results: Sequence[Result]) -> bytes:
        lines = []
        for fields, values in zip(_objects(block), self._results.rows(results), strict=True):
            named = {_free_name(name, fields): value for name, value in zip(self._results.names, values, strict=True)}
            lines.append((_extended(fields, named) if isinstance(fields, JsonLine) else _json(fields | named)) + b"\n")
        return b"".join(lines)


class ArrowEncoder(TableEncoder):
    """Arrow's streams, one a block, which end to end are a part of a Parquet file."""

    def __init__(self, columns: Sequence[str] | None, schema: Any, results: ResultColumns) -> None:
        import pyarrow as pa

        self._of_vectors = results.of_vectors
        types = {
            "embedding": pa.list_(pa.from_numpy_dtype(results.of_vectors)),
            "score": pa.float64(),
            "scores": pa.list_(pa.float64()),
        }
        types["labels"] = pa.list_(pa.string())
        super().__init__(columns, schema, results)
        names = results.names
        self._result_types = [types.get(name, pa.string()) for name in names]
        self._input = schema or pa.schema([(name, pa.string()) for name in self._columns])
        self.vectors = len(self._input) + names.index("embedding") if "embedding" in names else None  # their column
        self.schema = self._input
        for name, kind in zip(names, self._result_types, strict=True):
            self.schema = self.schema.append(pa.field(_free_name(name, self._input.names), kind))

    def encode(self, block: Block, results: Sequence[Result]) -> bytes:
        import pyarrow as pa

        source = block.source
        if isinstance(source, Sequence):
            source = pa.RecordBatch.from_pylist(list(source), schema=self._input)
        values = [
            _vectors(column, self._of_vectors) if name == "embedding" else pa.array(column, kind)
            for (name, column), kind in zip(self._results.of(results).items(), self._result_types, strict=True)
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays([*source.columns, *values], schema=self.schema))
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded


def _extended(line: JsonLine, named: Object) -> bytes:
    """The line with the results at the end of its object."""
    return line.text[:-1] + (b", " if line else b"") + _json(named)[1:]


def _vectors(rows: Sequence[Any], dtype: "np.dtype[Any]") -> "pa.ListArray":
    """Lists of numbers, without a Python object for each."""
    import pyarrow as pa

    offsets = np.cumsum([0, *[0 if row is None else len(row) for row in rows]], dtype=np.int32)
    values = np.concatenate([np.empty(0, dtype), *[row for row in rows if row is not None]])
    return pa.ListArray.from_arrays(offsets, values, mask=pa.array([row is None for row in rows]))


def _objects(block: Block) -> Sequence[Object]:
    return block.source if isinstance(block.source, Sequence) else objects_of(block.source)


def _csv_lines(rows: Sequence[Sequence[Any]]) -> bytes:
    lines = io.StringIO(newline="")
    csv.writer(lines).writerows([[_cell(value) for value in row] for row in rows])
    return lines.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return _json(value).decode() if isinstance(value, list | dict | np.ndarray) else value


def _json(value: Any) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:  # NaN or an infinity
        text = json.dumps(_spelt_out(value), ensure_ascii=False, default=_plain)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair in the input, which needs an escape
        return json.dumps(json.loads(text)).encode()


def _spelt_out(value: Any) -> Any:
    """The value with strings in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _spelt_out(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spelt_out(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return _spelt_out(value.tolist())
    return json.dumps(value) if isinstance(value, float) and not np.isfinite(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.hex() if isinstance(value, bytes) else str(value)


def _free_name(name: str, taken: Collection[str]) -> str:
    """The name of a result's column beside columns of the input."""
    while name in taken:
        name = f"penstock_{name}"
    return name


def _classified(results: Sequence[Result]) -> _Columns:
    rows = [row if isinstance(row, Classification) else None for row in results]
    return {"label": [row and row.label for row in rows], "score": [row and row.score for row in rows]}


def _embedded(results: Sequence[Result]) -> _Columns:
    return {"embedding": [_numbers(row) if isinstance(row, np.ndarray) else None for row in results]}


def _numbers(vector: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Signs are integers, and stay so in text."""
    return vector.astype(np.float32, copy=False) if vector.dtype.kind == "f" else vector


def _generated(results: Sequence[Result]) -> _Columns:
    rows = [row if isinstance(row, Generation) else None for row in results]
    return {"generated": [row and row.text for row in rows], "finish": [row and row.finish for row in rows]}


def _reranked(results: Sequence[Result]) -> _Columns:
    return {"score": [None if isinstance(row, PenstockError) else row for row in results]}


_VALUES: dict[str, Callable[[Sequence[Result]], _Columns]] = {
    "classify": _classified,
    "embed": _embedded,
    "generate": _generated,
    "rerank": _reranked,
}
