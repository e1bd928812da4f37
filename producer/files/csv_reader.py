"""Reader of CSV in UTF-8, with or without a byte order mark."""

import csv
import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.files.csv_records import BrokenLine, csv_records
from penstock.producer.files.row_blocks import Content, Object, TableError, check_columns, in_blocks, text_of
from penstock.producer.files.standard_streams import input_shown, open_input
from penstock.producer.wire.messages import Text, utf8_fault


def read_csv(path: Path, columns: Sequence[str]) -> Content:
    """Header and blocks of a file."""
    with open_input(path) as source, _as_text(source) as file:
        records = csv_records(file)
        _, header = next(records, (0, None))
        if header is None:
            raise TableError(f"{input_shown(path)} is empty: a line of column names was expected.")
        if isinstance(header, BrokenLine) or utf8_fault("".join(header)):
            raise TableError(f"{input_shown(path)} does not begin with column names in UTF-8. Save it as CSV in UTF-8.")
        check_columns(path, header, columns)
        yield header, None
        rows = ((*_csv_row(line, fields, header, columns), line) for line, fields in records)
        yield from in_blocks(((text, row, sum(map(len, row.values())), line) for text, row, line in rows), source, path)


def _csv_row(
    line: int, fields: list[str] | BrokenLine, header: Sequence[str], columns: Sequence[str]
) -> tuple[Text | PenstockError, Object]:
    if isinstance(fields, BrokenLine):
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
        return sum(1 for _ in csv_records(file)) - 1


def _as_text(source: IO[bytes]) -> IO[str]:
    # Bytes that are not UTF-8 become lone surrogates, which fail their row alone; "strict" would end the file.
    return io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="")
