"""Reader of CSV, JSONL and Parquet: blocks of rows, in bounded memory. See `penstock.producer.files`."""

import csv
import itertools
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.files.csv_records import BrokenLine, csv_records
from penstock.producer.wire.messages import utf8_fault

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

BLOCK_ROWS = 512
BLOCK_BYTES = 8 << 20  # approximate; a row is never split
MAX_LINE_BYTES = 4 << 20  # of JSONL; in CSV the csv module's limit of 131,072 characters a field holds
_COUNT_LIMIT_BYTES = 1 << 30  # larger text files are not counted before they are read

Object = dict[str, Any]
Content = Generator[Any, None, None]  # columns and schema, if there are, and then blocks; it owns the open file


class TableError(ValueError):
    """The file cannot be read or written as a table. The message names the remedy."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in the order of the file."""

    texts: Sequence[str | PenstockError]  # one a row: the text, or the error in its place
    source: "Sequence[Object] | pa.RecordBatch"  # the rows as read: Arrow's form for Parquet, else one object a row


class Reader:
    """An open table: a context manager, and an iterable of its blocks that can be used once."""

    def __init__(self, path: Path, content: Content) -> None:
        """Called by `open_reader`."""
        header = next(content)
        first = next(content, None)
        if first is None:
            raise TableError(f"{path} has no rows.")
        self.columns: Sequence[str] | None = header[0]  # None: rows have no common columns (JSONL)
        self.schema: Any = header[1]  # of a Parquet file
        self._first: Block = first
        self._content = content

    def __iter__(self) -> Iterator[Block]:
        yield self._first
        yield from self._content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._content.close()


def open_reader(path: str | Path, column: str) -> Reader:
    """Open a table whose texts are in `column`.

    Raises:
        TableError: unknown file, format or column, or no rows. Iteration raises it for a damaged file.
    """
    path = Path(path)
    read: Callable[[Path, str], Content] = by_extension(path, _FORMATS)
    try:
        return Reader(path, read(path, column))
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error


def count_rows(path: str | Path) -> int | None:
    """Number of rows, for a progress bar; None for a text file that is too large to count first."""
    path = Path(path)
    extension = path.suffix.lower()
    if extension == ".parquet":
        from pyarrow.parquet import read_metadata

        return int(read_metadata(path).num_rows)
    if path.stat().st_size > _COUNT_LIMIT_BYTES:
        return None
    if extension == ".csv":
        with _open_csv(path) as file:
            return sum(1 for _ in csv_records(file)) - 1
    with path.open("rb") as lines:
        return sum(1 for _ in _lines(lines))


def by_extension(path: Path, known: Mapping[str, Any]) -> Any:
    """The item of `known` for the file's extension. Raises TableError, which lists the extensions."""
    if path.suffix.lower() not in known:
        raise TableError(f"{path}: the extension must be one of {', '.join(known)}.")
    return known[path.suffix.lower()]


def _check_columns(path: Path, columns: Sequence[str], column: str) -> None:
    if column not in columns:
        raise TableError(f"{path} has no column {column!r}. Its columns: {', '.join(columns)}.")
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise TableError(f"{path} has more than one column {twice!r}. Rename one.")


def _in_blocks(rows: Iterable[tuple[str | PenstockError, Object]]) -> Iterator[Block]:
    """Group rows by count and size."""
    texts: list[str | PenstockError] = []
    objects: list[Object] = []
    size = 0
    for text, fields in rows:
        texts.append(text)
        objects.append(fields)
        size += sum(len(value) for value in fields.values() if isinstance(value, str))
        if len(texts) == BLOCK_ROWS or size >= BLOCK_BYTES:
            yield Block(texts, objects)
            texts, objects, size = [], [], 0
    if texts:
        yield Block(texts, objects)


# CSV


def _open_csv(path: Path) -> IO[str]:
    # Bytes that are not UTF-8 become lone surrogates, which fail their row alone; "strict" would end the file.
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _read_csv(path: Path, column: str) -> Content:
    with _open_csv(path) as file:
        records = csv_records(file)
        _, header = next(records, (0, None))
        if header is None:
            raise TableError(f"{path} is empty: a line of column names was expected.")
        if isinstance(header, BrokenLine) or utf8_fault("".join(header)):
            raise TableError(f"{path} does not begin with column names in UTF-8. Save it as CSV in UTF-8.")
        _check_columns(path, header, column)
        yield header, None
        yield from _in_blocks(_csv_row(line, fields, header, column) for line, fields in records)


