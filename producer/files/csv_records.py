"""Records of a CSV file, one by one: what is broken is one line, and hides none that follows it."""

import csv
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that begins no record: its quotes are broken, or a field is too long."""

    reason: str
    line: str


def csv_records(file: Iterator[str]) -> Iterator[tuple[int, list[str] | BrokenLine]]:
    """Records with the line they begin on. Blank lines are none.

    A quoted field may run over lines, if it is closed as RFC 4180 says. If it is not, its line alone is broken: the
    lines that were read in search of the end are read again, as records. The csv module's limit of a field bounds them.
    """
    ahead: deque[str] = deque()
    taken: list[str] = []  # lines of the record that is being read

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
        f"{error}. A quote that it opens is not closed as it should be; the lines after it are read as rows of their "
        "own."
    )
