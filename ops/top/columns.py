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


class Readings(NamedTuple):
    """The latest samples of one member or several, and what they have counted in the last seconds."""

    members: Sequence[Values]
    counted: Counted | None

    def gauges(self, name: str) -> list[float]:
        """The values of a metric. None where no member has it."""
        return [value for one in self.members for key, value in one.items() if key.name == name]

    def rate(self, name: str, **labels: str) -> float:
        """Of a counter, a second; 0 before the second look."""
        return self.counted.rate(name, **labels) if self.counted is not None else 0.0


class Figure(NamedTuple):
    """A figure of the table."""

    title: str
    width: int
    rank: int  # the columns of the highest ranks are left out first where the terminal is narrow
    show: Callable[[float], str]
    value: Callable[[Readings], float | None]
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


def _counter(name: str) -> Callable[[Readings], float | None]:
    return lambda readings: readings.rate(name)


def _sum(name: str) -> Callable[[Readings], float | None]:
    return lambda readings: sum(found) if (found := readings.gauges(name)) else None


def _quantile(histogram: str, part: float, **labels: str) -> Callable[[Readings], float | None]:
    return lambda readings: (
        readings.counted.quantile(histogram, part, **labels) if readings.counted is not None else None
    )


def _sequences(readings: Readings) -> float:
    return sum(readings.rate("penstock_sequences_total", source=source) for source in ("engine", "cache"))


def _batch(readings: Readings) -> float | None:
    batches_s = readings.rate("penstock_batches_total")
    return readings.rate("penstock_sequences_total", source="engine") / batches_s if batches_s else None


def _cached(readings: Readings) -> float | None:
    sequences_s = _sequences(readings)
    return readings.rate("penstock_sequences_total", source="cache") / sequences_s if sequences_s else None


def _errors(readings: Readings) -> float:
    answered_s = readings.rate("penstock_requests_total", outcome="ok")
    return max(0.0, readings.rate("penstock_requests_total") - answered_s)


def _backlog(readings: Readings) -> float | None:
    return max(readings.gauges("penstock_backlog_seconds"), default=None)


_P50, _P99 = (_quantile("penstock_request_seconds", part, **{"class": "online"}) for part in (0.5, 0.99))
_DEAD_LETTERS, _RESTARTS = _sum("penstock_dead_letters_total"), _sum("penstock_worker_restarts_total")

COLUMNS = (
    Figure("req/s", 7, 0, _rate, _counter("penstock_requests_total")),
    Figure("seq/s", 7, 9, _rate, _sequences),
    Figure("tok/s", 9, 8, _short, _counter("penstock_tokens_total")),
    Figure("batch", 5, 10, _rate, _batch),
    Figure("p50", 7, 3, _time, _P50),
    Figure("p99", 7, 1, _time, _P99),
    Figure("queue", 6, 7, _rate, _sum("penstock_queued_sequences"), is_of_window=False),
    Figure("backlog", 7, 2, _time, _backlog, is_of_window=False),
    Figure("lag", 7, 4, _short, _sum("penstock_consumer_lag_records"), is_of_window=False),
    Figure("cache", 5, 11, _share, _cached),
    Figure("err/s", 6, 5, _rate, _errors, alarms=WARN),
    Figure("dead", 6, 12, _short, _DEAD_LETTERS, is_of_window=False, alarms=WARN),
    Figure(RESTARTS, 8, 6, _short, _RESTARTS, is_of_window=False, alarms=WARN),
    Figure("loop lag", 8, 13, _time, _quantile("penstock_event_loop_lag_seconds", 0.99)),
)


def figures(members: Sequence[Values], counted: Counted | None) -> Figures:
    """Of the latest samples of one or several members. Rates and quantiles are of the last seconds."""
    readings = Readings(members, counted)
    known = [one for one in COLUMNS if counted is not None or not one.is_of_window]
    return {column.title: column.value(readings) for column in known}
