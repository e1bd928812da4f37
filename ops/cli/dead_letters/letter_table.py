"""Dead letters on a terminal. Any client may have written one: no control character of it is printed."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.ops.logs.lines.event import printable

_SHOWN_CHARS = 80


def print_letters(letters: Iterable[Mapping[str, Any]]) -> None:
    """Print summaries of dead letters on stdout."""
    table = Table("id", "original", "code", "tried", "written (UTC)", "message", box=None, header_style="bold")
    for one in letters:
        texts = one["id"], one["source"], one["code"], str(one["attempts"] or ""), written_utc(one["written_ms"])
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
