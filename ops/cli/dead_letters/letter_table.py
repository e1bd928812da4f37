"""Dead letters on a terminal. Any client may have written one: no control character of it is printed."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.ops.logs.lines.event import printable

_SHOWN_CHARS = 80


class Listing:
    """Lines of a table: one a letter, or for each error code of a letter of several originals."""

    def __init__(self, most: int) -> None:
        self.most = most  # lines
        self.num_records = 0  # originals in the lines
        self._lines: list[tuple[Mapping[str, Any], int]] = []  # the first original's summary, and their number
        self._places: dict[tuple[str, str], int] = {}  # of the lines of the last letter, by its id and the code

    def add(self, letter: Mapping[str, Any]) -> None:
        """Add an original; those of a letter follow each other. Does nothing if it needs a line more than allowed."""
        key = letter["id"], letter["code"]
        if (place := self._places.get(key)) is None:
            if len(self._lines) == self.most:
                return
            if self._lines and self._lines[-1][0]["id"] != letter["id"]:
                self._places.clear()
            place = self._places[key] = len(self._lines)
            self._lines.append((letter, 0))
        first, count = self._lines[place]
        self._lines[place] = first, count + 1
        self.num_records += 1

    def print(self) -> None:
        """Print the lines on stdout; nothing without any."""
        if not self._lines:
            return
        table = Table("id", "original", "code", "tried", "written (UTC)", "message", box=None, header_style="bold")
        for one, count in self._lines:
            source = one["source"] if count == 1 else f"{one['source']} and {count - 1:,} more"
            texts = one["id"], source, one["code"], str(one["attempts"] or ""), written_utc(one["written_ms"])
            table.add_row(*map(printable, (*texts, one["message"][:_SHOWN_CHARS])))
        Console(highlight=False, markup=False, soft_wrap=True).print(table)


def as_json(letter: Mapping[str, Any]) -> str:
    """A letter as JSON, readable and indented; characters that control the terminal are escaped."""
    text = json.dumps(letter, indent=2, ensure_ascii=False)
    return "".join([one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text])


def written_utc(timestamp_ms: int) -> str:
    """UTC date and time; `?` for a number that is no time, as a producer may write any."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"
