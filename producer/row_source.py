"""Rows from anywhere, as batches of texts: iterables, async iterables, Arrow's tables and streams, and data sets.

Arrow's PyCapsule protocol covers tables of pyarrow, frames of pandas and polars, and relations of DuckDB; and arrays of
texts. A data set of Hugging Face gives Arrow tables, in the order of its own indices, unless it has a transform.
"""

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.producer.errors import InvalidRequest, PenstockError, WrongArgument
from penstock.producer.wire.messages import Text

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of a table: it takes a tenth of a second

_BATCH_ROWS = 512
_UNNAMED_INDEX = "__index_level_"  # begins the names that pandas gives to levels of an index without names


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows that are sent in one call."""

    texts: Sequence[Text | PenstockError]  # one a row
    rows: Sequence[Any]  # as given; of Arrow, mappings from the columns' names
    num_bytes: int = 0  # approximate, of rows that are held for this batch alone


async def row_batches(rows: Any, columns: Sequence[str]) -> AsyncIterator[RowBatch]:
    """Batches of `rows`, in order.

    Args:
        columns: none where rows are texts or pairs; otherwise the text's column, or the two of pairs, in mappings and
            in Arrow's tables.

    Raises:
        WrongArgument: `rows` is no iterable.
        InvalidRequest: `rows` is a table without such columns of strings, or one that Arrow cannot
            hold.
    """
    if hasattr(rows, "__aiter__"):
        async for row in rows:  # one by one: the next row may depend on the answer to this one
            yield RowBatch([_text_of(row, columns)], [row])
        return
    for batch in read_batches(rows, columns):
        yield batch


def column_names(column: object) -> tuple[str, ...]:
    """The columns that a caller names: none, one, or the two of pairs. Raises WrongArgument."""
    columns = () if column is None else (column,) if isinstance(column, str) else column
    if not isinstance(columns, tuple | list) or not all(isinstance(name, str) for name in columns) or len(columns) > 2:
        raise WrongArgument(f"`column` must be a string or a pair of strings. Given: {type(column).__name__}")
    return tuple(columns)


def read_batches(rows: Any, columns: Sequence[str]) -> Iterator[RowBatch]:
    """`row_batches` of what is no async iterable."""
    if hasattr(rows, "with_format") and hasattr(rows, "iter"):  # a data set of Hugging Face
        _check_named(columns)
        if _is_transformed(rows):
            return _of_rows(rows, columns)
        tables = rows.with_format("arrow").iter(batch_size=_BATCH_ROWS)
        return _of_arrow(itertools.chain.from_iterable(table.to_batches() for table in tables), columns)
    is_series = getattr(rows, "ndim", None) == 1  # of pandas: its values may be of several types
    if not is_series and (hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")):
        table = _arrow(rows)
        if table is not None:
            _check_named(columns)
            return _of_arrow(table, columns)
        return _of_texts(_arrow_array(rows))
    return _of_rows(rows, () if is_series else columns)


def _is_transformed(data_set: Any) -> bool:
    """Whether a function makes the rows of a data set, which Arrow holds as they were before."""
    form = getattr(data_set, "format", None)
    return isinstance(form, Mapping) and form.get("type") == "custom"


def _check_named(columns: Sequence[str]) -> None:
    if not columns:
        raise InvalidRequest("`column` must name the column of the texts.")


def _of_rows(rows: Any, columns: Sequence[str]) -> Iterator[RowBatch]:
    if isinstance(rows, str | bytes | bytearray | memoryview | Mapping) or not isinstance(rows, Iterable):
        raise WrongArgument(f"`rows` must be an iterable of rows, or a table. Given: {type(rows).__name__}")
    remaining = iter(rows)
    while batch := list(itertools.islice(remaining, _BATCH_ROWS)):
        yield RowBatch([_text_of(row, columns) for row in batch], batch)


def _text_of(row: Any, columns: Sequence[str]) -> Text | PenstockError:
    if columns:
        if not isinstance(row, Mapping):
            return WrongArgument(f"A row must be a mapping with {' and '.join(columns)}. Given: {type(row).__name__}")
        missing = [column for column in columns if column not in row]
        if missing:
            return InvalidRequest(f"The row has no {missing[0]!r}.")
        row = row[columns[0]] if len(columns) == 1 else (row[columns[0]], row[columns[1]])
    is_pair = isinstance(row, tuple) and len(row) == 2
    if all(isinstance(part, str) for part in (row if is_pair else (row,))):
        return row  # type: ignore[no-any-return]  # checked in this line's condition
    return WrongArgument(f"A text must be a string or a pair of strings. Given: {type(row).__name__}")


def _arrow(rows: Any) -> "Iterable[pa.RecordBatch] | None":
    """The record batches of a table or a frame; None for one dimension. Raises InvalidRequest."""
    try:
        import pyarrow as pa
    except ImportError as error:
        reason = f"A {type(rows).__name__} needs pyarrow, which is not installed: pip install 'penstock[parquet]'"
        raise InvalidRequest(reason) from error
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            if type(rows).__module__.partition(".")[0] == "pandas":  # whose own stream has no index of a range
                return pa.Table.from_pandas(rows, preserve_index=True).to_batches()  # type: ignore[no-any-return]
            return pa.RecordBatchReader.from_stream(rows)  # type: ignore[no-any-return]  # pyarrow has no types
        return [pa.record_batch(rows)]
    except pa.ArrowInvalid as error:
        if "non-struct type" in str(error):
            return None
        raise _not_arrow(rows, error) from error
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _not_arrow(rows, error) from error


def _arrow_array(rows: Any) -> "pa.ChunkedArray":
    import pyarrow as pa

    return pa.chunked_array(rows if hasattr(rows, "__arrow_c_stream__") else [pa.array(rows)])


def _not_arrow(rows: Any, error: Exception) -> InvalidRequest:
    """The error of a frame, such as one with a column of several types. Arrow's last argument names the column."""
    reason = ": ".join(str(part) for part in reversed(error.args))
    return InvalidRequest(
        f"The {type(rows).__name__} cannot be read as an Arrow table: {reason}. Give each column one type, such as "
        "string, or leave it out."
    )


