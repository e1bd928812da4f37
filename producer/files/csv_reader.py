"""Reader of CSV in UTF-8, with or without a byte order mark. A broken line does not affect the lines that follow."""

import csv
import io
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.files.row_blocks import Content, Object, TableError, check_columns, in_blocks, text_of
from penstock.producer.files.standard_streams import input_shown, open_input
from penstock.producer.wire.messages import Text, utf8_fault

# Bounds of a row, and so of the lines that are held in search of the end of a quote.
MAX_ROW_CHARS = 64 << 20
MAX_ROW_LINES = 2 << 20
_LARGE_ROW_CHARS = 1 << 20  # the csv module keeps four bytes for each character of its longest field


@dataclass(frozen=True, slots=True)
class _BrokenLine:
    """A line that cannot be parsed: its quotes are broken, or it is too long, and then cut off."""

    reason: str
    line: str


def read_csv(path: Path, columns: Sequence[str]) -> Content:
    """Header and blocks of a file."""
    with open_input(path) as source, _as_text(source) as file:
        records = _records(file)
        _, header = next(records, (0, None))
        if header is None:
            raise TableError(f"{input_shown(path)} is empty: a line of column names was expected.")
        if isinstance(header, _BrokenLine) or utf8_fault("".join(header)):
            raise TableError(f"{input_shown(path)} does not begin with column names in UTF-8. Save it as CSV in UTF-8.")
        check_columns(path, header, columns)
        yield header, None
        rows = ((*_csv_row(line, fields, header, columns), line) for line, fields in records)
        yield from in_blocks(((text, row, sum(map(len, row.values())), line) for text, row, line in rows), source, path)


def _csv_row(
    line: int, fields: list[str] | _BrokenLine, header: Sequence[str], columns: Sequence[str]
) -> tuple[Text | PenstockError, Object]:
    if isinstance(fields, _BrokenLine):
        return InvalidRequest(f"Line {line} is not CSV: {fields.reason}"), _salvaged(fields.line, header)
    row = _named(fields, header)
    if utf8_fault("".join(fields)):
        shown = {name: value.encode(errors="surrogateescape").decode(errors="replace") for name, value in row.items()}
        return InvalidRequest(f"Line {line} holds bytes that are not UTF-8."), shown
    if len(fields) != len(header):
        return InvalidRequest(f"Line {line} has {len(fields)} fields; the header has {len(header)}."), row
    return text_of([row[column] for column in columns]), row


def _named(fields: Iterable[str], header: Sequence[str]) -> Object:
    return dict(zip(header, itertools.chain(fields, itertools.repeat("")), strict=False))


def _salvaged(line: str, header: Sequence[str]) -> Object:
    """The fields of a broken line as far as they can be parsed, so that the line can be recognised."""
    readable = line.rstrip("\r\n").encode(errors="surrogateescape").decode(errors="replace")
    try:
        return _named(next(csv.reader([readable]), []), header)
    except csv.Error:  # a field over the csv module's limit
        return _named([], header)


def count_csv(path: Path) -> int:
    """Number of rows."""
    with open_input(path) as source, _as_text(source) as file:
        return sum(1 for _ in _records(file)) - 1


def _as_text(source: IO[bytes]) -> IO[str]:
    # Bytes that are not UTF-8 become lone surrogates, which fail their row alone; "strict" would end the file.
    return io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _records(file: IO[str]) -> Iterator[tuple[int, list[str] | _BrokenLine]]:
    """Records with the numbers of their first lines. Blank lines are skipped.

    A quoted field may span lines if it is closed as in RFC 4180. Otherwise its line alone is broken, and the lines read
    in search of its end are read again as records. The bounds of a row limit their number.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_CHARS))  # of the process: the module has no other
    ahead: deque[str] = deque()
    taken: list[str] = []  # lines of the current record
    num_chars = 0  # of them

    def lines() -> Iterator[str]:
        nonlocal num_chars
        while line := ahead.popleft() if ahead else _next_line(file):
            taken.append(line)
            num_chars += len(line)
            if num_chars > MAX_ROW_CHARS or len(taken) > MAX_ROW_LINES:
                raise csv.Error(f"row of more than {MAX_ROW_CHARS:,} characters, or {MAX_ROW_LINES:,} lines")
            yield line

    records = csv.reader(lines(), strict=True)
    number = 1
    while True:
        try:
            fields: list[str] | _BrokenLine = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            fields = _BrokenLine(_broken_quotes(error) if len(taken) > 1 else f"{error}.", taken[0])
            ahead.extendleft(reversed(taken[1:]))
            del taken[1:]
            records = csv.reader(lines(), strict=True)
        if fields:
            yield number, fields
        if num_chars > _LARGE_ROW_CHARS:
            records = csv.reader(lines(), strict=True)
        number += len(taken)
        taken.clear()
        num_chars = 0


def _next_line(file: IO[str]) -> str:
    """The next line, empty at the end. One that is too long for a row is cut off behind its bound."""
    line = rest = file.readline(MAX_ROW_CHARS + 1)
    while len(rest) > MAX_ROW_CHARS and not rest.endswith(("\n", "\r")):
        rest = file.readline(MAX_ROW_CHARS + 1)
    return line


def _broken_quotes(error: csv.Error) -> str:
    return (
        f"{error}. A quote that it opens is not closed as it should be; the lines after it are read as separate rows."
    )
