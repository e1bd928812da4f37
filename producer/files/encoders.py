"""Encoders of finished rows: results become columns, and blocks with them the bytes of a part, to be joined."""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from penstock.producer.answer_stream import Result
from penstock.producer.files.arrow_rows import objects_of
from penstock.producer.files.result_columns import NUMBERS, ResultColumns
from penstock.producer.files.row_blocks import Block, JsonLine, Object


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
            lines.append(
                (_extended(fields, named) if isinstance(fields, JsonLine) else json_bytes(fields | named)) + b"\n"
            )
        return b"".join(lines)


class ArrowEncoder(TableEncoder):
    """Arrow's streams, one a block, which end to end are a part of a Parquet file."""

    def __init__(self, columns: Sequence[str] | None, schema: Any, results: ResultColumns) -> None:
        import pyarrow as pa

        super().__init__(columns, schema, results)
        types = results.arrow_types()
        self._input = schema or pa.schema([(name, pa.string()) for name in self._columns])
        named = {name: _free_name(name, self._input.names) for name in types}
        self.vectors = named.get("embedding")  # the column of vectors of one length
        self.numbers = [named[name] for name in types if name in NUMBERS]
        self.schema = self._input
        for name, kind in types.items():
            self.schema = self.schema.append(pa.field(named[name], kind))

    def encode(self, block: Block, results: Sequence[Result]) -> bytes:
        import pyarrow as pa

        source = block.source
        if isinstance(source, Sequence):
            source = pa.RecordBatch.from_pylist(list(source), schema=self._input)
        values = self._results.arrow(results)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays([*source.columns, *values], schema=self.schema))
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded


def _extended(line: JsonLine, named: Object) -> bytes:
    """The line with the results at the end of its object."""
    return line.text[:-1] + (b", " if line else b"") + json_bytes(named)[1:]


def _objects(block: Block) -> Sequence[Object]:
    return block.source if isinstance(block.source, Sequence) else objects_of(block.source)


def _csv_lines(rows: Sequence[Sequence[Any]]) -> bytes:
    lines = io.StringIO(newline="")
    csv.writer(lines).writerows([[_cell(value) for value in row] for row in rows])
    return lines.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.generic):
        return value.item()
    return json_bytes(value).decode() if isinstance(value, list | dict | np.ndarray) else value


def json_bytes(value: Any) -> bytes:
    """A value in JSON: arrays as lists, bytes in hexadecimal, and what JSON has no word for as a string."""
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
    if isinstance(value, np.ndarray | np.generic):
        return _spelt_out(value.tolist())
    return json.dumps(value) if isinstance(value, float) and not np.isfinite(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value.hex() if isinstance(value, bytes) else str(value)


def _free_name(name: str, taken: Collection[str]) -> str:
    """The name of a result's column beside columns of the input."""
    while name in taken:
        name = f"penstock_{name}"
    return name
