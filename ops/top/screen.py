"""The screen of `penstock top`: a line about the fleet, tables of members and routes, a line of keys; and its loop."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.ops.logs.screens.tables import BAD, DIM, HEAD, curve
from penstock.ops.logs.text import count, duration
from penstock.ops.top.columns import COLUMNS, ROUTE_COLUMNS, Figure, Figures
from penstock.ops.top.fleet import Fleet, Member

_UP = "green"
_PADDING = 2

SORTS = ("member", "req/s", "p99", "backlog", "lag", "err/s")  # by `member`: in the order in which they appeared


class View(NamedTuple):
    """Choices made by keys."""

    sort: str = SORTS[0]
    is_paused: bool = False
    is_live: bool = True  # keys are read


def screen(fleet: Fleet, view: View, moment: datetime, width: int) -> RenderableType:
    """The screen until the next look. `moment`: of the last look."""
    rows = _ordered(fleet.rows(), view.sort)
    parts: list[RenderableType] = [_head(fleet, rows, moment)]
    if len(fleet.rates) > 1 and any(fleet.rates):
        parts.append(curve(list(fleet.rates), "requests/s", width=max(1, min(60, width - 14))))
    parts += [Text(), _table(fleet, rows, view, width)]
    if routes := fleet.routes():
        parts += [Text(), _route_table(routes, width)]
    parts += [Text(f"{reason}.", style=BAD) for reason in fleet.silent.values()]
    if view.is_live:
        paused = "paused: p goes on" if view.is_paused else "p pauses"
        parts += [Text(), Text(f"q quits   s sorts (by {view.sort})   {paused}", style=DIM)]
    return Group(*parts)


def _head(fleet: Fleet, rows: Sequence[Member], moment: datetime) -> Text:
    models = sorted({row.model for row in rows if row.model})
    states = ", ".join(f"{number} {state}" for state, number in fleet.states.items() if number)
    head = Text.assemble(("penstock", HEAD), f"  {count(len(rows), 'member')}")
    if fleet.states:
        head.append(f": {states}")
    if models:
        head.append(f"  {', '.join(models)}")
    return head.append(f"  {moment:%H:%M:%S}", style=DIM)


def _table(fleet: Fleet, rows: Sequence[Member], view: View, width: int) -> Table:
    names = max([len("together"), *[len(row.name) for row in rows]])
    states = max([len("state"), *[len(_state(fleet, row)) for row in rows]])
    shown = _fitting(width - names - states - 2 * _PADDING, COLUMNS)
    made = Table(box=None, header_style=DIM, padding=(0, _PADDING, 0, 0), pad_edge=False)
    made.add_column("member", no_wrap=True)
    made.add_column("state", no_wrap=True)
    for column in shown:
        title = f"{column.title}▼" if column.title == view.sort else column.title
        made.add_column(title, justify="right", no_wrap=True, min_width=column.width)
    for row in rows:
        style = _UP if row.state == "up" else BAD
        made.add_row(row.name, Text(_state(fleet, row), style=style), *[_cell(one, row.figures) for one in shown])
    if len(rows) > 1:
        total = fleet.total()
        made.add_row("together", "", *[_cell(one, total) for one in shown], style=HEAD)
    return made


def _route_table(routes: Mapping[str, Figures], width: int) -> Table:
    shown = _fitting(width - max(map(len, ["route", *routes])) - _PADDING, ROUTE_COLUMNS)
    made = Table(box=None, header_style=DIM, padding=(0, _PADDING, 0, 0), pad_edge=False)
    made.add_column("route", no_wrap=True)
    for column in shown:
        made.add_column(column.title, justify="right", no_wrap=True, min_width=column.width)
    for topic, figures in routes.items():
        made.add_row(topic, *[_cell(one, figures) for one in shown])
    return made


def _fitting(width: int, columns: Sequence[Figure]) -> list[Figure]:
    """The most important columns that have room, in their order."""
    chosen: list[Figure] = []
    for column in sorted(columns, key=lambda one: one.rank):
        width -= column.width + _PADDING
        if width < 0:
            break
        chosen.append(column)
    return [column for column in columns if column in chosen]


def _cell(column: Figure, figures: Figures) -> Text:
    value = figures.get(column.title)
    return Text("-" if value is None else column.show(value), style=column.alarms if value else "")


def _state(fleet: Fleet, row: Member) -> str:
    return f"gone {duration(round(fleet.now_s - row.seen_s))}" if row.state == "gone" else row.state


def _ordered(rows: list[Member], sort: str) -> list[Member]:
    return sorted(rows, key=lambda row: -(row.figures.get(sort) or 0.0))  # by `member`: as they are


def watch(
    fleet: Fleet,
    console: Console,
    interval_s: float,
    wait: Callable[[float], str],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show the fleet until `q` is pressed. `wait` returns a key, or nothing after its seconds. Raises NoAnswer."""
    view, moment, next_s = View(), datetime.now(), clock()
    fleet.look()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(fleet, view, moment, console.width), refresh=True)
            next_s = max(next_s, clock() - interval_s)  # looks that were missed are not made up for
            match wait(next_s + interval_s - clock()):
                case "q":
                    return
                case "s":
                    view = view._replace(sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
                case "p":
                    view = view._replace(is_paused=not view.is_paused)
            is_due = clock() >= next_s + interval_s
            next_s += interval_s if is_due else 0.0
            if is_due and not view.is_paused:
                fleet.look()
                moment = datetime.now()


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits at most the given seconds for a key, without Enter; empty if none was pressed.

    Stdin is a terminal.
    """
    place = sys.stdin.fileno()
    before = termios.tcgetattr(place)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([place], [], [], max(0.0, seconds))
        return os.read(place, 64).decode("utf-8", "replace")[:1] if ready else ""

    try:
        tty.setcbreak(place)
        yield wait
    finally:
        termios.tcsetattr(place, termios.TCSADRAIN, before)
