"""Reader of Parquet."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.files.hive_partitions import Partition, added_to, with_fields, with_partition
from penstock.producer.files.object_path import ObjectPath
from penstock.producer.files.object_reader import ObjectReader
from penstock.producer.files.row_blocks import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    Block,
    Content,
    Numbers,
    TableError,
    check_columns,
    text_of,
)
from penstock.producer.files.standard_streams import name_of
from penstock.producer.wire.messages import Text

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

_BUFFER_BYTES = 1 << 20  # of each column
_BATCH_BYTES = 64 << 20  # approximate, of rows that are decoded at once


def read_parquet(path: Path, columns: Sequence[str], partition: Partition | None = None) -> Content:
    """Header and blocks of a file, with the columns of its partition behind its own."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        # `pre_buffer` would keep all of the file that was read in memory; without a buffer, a row group is read whole.
        file = ParquetFile(_source(path), pre_buffer=False, buffer_size=_BUFFER_BYTES)
        stored = _schema_without_views(file.schema_arrow)
        added = added_to(path, stored, partition or {})
        schema = with_fields(stored, added)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise TableError(f"{path} is not a Parquet file that can be read: {error}.") from error
    with file:
        check_columns(path, schema.names, columns)
        for column in columns:
            if not holds_strings(schema.field(column).type):
                raise TableError(f"{path}: column {column!r} holds {schema.field(column).type}; strings were expected.")
        yield schema.names, schema
        number = 1
        for batch in _row_batches(path, file):
            rows = with_partition(_without_views(batch, stored), added)
            numbers = Numbers(name_of(path), "row", range(number, number + rows.num_rows))
            yield Block(_texts(rows, columns, number), rows, rows.nbytes, numbers=numbers)
            number += rows.num_rows


def read_parquet_schema(path: Path) -> "pa.Schema":
    """The columns of a file. Raises TableError."""
    import pyarrow as pa
    from pyarrow.parquet import read_schema

    try:
        return _schema_without_views(read_schema(_source(path)))
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise TableError(f"{path} is not a Parquet file that can be read: {error}.") from error


def _schema_without_views(schema: "pa.Schema") -> "pa.Schema":
    """With strings in place of views of them: files of one table differ in it by the library that wrote them."""
    import pyarrow as pa

    for place, field in enumerate(schema):
        if pa.types.is_string_view(field.type):
            schema = schema.set(place, field.with_type(pa.string()))
    return schema


def _without_views(rows: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """The rows in such a schema. Bytes that are not UTF-8 stay, which a cast between strings would refuse."""
    import pyarrow as pa

    if rows.schema.equals(schema):
        return rows
    columns = [
        column.view(pa.binary_view()).cast(pa.binary()).view(pa.string())
        if pa.types.is_string_view(column.type)
        else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _source(path: Path) -> Path | ObjectReader:
    """The source that Arrow opens: it reads an object in ranges of its own choice."""
    return ObjectReader(path.store, path.key) if isinstance(path, ObjectPath) else path


def _row_batches(path: Path, file: Any) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    try:
        # A batch of several row groups, which pyarrow does not make of categories within lists or structs.
        can_join = not any(_has_inner_categories(field.type) for field in file.schema_arrow)
        groups = [(_batch_rows(file.metadata.row_group(one)), one) for one in range(file.num_row_groups)]
        for (size, _), alike in itertools.groupby(groups, lambda group: (group[0], can_join or group[1])):
            for batch in file.iter_batches(batch_size=size, row_groups=[one for _, one in alike]):
                yield from _parts(batch)
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{path} is damaged: {error}.") from error


def _parts(batch: "pa.RecordBatch") -> Iterator["pa.RecordBatch"]:
    rows = max(1, batch.num_rows * BLOCK_BYTES // max(batch.nbytes, BLOCK_BYTES))
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _batch_rows(group: Any) -> int:
    """Rows of a row group that are decoded at once, fewer where they are long."""
    return max(1, min(BLOCK_ROWS, int(group.num_rows) * _BATCH_BYTES // max(int(group.total_byte_size), 1)))


def _has_inner_categories(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    inner = [kind.field(number).type for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(pa.types.is_dictionary(one) or _has_inner_categories(one) for one in inner)


def holds_strings(kind: "pa.DataType") -> bool:
    """Whether a column of this type can hold texts."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def count_parquet(path: Path) -> int:
    """Number of rows."""
    from pyarrow.parquet import read_metadata

    return int(read_metadata(_source(path)).num_rows)


def _texts(rows: "pa.RecordBatch", columns: Sequence[str], number: int) -> list[Text | PenstockError]:
    """The texts of a batch; `number` is its first row, counted from 1."""
    import pyarrow as pa

    if not columns:
        return []
    try:
        rows.validate(full=True)
        values = zip(*[rows.column(column).to_pylist() for column in columns], strict=True)
        return [_text(row, columns) for row in values]
    except pa.ArrowInvalid:  # Arrow does not tell which row is invalid
        return [_checked_text(rows.slice(row, 1), columns, number + row) for row in range(rows.num_rows)]


def _text(values: Sequence[str | None], columns: Sequence[str]) -> Text | PenstockError:
    for column, value in zip(columns, values, strict=True):
        if value is None:
            return InvalidRequest(f"The column {column!r} is null.")
    return text_of([value for value in values if value is not None])


def _checked_text(row: "pa.RecordBatch", columns: Sequence[str], number: int) -> Text | PenstockError:
    if not all(_is_utf8(field[0]) for field in row.columns):
        return InvalidRequest(f"Row {number} holds bytes that are not UTF-8.")
    return _text([row.column(column)[0].as_py() for column in columns], columns)


def _is_utf8(scalar: "pa.Scalar") -> bool:
    try:
        scalar.as_py()
    except UnicodeDecodeError:
        return False
    except (ValueError, OverflowError):
        pass  # a time out of Python's range
    return True
