"""Writer of tables: the input's rows with their results, complete or not at all."""

import csv
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from penstock.producer.errors import PenstockError
from penstock.producer.files.arrow_rows import objects_of
from penstock.producer.files.table_reader import Block, Object, Reader, TableError, by_extension
from penstock.producer.wire.messages import Classification, Row

_ROW_GROUP_ROWS = 65_536
_ROW_GROUP_BYTES = 64 << 20

Result = Row | PenstockError
Columns = dict[str, list[Any]]  # result name -> one value a row, or None


@dataclass(frozen=True, slots=True)
class Writer:
    """An output table, made by `open_writer`. The file appears when its context ends without an error."""

    path: Path
    partial: Path  # that `sink` writes
    sink: "_Sink"
    task: str
    top_k: int
    overwrite: bool

    def write(self, block: Block, results: Sequence[Result]) -> None:
        """Append the block's rows with one result each. Called in the order of the file.

        Raises:
            TableError: the file cannot be written.
        """
        if len(results) != len(block.texts):
            raise ValueError(f"{len(results)} results for {len(block.texts)} rows. This is a bug.")
        try:
            self.sink.write(block, _result_columns(self.task, self.top_k, results))
        except OSError as error:
            raise TableError(f"{self.path} cannot be written: {error.strerror or error}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.sink.close()
            if error is None:
                _refuse_existing(self.path, self.overwrite)
                os.replace(self.partial, self.path)
        except OSError as problem:
            raise TableError(f"{self.path} cannot be written: {problem.strerror or problem}.") from problem
        finally:
            self.partial.unlink(missing_ok=True)


def open_writer(path: str | Path, reader: Reader, task: str, *, top_k: int = 1, overwrite: bool = False) -> Writer:
    """Create the output of a job that reads from `reader`.

    Args:
        task: "embed" or "classify", which decides the result columns.
        top_k: labels requested; other than 1, lists of labels and scores are written too.

    Raises:
        TableError: the file exists and `overwrite` is off, its format is unknown, or it cannot be created.
    """
    path = Path(path)
    make_sink = by_extension(path, _SINKS)
    if reader.columns is None and make_sink is not _JsonlSink:
        raise TableError(f"{path}: lines of JSON have no common columns; write a .jsonl file.")
    _refuse_existing(path, overwrite)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    names = {name: _free_name(name, reader.columns or ()) for name in _result_columns(task, top_k, ())}
    try:
        return Writer(path, partial, make_sink(partial, reader, names), task, top_k, overwrite)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise TableError(f"{path} cannot be written: {error.strerror or error}.") from error


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise TableError(f"{path} exists already. Choose another name, or overwrite it.")


def _free_name(name: str, taken: Sequence[str] | Object) -> str:
    while name in taken:
        name = f"penstock_{name}"
    return name


def _result_columns(task: str, top_k: int, results: Sequence[Result]) -> Columns:
    errors = [f"{row.code}: {row.message}" if isinstance(row, PenstockError) else None for row in results]
    if task == "embed":
        vectors = [row.astype(np.float32) if isinstance(row, np.ndarray) else None for row in results]
        return {"embedding": vectors, "error": errors}
    if task != "classify":
        raise ValueError(f"No result columns are known for the task {task!r}. This is a bug.")
    rows = [row if isinstance(row, Classification) else None for row in results]
    best: Columns = {"label": [row and row.label for row in rows], "score": [row and row.score for row in rows]}
    if top_k != 1:
        best["labels"] = [row and list(row.labels) for row in rows]
        best["scores"] = [row and list(row.scores) for row in rows]
    return best | {"error": errors}


class _Sink(Protocol):
    """Writer of one format, made with (partial file, reader, result name -> column name). Raises OSError."""

    def write(self, block: Block, results: Columns) -> None: ...
    def close(self) -> None: ...


class _CsvSink:
    def __init__(self, partial: Path, reader: Reader, names: Mapping[str, str]) -> None:
        self._columns = list(reader.columns or ())
        self._file = partial.open("x", encoding="utf-8", newline="")
        self._csv = csv.writer(self._file)  # with CRLF: otherwise Python 3.11 leaves a lone CR unquoted
        self._csv.writerow([*self._columns, *names.values()])

    def write(self, block: Block, results: Columns) -> None:
        for fields, values in zip(_objects(block), zip(*results.values(), strict=True), strict=True):
            self._csv.writerow([_cell(value) for value in (*[fields[name] for name in self._columns], *values)])

    def close(self) -> None:
        self._file.close()


class _JsonlSink:
    def __init__(self, partial: Path, reader: Reader, names: Mapping[str, str]) -> None:
        self._file = partial.open("xb")

    def write(self, block: Block, results: Columns) -> None:
        for fields, values in zip(_objects(block), zip(*results.values(), strict=True), strict=True):
            named = {_free_name(name, fields): value for name, value in zip(results, values, strict=True)}
            self._file.write(_json(fields | named) + b"\n")

    def close(self) -> None:
        self._file.close()


class _ParquetSink:
    """Collects blocks into row groups of a size that suits readers of Parquet."""

    def __init__(self, partial: Path, reader: Reader, names: Mapping[str, str]) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        types = {"embedding": pa.list_(pa.float32()), "score": pa.float64(), "scores": pa.list_(pa.float64())}
        types["labels"] = pa.list_(pa.string())
        self._result_types = [types.get(name, pa.string()) for name in names]
        self._input = reader.schema or pa.schema([(name, pa.string()) for name in reader.columns or ()])
        self._schema = self._input
        for column, kind in zip(names.values(), self._result_types, strict=True):
            self._schema = self._schema.append(pa.field(column, kind))
        self._collected: list[pa.RecordBatch] = []
        self._writer = ParquetWriter(partial, self._schema)

    def write(self, block: Block, results: Columns) -> None:
        import pyarrow as pa

        source = block.source
        if not isinstance(source, pa.RecordBatch):
            source = pa.RecordBatch.from_pylist(list(source), schema=self._input)
        values = [pa.array(column, kind) for column, kind in zip(results.values(), self._result_types, strict=True)]
        self._collected.append(pa.RecordBatch.from_arrays([*source.columns, *values], schema=self._schema))
        rows = sum(batch.num_rows for batch in self._collected)
        if rows >= _ROW_GROUP_ROWS or sum(batch.nbytes for batch in self._collected) >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        collected, self._collected = self._collected, []
        self._writer.write_table(pa.Table.from_batches(collected, self._schema))

    def close(self) -> None:
        try:
            if self._collected:
                self._flush()
        finally:
            self._writer.close()


_SINKS = {".csv": _CsvSink, ".jsonl": _JsonlSink, ".parquet": _ParquetSink}


def _objects(block: Block) -> Sequence[Object]:
    return block.source if isinstance(block.source, Sequence) else objects_of(block.source)


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
