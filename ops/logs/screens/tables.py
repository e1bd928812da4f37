"""Tables, bars and small curves on a terminal. Nothing of a log reaches the terminal as it is."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from penstock.ops.logs.lines.event import printable

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉"
_FOLDED_WIDTH = 24  # of a column of sentences
_ANY_WIDTH = 1000  # more than any table has
DIM, WARN, BAD, HEAD, BAR = "dim", "yellow", "red", "bold", "cyan"
LEVEL_STYLES = {"debug": DIM, "info": "", "warning": WARN, "error": BAD, "critical": "bold red"}


def make_console() -> Console:
    """The current stdout."""
    return Console(highlight=False, markup=False, soft_wrap=False)


class Column(NamedTuple):
    """A column: its name, which begins with `>` where it is aligned to the right, and the cell of a row."""

    name: str
    cell: Callable[[Any], object]


class Section(NamedTuple):
    """A part of a screen: its name, what its figures are of, a table, and sentences below it."""

    title: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    below: Sequence[Text] = ()
    style: Callable[[Any], str] = lambda row: ""  # of a row


def show(console: Console, parts: Iterable[Section | Text]) -> None:
    """Print the parts of a screen."""
    for part in parts:
        if isinstance(part, Text):
            console.print(part, soft_wrap=True)
            continue
        heading(console, part.title, part.note)
        show_table(console, part.columns, part.rows, part.style)
        for text in part.below:
            console.print(text, soft_wrap=True)


def heading(console: Console, text: str, note: str = "") -> None:
    """A blank line, a section's name if it has one, and what its figures are of."""
    console.print()
    if text:
        console.print(Text.assemble((text, HEAD), (f"  {note}" if note else "", DIM)), soft_wrap=True)


def show_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Any], style: Callable[[Any], str] = lambda row: ""
) -> None:
    """Print a table. Where the screen is too narrow for it, its bars are left out, and then its lines run on.

    So no figure is cut: `445 ms` cut to `445 m` would be another time. Bars have no name; the first column has
    those of rows. The last column may hold sentences, which fold.
    """
    without_bars = [column for place, column in enumerate(columns) if column.name or not place]
    for shown in (columns, without_bars):
        made = Table(box=None, header_style=DIM, padding=(0, 2, 0, 0), pad_edge=False)
        cells = [[_cell(column, row) for row in rows] for column in shown]
        for column, texts in zip(shown, cells, strict=True):
            _add_column(made, column, texts, folds=column is columns[-1])
        for row, *of_row in zip(rows, *cells, strict=True):
            made.add_row(*of_row, style=style(row))
        least = Measurement.get(console, console.options.update_width(_ANY_WIDTH), made).minimum
        if least <= console.width:
            break
    else:
        made.width = least
    console.print(made, crop=False)


def _cell(column: Column, row: Any) -> Text:
    cell = column.cell(row)
    return cell if isinstance(cell, Text) else Text(printable(str(cell)))


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


def joined(parts: Iterable[str]) -> str:
    """Parts that are not empty, by commas."""
    return ", ".join(part for part in parts if part)


def is_known(value: float) -> bool:
    """Whether the logs tell a figure."""
    return not math.isnan(value)


def count(number: float, noun: str) -> str:
    """`1 sequence`, `2 sequences`, `3 batches`."""
    ending = "" if round(number) == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,.0f} {noun}{ending}"
