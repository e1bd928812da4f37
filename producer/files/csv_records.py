"""Records of a CSV file, one by one. A broken line does not affect the lines that follow."""

import csv
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that cannot be parsed: its quotes are broken, or a field is too long."""

    reason: str
    line: str


def csv_records(file: Iterator[str]) -> Iterator[tuple[int, list[str] | BrokenLine]]:
    """Records with the numbers of their first lines. Blank lines are skipped.

    A quoted field may span lines if it is closed as in RFC 4180. Otherwise its line alone is broken, and the lines read
    in search of its end are read again as records. The csv module's limit of a field bounds their number.
    """
    ahead: deque[str] = deque()
    taken: list[str] = []  # lines of the current record

    def lines() -> Iterator[str]:
        while (line := ahead.popleft() if ahead else next(file, None)) is not None:
            taken.append(line)
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
        number += len(taken)
        taken.clear()


def _broken_quotes(error: csv.Error) -> str:
    return (
        f"{error}. A quote that it opens is not closed as it should be; the lines after it are read as separate rows."
    )
