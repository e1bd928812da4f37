"""Records of a CSV file, one by one. A broken line does not affect the lines that follow."""

import csv
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

# Bounds of a row, and so of the lines that are held in search of the end of a quote.
MAX_ROW_CHARS = 64 << 20
MAX_ROW_LINES = 2 << 20
_LARGE_ROW_CHARS = 1 << 20  # the csv module keeps four bytes for each character of its longest field


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that cannot be parsed: its quotes are broken, or it is too long, and then cut off."""

    reason: str
    line: str


def csv_records(file: IO[str]) -> Iterator[tuple[int, list[str] | BrokenLine]]:
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
            fields: list[str] | BrokenLine = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            fields = BrokenLine(_broken_quotes(error) if len(taken) > 1 else f"{error}.", taken[0])
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
