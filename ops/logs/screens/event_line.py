"""One event as a line on a terminal."""

import json
from collections.abc import Sequence

from rich.text import Text

from penstock.ops.logs.lines.event import OF_EVERY_LINE, Event, clock, printable
from penstock.ops.logs.lines.source import LogSource
from penstock.ops.logs.screens.tables import DIM, LEVEL_STYLES

SHOWN_APART = frozenset(("event", "exception", *OF_EVERY_LINE))
_MAX_VALUE_CHARS = 200


def event_line(event: Event, sources: Sequence[LogSource]) -> Text:
    """Time, level, log, worker, name and fields; a trace on lines of its own."""
    style = LEVEL_STYLES[event.level]
    line = Text.assemble((f"{clock(event.time_s, ms=True)} ", DIM))
    line.append(f"{event.level:<8} ", style=style or DIM)
    if len(sources) > 1:
        line.append(f"{sources[event.source].name} ", style="cyan")
    if (worker := event.fields.get("worker")) is not None:
        line.append(f"{printable(str(worker))} ", style="cyan")
    line.append(printable(event.name), style=style or "bold")
    for key, value in event.fields.items():
        if key not in SHOWN_APART:
            line.append(f" {printable(key)}=", style=DIM)
            line.append(_value(value))
    if isinstance(trace := event.fields.get("exception"), str):
        line.append("".join("\n    " + printable(part) for part in trace.splitlines()), style=DIM)
    return line


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    shown = printable(text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…")
    return f"'{shown}'" if isinstance(value, str) and (" " in shown or not shown) else shown