def _csv_row(
    line: int, fields: list[str] | BrokenLine, header: Sequence[str], column: str
) -> tuple[str | PenstockError, Object]:
    if isinstance(fields, BrokenLine):
        return InvalidRequest(f"Line {line} is not CSV: {fields.reason}"), _salvaged(fields.line, header)
    row = _named(fields, header)
    if utf8_fault("".join(fields)):
        shown = {name: value.encode(errors="surrogateescape").decode(errors="replace") for name, value in row.items()}
        return InvalidRequest(f"Line {line} holds bytes that are not UTF-8."), shown
    if len(fields) != len(header):
        return InvalidRequest(f"Line {line} has {len(fields)} fields; the header has {len(header)}."), row
    return row[column], row


def _named(fields: Iterable[str], header: Sequence[str]) -> Object:
    return dict(zip(header, itertools.chain(fields, itertools.repeat("")), strict=False))


def _salvaged(line: str, header: Sequence[str]) -> Object:
    """The fields of a broken line as far as they can be parsed, so that the line can be recognised."""
    readable = line.rstrip("\r\n").encode(errors="surrogateescape").decode(errors="replace")
    try:
        return _named(next(csv.reader([readable]), []), header)
    except csv.Error:  # a field over the csv module's limit
        return _named([], header)


# JSON Lines


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Numbers and contents of lines that are not blank; None for a line over `MAX_LINE_BYTES`."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        is_long = len(line) > MAX_LINE_BYTES
        while is_long and line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        if is_long or line.strip():
            yield number, None if is_long else line


def _read_jsonl(path: Path, column: str) -> Content:
    with path.open("rb") as file:
        yield None, None
        yield from _in_blocks(_json_row(number, line, column) for number, line in _lines(file))


_JSON_TYPES = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _json_row(number: int, line: bytes | None, column: str) -> tuple[str | PenstockError, Object]:
    """The text and the object of a line; a line without an object is kept as {"line": its text}."""
    if line is None:
        return InvalidRequest(f"Line {number} is over {MAX_LINE_BYTES:,} bytes."), {}
    kept = {"line": line.decode("utf-8-sig", errors="replace").strip()}
    try:
        fields = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return InvalidRequest(f"Line {number} holds bytes that are not UTF-8."), kept
    except (ValueError, RecursionError) as error:
        return InvalidRequest(f"Line {number} is not JSON: {error}."), kept
    if not isinstance(fields, dict):
        return InvalidRequest(f"Line {number} holds {_JSON_TYPES[type(fields)]}; an object was expected."), kept
    if column not in fields:
        return InvalidRequest(f"Line {number} has no key {column!r}."), fields
    if not isinstance(fields[column], str):
        return InvalidRequest(f"Line {number}: {column!r} is not a string."), fields
    return fields[column], fields


# Parquet


def _read_parquet(path: Path, column: str) -> Content:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
        schema = file.schema_arrow
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise TableError(f"{path} is not a Parquet file that can be read: {error}.") from error
    with file:
        _check_columns(path, schema.names, column)
        kind = schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise TableError(f"{path}: column {column!r} holds {kind}; strings were expected.")
        yield schema.names, schema
        number = 1
        for rows in _row_batches(path, file):
            yield Block(_parquet_texts(rows, column, number), rows)
            number += rows.num_rows


def _row_batches(path: Path, file: Any) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    try:
        for batch in file.iter_batches(batch_size=BLOCK_ROWS):
            rows = max(1, batch.num_rows * BLOCK_BYTES // max(batch.nbytes, BLOCK_BYTES))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{path} is damaged: {error}.") from error


def _parquet_texts(rows: "pa.RecordBatch", column: str, number: int) -> list[str | PenstockError]:
    """The texts of a batch; `number` is its first row, counted from 1."""
    import pyarrow as pa

    try:
        rows.validate(full=True)
        texts = rows.column(column).to_pylist()
    except pa.ArrowInvalid:  # Arrow does not tell which row is invalid
        texts = [_parquet_text(rows.slice(row, 1), column, number + row) for row in range(rows.num_rows)]
    null = InvalidRequest(f"The column {column!r} is null.")
    return [null if text is None else text for text in texts]


def _parquet_text(row: "pa.RecordBatch", column: str, number: int) -> str | PenstockError | None:
    if not all(_is_utf8(field[0]) for field in row.columns):
        return InvalidRequest(f"Row {number} holds bytes that are not UTF-8.")
    text: str | None = row.column(column)[0].as_py()
    return text


def _is_utf8(scalar: "pa.Scalar") -> bool:
    try:
        scalar.as_py()
    except UnicodeDecodeError:
        return False
    except (ValueError, OverflowError):
        pass  # a time out of Python's range
    return True


_FORMATS = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
