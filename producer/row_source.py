"""Rows from anywhere, as batches of texts: iterables, async iterables, Arrow's tables and streams, and data sets.

Arrow's PyCapsule protocol covers tables of pyarrow, frames of pandas and polars, and relations of DuckDB. A data set of
Hugging Face gives Arrow tables, in the order of its own indices.
"""

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.wire.messages import Text

_BATCH_ROWS = 512


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
        InvalidRequest: `rows` is no iterable, or is a table without such columns of strings.
    """
    if hasattr(rows, "__aiter__"):
        async for row in rows:  # one by one: the next row may depend on the answer to this one
            yield RowBatch([_text_of(row, columns)], [row])
        return
    tables = _arrow_batches(rows)
    batches = _of_arrow(tables, columns) if tables is not None else _of_rows(rows, columns)
    for batch in batches:
        yield batch


def _of_rows(rows: Any, columns: Sequence[str]) -> Iterator[RowBatch]:
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InvalidRequest(f"`rows` must be an iterable of rows, or a table. Given: {type(rows).__name__}")
    remaining = iter(rows)
    while batch := list(itertools.islice(remaining, _BATCH_ROWS)):
        yield RowBatch([_text_of(row, columns) for row in batch], batch)


def _text_of(row: Any, columns: Sequence[str]) -> Text | PenstockError:
    if columns:
        if not isinstance(row, Mapping):
            return InvalidRequest(f"A row must be a mapping with {' and '.join(columns)}. Given: {type(row).__name__}")
        missing = [column for column in columns if column not in row]
        if missing:
            return InvalidRequest(f"The row has no {missing[0]!r}.")
        row = row[columns[0]] if len(columns) == 1 else (row[columns[0]], row[columns[1]])
    is_pair = isinstance(row, tuple) and len(row) == 2
    if all(isinstance(part, str) for part in (row if is_pair else (row,))):
        return row  # type: ignore[no-any-return]  # checked in this line's condition
    return InvalidRequest(f"A text must be a string or a pair of strings. Given: {type(row).__name__}")


def _arrow_batches(rows: Any) -> Iterable[Any] | None:
    """Arrow's record batches of a table, a frame or a data set; None for other iterables."""
    if hasattr(rows, "with_format") and hasattr(rows, "iter"):  # a data set of Hugging Face
        tables = rows.with_format("arrow").iter(batch_size=_BATCH_ROWS)
        return itertools.chain.from_iterable(table.to_batches() for table in tables)
    if hasattr(rows, "__arrow_c_stream__"):
        import pyarrow as pa

        return pa.RecordBatchReader.from_stream(rows)  # type: ignore[no-any-return]  # pyarrow has no types
    if hasattr(rows, "__arrow_c_array__"):
        import pyarrow as pa

        return [pa.record_batch(rows)]
    return None


def _of_arrow(batches: Iterable[Any], columns: Sequence[str]) -> Iterator[RowBatch]:
    if not columns:
        raise InvalidRequest("`column` must name the column of the texts.")
    from penstock.producer.files.arrow_rows import rows_of

    for whole in batches:
        for start in range(0, whole.num_rows, _BATCH_ROWS):
            batch = whole.slice(start, _BATCH_ROWS)
            values = list(zip(*[_strings(batch, column) for column in columns], strict=True))
            texts = [_text_of(row[0] if len(columns) == 1 else row, ()) for row in values]
            yield RowBatch(texts, rows_of(batch), batch.nbytes)


def _strings(batch: Any, column: str) -> list[Any]:
    if column not in batch.schema.names:
        raise InvalidRequest(f"The table has no column {column!r}. Its columns: {', '.join(batch.schema.names)}.")
    values: list[Any] = batch.column(column).to_pylist()
    return values
