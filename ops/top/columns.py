"""The figures of a member, or of all together: a column of the screen is added here."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.ops.logs.screens.tables import WARN, is_known
from penstock.ops.logs.text import duration, two_digits
from penstock.ops.logs.totals.histogram import bucket_percentile
from penstock.ops.top.scrape import SampleKey, Values

_SHORTEST_S = 1e-6
RESTARTS = "restarts"

Members = Sequence[Values]  # the samples of one or several members
Figures = Mapping[str, float]  # by the name of the column; those that are known


class Figure(NamedTuple):
    """A figure of the table."""

    title: str
    width: int
    rank: int  # the columns of the highest ranks are left out first where the terminal is narrow
    show: Callable[[float], str]
    value: Callable[[Members], float | None]  # None or NaN: not known
    is_rate: bool = True  # of what was counted in a second, which is known from the second look on; else of the latest
    alarms: str = ""  # the style of a value above zero


def figures(latest: Members, rates: Members, columns: Sequence[Figure]) -> Figures:
    """Of the latest samples of one or several members, and of what they have lately counted in a second."""
    found = {one.title: one.value(rates if one.is_rate else latest) for one in columns if rates or not one.is_rate}
    return {title: value for title, value in found.items() if value is not None and is_known(value)}


def _short(value: float) -> str:
    return f"{value / 1e6:,.1f}M" if value >= 1e6 else two_digits(value)


def _time(value: float) -> str:
    return duration(value if value >= _SHORTEST_S else 0.0)


def _share(value: float) -> str:
    return f"{value * 100:.0f} %"


def _series(members: Members, name: str, **labels: str) -> list[tuple[SampleKey, float]]:
    """All series of a name that have these labels."""
    wanted = set(labels.items())
    every = (item for one in members for item in one.items())
    return [(key, value) for key, value in every if key.name == name and wanted <= set(key.labels)]


def _sum(name: str, **labels: str) -> Callable[[Members], float]:
    return lambda members: sum(value for _, value in _series(members, name, **labels))


def _ratio(part: Callable[[Members], float], whole: Callable[[Members], float]) -> Callable[[Members], float | None]:
    return lambda members: part(members) / value if (value := whole(members)) else None


def _gauge(name: str, together: Callable[[list[float]], float] = sum) -> Callable[[Members], float | None]:
    """Of several members together. None where no member has it."""
    return lambda members: together(found) if (found := [value for _, value in _series(members, name)]) else None


def _quantile(histogram: str, percent: float, **labels: str) -> Callable[[Members], float]:
    def value(members: Members) -> float:
        buckets: defaultdict[float, float] = defaultdict(float)
        for key, count in _series(members, f"{histogram}_bucket", **labels):
            buckets[float(key.label("le"))] += count
        bounds = sorted(buckets)
        return bucket_percentile(bounds, np.diff([buckets[bound] for bound in bounds], prepend=0.0), percent)

    return value


def _errors(rates: Members) -> float:
    return max(0.0, _REQUESTS(rates) - _ANSWERED(rates))


_REQUESTS, _ANSWERED = _sum("penstock_requests_total"), _sum("penstock_requests_total", outcome="ok")
_SEQUENCES, _BATCHES = _sum("penstock_sequences_total"), _sum("penstock_batches_total")
_FROM_ENGINE, _FROM_CACHE = (_sum("penstock_sequences_total", source=source) for source in ("engine", "cache"))
_P50, _P99 = (_quantile("penstock_request_seconds", percent, **{"class": "online"}) for percent in (50, 99))
_DEAD_LETTERS, _RESTARTS = _gauge("penstock_dead_letters_total"), _gauge("penstock_worker_restarts_total")

COLUMNS = (
    Figure("req/s", 7, 0, two_digits, _REQUESTS),
    Figure("seq/s", 7, 9, two_digits, _SEQUENCES),
    Figure("tok/s", 9, 8, _short, _sum("penstock_tokens_total")),
    Figure("batch", 5, 10, two_digits, _ratio(_FROM_ENGINE, _BATCHES)),
    Figure("p50", 7, 3, _time, _P50),
    Figure("p99", 7, 1, _time, _P99),
    Figure("queue", 6, 7, two_digits, _gauge("penstock_queued_sequences"), is_rate=False),
    Figure("backlog", 7, 2, _time, _gauge("penstock_backlog_seconds", max), is_rate=False),
    Figure("lag", 7, 4, _short, _gauge("penstock_consumer_lag_records"), is_rate=False),
    Figure("cache", 5, 11, _share, _ratio(_FROM_CACHE, _SEQUENCES)),
    Figure("err/s", 6, 5, two_digits, _errors, alarms=WARN),
    Figure("dead", 6, 12, _short, _DEAD_LETTERS, is_rate=False, alarms=WARN),
    Figure(RESTARTS, 8, 6, _short, _RESTARTS, is_rate=False, alarms=WARN),
    Figure("loop lag", 8, 13, _time, _quantile("penstock_event_loop_lag_seconds", 99)),
)


def _failed(members: Members) -> float:
    return max(0.0, _sum(_ROUTE_RECORDS)(members) - sum(_sum(_ROUTE_RECORDS, outcome=one)(members) for one in _SENT))


_ROUTE_RECORDS, _SENT = "penstock_route_records_total", ("ok", "passed")

ROUTE_COLUMNS = (
    Figure("rec/s", 7, 0, two_digits, _sum(_ROUTE_RECORDS)),
    Figure("err/s", 6, 1, two_digits, _failed, alarms=WARN),
    Figure("failed", 7, 4, _short, _failed, is_rate=False, alarms=WARN),
    Figure("lag", 7, 2, _short, _sum("penstock_consumer_lag_records"), is_rate=False),
    Figure("age", 7, 3, _time, _gauge("penstock_route_age_seconds", max), is_rate=False),
)


def routes(latest: Members, rates: Members) -> Mapping[str, Figures]:
    """The figures of each route, by its input topic: of several members together."""
    found = {key.label("topic") for key, _ in _series(latest, _ROUTE_RECORDS)}
    return {topic: figures(_of(topic, latest), _of(topic, rates), ROUTE_COLUMNS) for topic in sorted(found)}


def _of(topic: str, members: Members) -> Members:
    """Their series that are of a topic."""
    return [{key: value for key, value in one.items() if key.label("topic") == topic} for one in members]
