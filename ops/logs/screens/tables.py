"""Tables, events, bars and small curves on a terminal. Nothing of a log reaches the terminal as it is."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from penstock.ops.logs.lines.event import SHOWN_APART, Event
from penstock.ops.logs.lines.source import LogSource
from penstock.ops.logs.text import clock, printable

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉"
_FOLDED_WIDTH = 24  # of a column of sentences
_ANY_WIDTH = 1000  # more than any table has
_MAX_VALUE_CHARS = 200
DIM, WARN, BAD, HEAD, BAR = "dim", "yellow", "red", "bold", "cyan"
LEVEL_STYLES = {"debug": DIM, "info": "", "warning": WARN, "error": BAD, "critical": "bold red"}


def make_console() -> Console:
    """The current stdout."""
    return Console(highlight=False, markup=False, soft_wrap=False)


class Column(NamedTuple):
    """A column: its name, which begins with `>` where it is aligned to the right, and what it shows of a row."""

    name: str
    value: Callable[[Any], object] | str  # of a row; or the name of its attribute
    show: Callable[[Any], str] = str  # a value. None and NaN, which the logs do not tell, are `-`

    def text(self, row: Any) -> str | Text:
        """The cell of a row."""
        value = (attrgetter(self.value) if isinstance(self.value, str) else self.value)(row)
        if isinstance(value, Text):
            return value
        return self.show(value) if is_known(value) else "-"


class Section(NamedTuple):
    """A part of a screen: its name, what its figures are of, a table, and sentences below it."""

    title: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    below: Sequence[Text] = ()
    bold: Any = None  # one of the rows
    is_apart: bool = True  # a blank line comes before it


def show(console: Console, parts: Iterable[Section | Text | Table]) -> None:
    """Print the parts of a screen."""
    for part in parts:
        if isinstance(part, Table):
            console.print(part)
            continue
        if isinstance(part, Text):
            is_cut = part.overflow is not None
            console.print(part, soft_wrap=not is_cut, no_wrap=is_cut or None, overflow=part.overflow)
            continue
        if part.is_apart:
            console.print()
        if part.title:
            console.print(heading(part.title, part.note), soft_wrap=True)
        if part.columns:
            _show_table(console, part)
        for text in part.below:
            console.print(text, soft_wrap=True)


def heading(text: str, note: str = "") -> Text:
    """A section's name, and what its figures are of."""
    return Text.assemble((text, HEAD), (f"  {note}" if note else "", DIM))


def _show_table(console: Console, section: Section) -> None:
    """Print a table. Where the screen is too narrow for it, its bars are left out, and then its lines run on.

    So no figure is cut: `445 ms` cut to `445 m` would be another time. Bars have no name; the first column has
    those of rows. The last column may hold sentences, which fold.
    """
    columns, rows = section.columns, section.rows
    without_bars = [column for place, column in enumerate(columns) if column.name or not place]
    for shown in (columns, without_bars):
        made = Table(box=None, header_style=DIM, padding=(0, 2, 0, 0), pad_edge=False)
        cells = [[_cell(column, row) for row in rows] for column in shown]
        for column, texts in zip(shown, cells, strict=True):
            _add_column(made, column, texts, folds=column is columns[-1])
        for row, *of_row in zip(rows, *cells, strict=True):
            made.add_row(*of_row, style=HEAD if row is section.bold else "")
        least = Measurement.get(console, console.options.update_width(_ANY_WIDTH), made).minimum
        if least <= console.width:
            break
    else:
        made.width = least
    console.print(made, crop=False)


def _cell(column: Column, row: Any) -> Text:
    cell = column.text(row)
    return cell if isinstance(cell, Text) else Text(printable(cell))


def _add_column(made: Table, column: Column, cells: Sequence[Text], *, folds: bool) -> None:
    name = column.name.removeprefix(">")
    width = max(map(cell_len, [name, *map(str, cells)]))
    made.add_column(
        name,
        justify="left" if name == column.name else "right",
        no_wrap=not folds,
        overflow="fold",
        min_width=min(width, _FOLDED_WIDTH) if folds else width,
    )


def bar(part: float, width: int = 24) -> Text:
    """A bar for a share of 1."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return Text("█" * full + (_PARTS[rest] if rest else ""), style=BAR)


def curve(values: Sequence[float], name: str, width: int = 60) -> Text:
    """A curve of one line, and its name. Values are added up into at most `width` characters."""
    if not len(values):
        return Text("")
    chunks = np.array_split(np.asarray(values, float), min(width, len(values)))
    heights = [float(chunk.mean()) for chunk in chunks]
    greatest = max(heights) or 1.0
    steps = [max(1, round(value / greatest * 8)) if value else 0 for value in heights]
    return Text.assemble(("".join(_BLOCKS[step] for step in steps), BAR), (f"  {name}", DIM))


def is_known(value: object) -> bool:
    """Whether the logs tell a figure."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


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
