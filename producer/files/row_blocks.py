"""Blocks of rows, which readers return and writers take."""

import errno
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from penstock.producer.errors import PenstockError
from penstock.producer.files.standard_streams import input_shown, name_of
from penstock.producer.row_inputs import RowInputs
from penstock.producer.wire.messages import Text

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

BLOCK_ROWS = 512
BLOCK_BYTES = 8 << 20  # approximate; a row is never split

Object = dict[str, Any]


class JsonLine(Object):
    """The keys of an object in JSON, without their values, and its own text, which the output keeps."""

    def __init__(self, keys: Iterable[str], text: bytes) -> None:
        super().__init__(dict.fromkeys(keys))
        self.text = text  # from brace to brace


Content = Generator[Any, None, None]  # a Header, and then blocks; it owns the open file
# Columns, None where rows have none in common (JSONL), and a Parquet file's schema.
Header = tuple[Sequence[str] | None, Any]


class TableError(ValueError):
    """The file cannot be read or written as a table. The message names the remedy."""


class OutputError(TableError):
    """The output's disk is full or fails, or its pipe is closed: the fault of neither the input nor the command."""

    errors = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EPIPE})


class StoreError(OutputError):
    """A store of objects does not answer, although requests were repeated. The same command continues the job."""


def cannot_write(output: Path | str, error: OSError) -> TableError:
    """The error of an output that cannot be written."""
    kind = OutputError if error.errno in OutputError.errors else TableError
    return kind(f"{output} cannot be written: {error.strerror or error}.")


class Numbers(NamedTuple):
    """Where the rows of a block are: the number of each in its file, from 1."""

    file: str
    unit: str  # "line", or "row" of a file without lines
    of_rows: Sequence[int]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in the order of the file. Its bounds depend on the file alone."""

    # One a row: the text, of two columns a pair, or of OpenAI's lines the inputs; or the error in its place.
    texts: Sequence[Text | RowInputs | PenstockError]
    source: "Sequence[Object] | pa.RecordBatch"  # the rows as read: Arrow's form for Parquet, else one object a row
    num_bytes: int = 0  # approximate, of `source`
    end_byte: int = 0  # bytes of the input up to the block's last row, or a little further; 0: not counted
    numbers: Numbers | None = None

    def after(self, rows: int) -> Self:
        """The block without its first rows."""
        source = self.source[rows:] if isinstance(self.source, Sequence) else self.source.slice(rows)
        numbers = self.numbers and self.numbers._replace(of_rows=self.numbers.of_rows[rows:])
        return type(self)(self.texts[rows:], source, self.num_bytes, self.end_byte, numbers)

    def place(self, index: int) -> str:
        """`in.csv, line 7`; empty if it is not known."""
        return "" if self.numbers is None else "{}, {} {:,}".format(*self.numbers[:2], self.numbers.of_rows[index])


def in_blocks(
    rows: Iterable[tuple[Text | RowInputs | PenstockError, Object, int, int]], file: IO[bytes], path: Path
) -> Iterator[Block]:
    """Group rows, which are read from `file`, by count and size. Each has its text, its object, its size and line."""
    texts: list[Text | RowInputs | PenstockError] = []
    objects: list[Object] = []
    lines: list[int] = []
    size = 0
    for text, fields, num_bytes, line in rows:
        lines.append(line)
        texts.append(text)
        objects.append(fields)
        size += num_bytes
        if len(texts) == BLOCK_ROWS or size >= BLOCK_BYTES:
            yield Block(texts, objects, size, _position(file), Numbers(name_of(path), "line", lines))
            texts, objects, lines, size = [], [], [], 0
    if texts:
        yield Block(texts, objects, size, _position(file), Numbers(name_of(path), "line", lines))


def _position(file: IO[bytes]) -> int:
    return file.tell() if file.seekable() else 0


def text_of(values: Sequence[str]) -> Text:
    """The text of a row's one column, or the pair of its two."""
    if len(values) == 1:
        return values[0]
    first, second = values
    return first, second


def check_columns(path: Path, columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Check that a file has the wanted columns, and none twice. Raises TableError."""
    for column in wanted:
        if column not in columns:
            raise TableError(f"{input_shown(path)} has no column {column!r}. Its columns: {', '.join(columns)}.")
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise TableError(f"{input_shown(path)} has more than one column {twice!r}. Rename one.")
