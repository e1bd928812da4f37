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


class Metrics(NamedTuple):
    """The latest samples of one member or several, and what they have counted in the last seconds."""

    members: Sequence[Values]
    counted: Counted | None

    def gauges(self, name: str) -> list[float]:
        """The values of a metric. None where no member has it."""
        return [value for one in self.members for key, value in one.items() if key.name == name]

    def rate(self, name: str, **labels: str) -> float:
        """Of a counter, a second; 0 before the second look."""
        return self.counted.rate(name, **labels) if self.counted is not None else 0.0


class Column(NamedTuple):
    """A figure of the table."""

    title: str
    width: int
    rank: int  # the columns of the highest ranks are left out first where the terminal is narrow
    show: Callable[[float], str]
    value: Callable[[Metrics], float | None]
    is_of_window: bool = True  # not known before the second look
    alarms: str = ""  # the style of a value above zero


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.2g}"


def _short(value: float) -> str:
    return f"{value / 1e6:,.1f}M" if value >= 1e6 else _rate(value)


def _time(value: float) -> str:
    return duration(value if value >= _SHORTEST_S else 0.0)


def _share(value: float) -> str:
    return f"{value * 100:.0f} %"


def _counter(name: str) -> Callable[[Metrics], float | None]:
    return lambda metrics: metrics.rate(name)


def _sum(name: str) -> Callable[[Metrics], float | None]:
    return lambda metrics: sum(found) if (found := metrics.gauges(name)) else None


def _quantile(histogram: str, part: float, **labels: str) -> Callable[[Metrics], float | None]:
    return lambda metrics: metrics.counted.quantile(histogram, part, **labels) if metrics.counted is not None else None


def _sequences(metrics: Metrics) -> float:
    return sum(metrics.rate("penstock_sequences_total", source=source) for source in ("engine", "cache"))


def _batch(metrics: Metrics) -> float | None:
    batches_s = metrics.rate("penstock_batches_total")
    return metrics.rate("penstock_sequences_total", source="engine") / batches_s if batches_s else None


def _cached(metrics: Metrics) -> float | None:
    sequences_s = _sequences(metrics)
    return metrics.rate("penstock_sequences_total", source="cache") / sequences_s if sequences_s else None


def _errors(metrics: Metrics) -> float:
    answered_s = metrics.rate("penstock_requests_total", outcome="ok")
    return max(0.0, metrics.rate("penstock_requests_total") - answered_s)


def _backlog(metrics: Metrics) -> float | None:
    return max(metrics.gauges("penstock_backlog_seconds"), default=None)


_P50, _P99 = (_quantile("penstock_request_seconds", part, **{"class": "online"}) for part in (0.5, 0.99))
_DEAD_LETTERS, _RESTARTS = _sum("penstock_dead_letters_total"), _sum("penstock_worker_restarts_total")

COLUMNS = (
    Column("req/s", 7, 0, _rate, _counter("penstock_requests_total")),
    Column("seq/s", 7, 9, _rate, _sequences),
    Column("tok/s", 9, 8, _short, _counter("penstock_tokens_total")),
    Column("batch", 5, 10, _rate, _batch),
    Column("p50", 7, 3, _time, _P50),
    Column("p99", 7, 1, _time, _P99),
    Column("queue", 6, 7, _rate, _sum("penstock_queued_sequences"), is_of_window=False),
    Column("backlog", 7, 2, _time, _backlog, is_of_window=False),
    Column("lag", 7, 4, _short, _sum("penstock_consumer_lag_records"), is_of_window=False),
    Column("cache", 5, 11, _share, _cached),
    Column("err/s", 6, 5, _rate, _errors, alarms=WARN),
    Column("dead", 6, 12, _short, _DEAD_LETTERS, is_of_window=False, alarms=WARN),
    Column(RESTARTS, 8, 6, _short, _RESTARTS, is_of_window=False, alarms=WARN),
    Column("loop lag", 8, 13, _time, _quantile("penstock_event_loop_lag_seconds", 0.99)),
)


def figures(members: Sequence[Values], counted: Counted | None) -> Figures:
    """Of the latest samples of one or several members. Rates and quantiles are of the last seconds."""
    metrics = Metrics(members, counted)
    known = [one for one in COLUMNS if counted is not None or not one.is_of_window]
    return {column.title: column.value(metrics) for column in known}
