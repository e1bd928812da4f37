"""The figures of a member, or of all together, from its gauges and from what it has counted."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.ops.top.scrape import Values
from penstock.ops.top.window import Counted

_LATENCY, _LOOP_LAG = "penstock_request_seconds", "penstock_event_loop_lag_seconds"


class Figures(NamedTuple):
    """None: not known. Rates and quantiles are of the last seconds."""

    requests_s: float | None = None
    sequences_s: float | None = None
    tokens_s: float | None = None
    batch_sequences: float | None = None  # the mean
    p50_s: float | None = None  # of online requests
    p99_s: float | None = None
    queued_sequences: float | None = None
    backlog_s: float | None = None  # of all together the greatest
    lag_records: float | None = None
    cache_share: float | None = None
    errors_s: float | None = None
    dead_letters: float | None = None  # since the start
    restarts: float | None = None
    loop_lag_s: float | None = None  # p99


def figures(members: Iterable[Values], counted: Counted | None) -> Figures:
    """Of the latest samples of one or several members."""
    values = list(members)
    return (_rates(counted) if counted is not None else Figures())._replace(
        queued_sequences=_total(values, "penstock_queued_sequences"),
        backlog_s=max((value for one in values for value in _found(one, "penstock_backlog_seconds")), default=None),
        lag_records=_total(values, "penstock_consumer_lag_records"),
        dead_letters=_total(values, "penstock_dead_letters_total"),
        restarts=_total(values, "penstock_worker_restarts_total"),
    )


def _rates(counted: Counted) -> Figures:
    requests_s = counted.rate("penstock_requests_total")
    engine_s = counted.rate("penstock_sequences_total", source="engine")
    cached_s = counted.rate("penstock_sequences_total", source="cache")
    batches_s = counted.rate("penstock_batches_total")
    sequences_s = engine_s + cached_s
    return Figures(
        requests_s=requests_s,
        sequences_s=sequences_s,
        tokens_s=counted.rate("penstock_tokens_total"),
        batch_sequences=engine_s / batches_s if batches_s else None,
        p50_s=counted.quantile(_LATENCY, 0.5, **{"class": "online"}),
        p99_s=counted.quantile(_LATENCY, 0.99, **{"class": "online"}),
        cache_share=cached_s / sequences_s if sequences_s else None,
        errors_s=max(0.0, requests_s - counted.rate("penstock_requests_total", outcome="ok")),
        loop_lag_s=counted.quantile(_LOOP_LAG, 0.99),
    )


def _total(members: Iterable[Values], name: str) -> float | None:
    """None where no member has the metric."""
    found = [value for one in members for value in _found(one, name)]
    return sum(found) if found else None


def _found(values: Values, name: str) -> list[float]:
    return [value for key, value in values.items() if key.name == name]
