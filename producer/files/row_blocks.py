"""Blocks of rows, which readers return and writers take."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.producer.errors import PenstockError
from penstock.producer.wire.messages import Text

if TYPE_CHECKING:
    import pyarrow as pa  # imported on first use of Parquet: it takes a tenth of a second

BLOCK_ROWS = 512
BLOCK_BYTES = 8 << 20  # approximate; a row is never split

Object = dict[str, Any]
Content = Generator[Any, None, None]  # a Header, and then blocks; it owns the open file
# Columns, None where rows have none in common (JSONL), and a Parquet file's schema.
Header = tuple[Sequence[str] | None, Any]


class TableError(ValueError):
    """The file cannot be read or written as a table. The message names the remedy."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in the order of the file. Its bounds depend on the file alone."""

    texts: Sequence[Text | PenstockError]  # one a row: the text, or the error in its place; of two columns, a pair
    source: "Sequence[Object] | pa.RecordBatch"  # the rows as read: Arrow's form for Parquet, else one object a row

    def after(self, rows: int) -> Self:
        """The block without its first rows."""
        source = self.source[rows:] if isinstance(self.source, Sequence) else self.source.slice(rows)
        return type(self)(self.texts[rows:], source)


def in_blocks(rows: Iterable[tuple[Text | PenstockError, Object]]) -> Iterator[Block]:
    """Group rows by count and size."""
    texts: list[Text | PenstockError] = []
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
            raise TableError(f"{path} has no column {column!r}. Its columns: {', '.join(columns)}.")
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise TableError(f"{path} has more than one column {twice!r}. Rename one.")
