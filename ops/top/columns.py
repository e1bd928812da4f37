"""The figures of a member, or of all together: a column of the screen is added here."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.ops.logs.lines.event import duration
from penstock.ops.logs.screens.tables import WARN
from penstock.ops.top.scrape import Values
from penstock.ops.top.window import Counted

_SHORTEST_S = 1e-6
RESTARTS = "restarts"

Figures = Mapping[str, float | None]  # by the name of the column; None: not known


class Figure(NamedTuple):
    """A figure of the table."""

    title: str
    width: int
    rank: int  # the columns of the highest ranks are left out first where the terminal is narrow
    show: Callable[[float], str]
    counted: Callable[[Counted], float | None] | None = None  # of the last seconds: known from the second look on
    latest: Callable[[Sequence[Values]], float | None] | None = None  # of the latest samples of one or several members
    alarms: str = ""  # the style of a value above zero


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.2g}"


def _short(value: float) -> str:
    return f"{value / 1e6:,.1f}M" if value >= 1e6 else _rate(value)


def _time(value: float) -> str:
    return duration(value if value >= _SHORTEST_S else 0.0)


def _share(value: float) -> str:
    return f"{value * 100:.0f} %"


def _counter(name: str) -> Callable[[Counted], float]:
    return lambda counted: counted.rate(name)


def _quantile(histogram: str, part: float, **labels: str) -> Callable[[Counted], float | None]:
    return lambda counted: counted.quantile(histogram, part, **labels)


def _gauge(name: str, together: Callable[[list[float]], float] = sum) -> Callable[[Sequence[Values]], float | None]:
    """Of several members together. None where no member has it."""

    def value(members: Sequence[Values]) -> float | None:
        found = [value for one in members for key, value in one.items() if key.name == name]
        return together(found) if found else None

    return value


def _sequences(counted: Counted) -> float:
    return sum(counted.rate("penstock_sequences_total", source=source) for source in ("engine", "cache"))


def _batch(counted: Counted) -> float | None:
    batches_s = counted.rate("penstock_batches_total")
    return counted.rate("penstock_sequences_total", source="engine") / batches_s if batches_s else None


def _cached(counted: Counted) -> float | None:
    sequences_s = _sequences(counted)
    return counted.rate("penstock_sequences_total", source="cache") / sequences_s if sequences_s else None


def _errors(counted: Counted) -> float:
    answered_s = counted.rate("penstock_requests_total", outcome="ok")
    return max(0.0, counted.rate("penstock_requests_total") - answered_s)


_P50, _P99 = (_quantile("penstock_request_seconds", part, **{"class": "online"}) for part in (0.5, 0.99))
_DEAD_LETTERS, _RESTARTS = _gauge("penstock_dead_letters_total"), _gauge("penstock_worker_restarts_total")

COLUMNS = (
    Figure("req/s", 7, 0, _rate, _counter("penstock_requests_total")),
    Figure("seq/s", 7, 9, _rate, _sequences),
    Figure("tok/s", 9, 8, _short, _counter("penstock_tokens_total")),
    Figure("batch", 5, 10, _rate, _batch),
    Figure("p50", 7, 3, _time, _P50),
    Figure("p99", 7, 1, _time, _P99),
    Figure("queue", 6, 7, _rate, latest=_gauge("penstock_queued_sequences")),
    Figure("backlog", 7, 2, _time, latest=_gauge("penstock_backlog_seconds", max)),
    Figure("lag", 7, 4, _short, latest=_gauge("penstock_consumer_lag_records")),
    Figure("cache", 5, 11, _share, _cached),
    Figure("err/s", 6, 5, _rate, _errors, alarms=WARN),
    Figure("dead", 6, 12, _short, latest=_DEAD_LETTERS, alarms=WARN),
    Figure(RESTARTS, 8, 6, _short, latest=_RESTARTS, alarms=WARN),
    Figure("loop lag", 8, 13, _time, _quantile("penstock_event_loop_lag_seconds", 0.99)),
)


def figures(members: Sequence[Values], counted: Counted | None) -> Figures:
    """Of the latest samples of one or several members, and of what they counted in the last seconds."""
    of_window = {one.title: one.counted(counted) for one in COLUMNS if one.counted is not None and counted is not None}
    return {**of_window, **{one.title: one.latest(members) for one in COLUMNS if one.latest is not None}}
