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
        made = table(*[column.name for column in part.columns])
        for row_of in part.rows:
            row(made, *[column.cell(row_of) for column in part.columns], style=part.style(row_of))
        show_table(console, made)
        for text in part.below:
            console.print(text, soft_wrap=True)


def heading(console: Console, text: str, note: str = "") -> None:
    """A blank line, a section's name if it has one, and what its figures are of."""
    console.print()
    if text:
        console.print(Text.assemble((text, HEAD), (f"  {note}" if note else "", DIM)), soft_wrap=True)


def table(*columns: str) -> Table:
    """Columns that begin with `>` are aligned to the right; the last one may fold."""
    made = _empty_table()
    for place, name in enumerate(columns):
        is_last = place == len(columns) - 1
        justify = "right" if name.startswith(">") else "left"
        made.add_column(name.removeprefix(">"), justify=justify, no_wrap=not is_last, overflow="fold")  # type: ignore[arg-type]
    return made


def row(made: Table, *cells: object, style: str = "") -> None:
    """Add a row. Text objects keep their style."""
    made.add_row(*[cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in cells], style=style)


def show_table(console: Console, made: Table) -> None:
    """Print a table. Where the screen is too narrow for it, its bars are left out, and then its lines run on.

    So no figure is cut: `445 ms` cut to `445 m` would be another time.
    """
    _keep_whole(made)
    if _least_width(console, made) > console.width:
        made = _without_bars(made)
        _keep_whole(made)
    least = _least_width(console, made)
    if least > console.width:
        made.width = least
    console.print(made, crop=False)


def _empty_table() -> Table:
    return Table(box=None, header_style=DIM, padding=(0, 2, 0, 0), pad_edge=False)


def _without_bars(made: Table) -> Table:
    """The table without its columns that have no name; the first one has names of rows."""
    kept = [column for place, column in enumerate(made.columns) if column.header or not place]
    rest = _empty_table()
    for column in kept:
        rest.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow)
    for row_of, *cells in zip(made.rows, *[column.cells for column in kept], strict=True):
        rest.add_row(*cells, style=row_of.style)
    return rest


def _keep_whole(made: Table) -> None:
    """Give each column the width of its longest cell. The last one may hold sentences, which fold."""
    for column in made.columns:
        widths = [cell_len(str(column.header)), *[cell_len(str(cell)) for cell in column.cells]]
        column.min_width = max(widths) if column.no_wrap else min(max(widths), _FOLDED_WIDTH)


def _least_width(console: Console, made: Table) -> int:
    return Measurement.get(console, console.options.update_width(_ANY_WIDTH), made).minimum


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
    greatest = max(heights)
    steps = (
        [0 if not value else max(1, round(value / greatest * 8)) for value in heights]
        if greatest
        else [0] * len(chunks)
    )
    return Text.assemble(("".join(_BLOCKS[step] for step in steps), BAR), (f"  {name}", DIM))


def joined(parts: Iterable[str]) -> str:
    """Parts that are not empty, by commas."""
    return ", ".join(part for part in parts if part)


def is_known(value: float) -> bool:
    """Whether the logs tell a figure."""
    return not math.isnan(value)


def count(number: float, noun: str) -> str:
    """`1 sequence`, `2 sequences`, `3 batches`."""
    return (
        f"{number:,.0f} {noun}" if round(number) == 1 else f"{number:,.0f} {noun}{'es' if noun.endswith('ch') else 's'}"
    )