def _of_texts(array: "pa.ChunkedArray") -> Iterator[RowBatch]:
    """Batches of one-dimensional rows."""
    import pyarrow as pa

    for chunk in array.chunks:
        for batch in _of_arrow([pa.record_batch([chunk], ["text"])], ("text",)):
            yield RowBatch(batch.texts, [row["text"] for row in batch.rows], batch.num_bytes)


def _of_arrow(batches: "Iterable[pa.RecordBatch]", columns: Sequence[str]) -> Iterator[RowBatch]:
    from penstock.producer.files.arrow_rows import rows_of

    for read in batches:
        whole = _without_index(read)
        for start in range(0, whole.num_rows, _BATCH_ROWS):
            batch = whole.slice(start, _BATCH_ROWS)
            values = list(zip(*[_strings(batch, column) for column in columns], strict=True))
            texts = [_text_of(row[0] if len(columns) == 1 else row, ()) for row in values]
            yield RowBatch(texts, rows_of(batch), batch.nbytes)


def _without_index(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """The batch without the columns that a frame of pandas adds for an index without a name."""
    levels = [name for name in (batch.schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)]
    unnamed = {name for name in levels if name.startswith(_UNNAMED_INDEX)}
    return batch.select([name for name in batch.schema.names if name not in unnamed]) if unnamed else batch


def _strings(batch: Any, column: str) -> list[Any]:
    if column not in batch.schema.names:
        raise InvalidRequest(f"The table has no column {column!r}. Its columns: {', '.join(batch.schema.names)}.")
    values: list[Any] = batch.column(column).to_pylist()
    return values
