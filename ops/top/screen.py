"""The screen of `penstock top`: a line about the fleet, a table of its members, and a line of keys."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.ops.logs.lines.event import duration
from penstock.ops.logs.screens.tables import BAD, DIM, HEAD, WARN, count, curve
from penstock.ops.top.figures import Figures
from penstock.ops.top.fleet import Fleet, MemberRow, describe_states

_UP = "green"
_PADDING = 2
_SHORTEST_S = 1e-6


class Column(NamedTuple):
    """A figure of the table."""

    title: str
    width: int
    rank: int  # the columns of the highest ranks are left out first where the terminal is narrow
    show: Callable[[Figures], str]
    value: Callable[[Figures], float | None]
    alarms: str = ""  # the style of a value above zero


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.2g}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.1f}M" if value >= 1e6 else _rate(value)


def _time(value: float | None) -> str:
    return "-" if value is None else duration(value if value >= _SHORTEST_S else 0.0)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


COLUMNS = (
    Column("req/s", 7, 0, lambda one: _rate(one.requests_s), lambda one: one.requests_s),
    Column("seq/s", 7, 9, lambda one: _rate(one.sequences_s), lambda one: one.sequences_s),
    Column("tok/s", 9, 8, lambda one: _short(one.tokens_s), lambda one: one.tokens_s),
    Column("batch", 5, 10, lambda one: _rate(one.batch_sequences), lambda one: one.batch_sequences),
    Column("p50", 7, 3, lambda one: _time(one.p50_s), lambda one: one.p50_s),
    Column("p99", 7, 1, lambda one: _time(one.p99_s), lambda one: one.p99_s),
    Column("queue", 6, 7, lambda one: _rate(one.queued_sequences), lambda one: one.queued_sequences),
    Column("backlog", 7, 2, lambda one: _time(one.backlog_s), lambda one: one.backlog_s),
    Column("lag", 7, 4, lambda one: _short(one.lag_records), lambda one: one.lag_records),
    Column("cache", 5, 11, lambda one: _share(one.cache_share), lambda one: one.cache_share),
    Column("err/s", 6, 5, lambda one: _rate(one.errors_s), lambda one: one.errors_s, WARN),
    Column("dead", 6, 12, lambda one: _short(one.dead_letters), lambda one: one.dead_letters, WARN),
    Column("restarts", 8, 6, lambda one: _short(one.restarts), lambda one: one.restarts, WARN),
    Column("loop lag", 8, 13, lambda one: _time(one.loop_lag_s), lambda one: one.loop_lag_s),
)
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
    parts += [Text(f"{reason}.", style=BAD) for reason in fleet.silent.values()]
    if view.is_live:
        paused = "paused: p goes on" if view.is_paused else "p pauses"
        parts += [Text(), Text(f"q quits   s sorts (by {view.sort})   {paused}", style=DIM)]
    return Group(*parts)


def _head(fleet: Fleet, rows: Sequence[MemberRow], moment: datetime) -> Text:
    models = sorted({row.model for row in rows if row.model})
    head = Text.assemble(("penstock", HEAD), f"  {count(len(rows), 'member')}")
    if fleet.states:
        head.append(f": {describe_states(fleet.states)}")
    if models:
        head.append(f"  {', '.join(models)}")
    return head.append(f"  {moment:%H:%M:%S}", style=DIM)


def _table(fleet: Fleet, rows: Sequence[MemberRow], view: View, width: int) -> Table:
    names = max([len("together"), *[len(row.name) for row in rows]])
    states = max([len("state"), *[len(_state(row)) for row in rows]])
    shown = _fitting(width - names - states - 2 * _PADDING)
    made = Table(box=None, header_style=DIM, padding=(0, _PADDING, 0, 0), pad_edge=False)
    made.add_column("member", no_wrap=True)
    made.add_column("state", no_wrap=True)
    for column in shown:
        title = f"{column.title}▼" if column.title == view.sort else column.title
        made.add_column(title, justify="right", no_wrap=True, min_width=column.width)
    for row in rows:
        style = _UP if row.state == "up" else BAD
        made.add_row(row.name, Text(_state(row), style=style), *[_cell(one, row.figures) for one in shown])
    if len(rows) > 1:
        total = fleet.total()
        made.add_row("together", "", *[_cell(one, total) for one in shown], style=HEAD)
    return made


def _fitting(width: int) -> list[Column]:
    """The most important columns that have room, in their order."""
    chosen: list[Column] = []
    for column in sorted(COLUMNS, key=lambda one: one.rank):
        width -= column.width + _PADDING
        if width < 0:
            break
        chosen.append(column)
    return [column for column in COLUMNS if column in chosen]


def _cell(column: Column, figures: Figures) -> Text:
    style = column.alarms if (column.value(figures) or 0.0) > 0.0 else ""
    return Text(column.show(figures), style=style)


def _state(row: MemberRow) -> str:
    return f"gone {duration(round(row.gone_s))}" if row.state == "gone" else row.state


def _ordered(rows: list[MemberRow], sort: str) -> list[MemberRow]:
    column = next((one for one in COLUMNS if one.title == sort), None)
    if column is None:
        return rows
    return sorted(rows, key=lambda row: -(column.value(row.figures) or 0.0))
