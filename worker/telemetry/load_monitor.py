"""Counts answers, rejections and batches; shows load once a second, and logs it every ten seconds under work."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from penstock.producer.errors import PenstockError
from penstock.scheduler import Cause
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.stage import StageLoad
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.deadline_errors import cause_of
from penstock.worker.requests.request import PendingRequest
from penstock.worker.telemetry.metrics import Metrics
from penstock.worker.telemetry.request_samples import RequestSamples

_TICK_S = 1.0
_LOG_EVERY_S = 10.0
# Batches that are logged: a line costs as much as a tenth of the worker's whole work on a small batch.
_BATCHES_A_TICK = 20
_BATCHES_AFTER_REST = 100
_PREDICTED_WRONG = "predicted_wrong"  # beside the causes of rejection: answered after its deadline
_MISSES = (Cause.ARRIVED_LATE, Cause.QUEUED, _PREDICTED_WRONG)

log = structlog.get_logger("penstock.load_monitor")


class LoadMonitor:
    """Called on the worker's event loop only; times are monotonic seconds."""

    def __init__(
        self,
        load: StageLoad,
        metrics: Metrics,
        *,
        lag: Callable[[], Mapping[Source, int]],
        dead_letters: Mapping[str, int],
    ) -> None:
        """`lag`: records that are not finished, by partition. `dead_letters`: how many so far, by outcome."""
        self._load = load
        self._metrics = metrics
        self._since_logged: Counter[str] = Counter()
        self._logged_at = -math.inf
        self._batches_to_log = _BATCHES_AFTER_REST
        self._read_lag = lag
        self._lag: Mapping[tuple[str, ...], float] = {}
        metrics.show("penstock_consumer_lag_records", lambda: self._lag)
        metrics.show("penstock_dead_letters_total", lambda: {(outcome,): n for outcome, n in dead_letters.items()})
        self._samples = RequestSamples()
        self._totals_logged: Counter[str] = Counter()
        self._latencies_logged: Counter[str] = Counter()
        self._routes_logged: Counter[tuple[str, str]] = Counter()

    def answered(self, requests: Sequence[PendingRequest], stats: BatchStats | None, now: float) -> None:
        """Note requests that are answered with their results; they are finished once the broker has their replies.

        `stats`: None where the cache had the last of their results.
        """
        if not requests:
            return
        self._since_logged["answered"] += len(requests)
        latencies = Counter([(now - request.times.arrived, request.bulk) for request in requests])
        for (seconds, bulk), count in latencies.items():  # many requests arrived together
            self._metrics.latency.observe(seconds, count, bulk=bulk)
        slowest_online_s = max([seconds for seconds, bulk in latencies if not bulk], default=-1.0)
        self._samples.offer(requests, slowest_online_s, stats, now)
        late = [request for request in requests if request.deadline is not None and now > request.deadline]
        if not late:
            return
        # Nothing was predicted of a request without jobs: its results came from the cache.
        for cause, count in Counter([_PREDICTED_WRONG if one.flights else Cause.QUEUED for one in late]).items():
            self._missed(cause, count)

    def rejected(self, errors: Sequence[PenstockError]) -> None:
        """Count records that are answered with an error."""
        self._since_logged["rejected"] += len(errors)
        for (code, cause), count in Counter([(error.code, cause_of(error)) for error in errors]).items():
            self._metrics.count(code, count)
            if cause is Cause.OVERLOADED:
                self._since_logged[cause] += count
                self._metrics.overload_refusals.inc(count)
            elif cause is not None:
                self._missed(cause, count)

    def batch_done(self, stats: BatchStats) -> None:
        """Count a batch that ran, and log it if not too many were lately."""
        self._since_logged["batches"] += 1
        self._metrics.observe_batch(stats)
        if self._batches_to_log:
            self._batches_to_log -= 1
            _log(stats)

    async def run(self) -> None:
        """Call `tick` once a second, until cancelled."""
        while True:
            due = time.monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self._metrics.event_loop_lag.observe(max(0.0, now - due))
            self.tick(now)

    def tick(self, now: float) -> None:
        """Show the load, and log it if there was work and the last log is old enough."""
        self._batches_to_log = min(self._batches_to_log + _BATCHES_A_TICK, _BATCHES_AFTER_REST)
        self._samples.log(now)
        self._metrics.show_load(self._load.backlog_s(now), *self._load.errors())
        self._lag = {(topic, str(partition)): lag for (topic, partition), lag in self._read_lag().items()}
        if (self._load.num_queued or self._has_counted()) and now - self._logged_at >= _LOG_EVERY_S:
            self._log_load(now)

    def log_rest(self, now: float) -> None:
        """Log what has been counted since the last log, when the worker ends."""
        self._samples.log(now)
        if self._has_counted():
            self._log_load(now)

    def _has_counted(self) -> bool:
        """Since the last log. The broker may acknowledge a reply when no other work is left."""
        return bool(self._since_logged) or Counter(self._metrics.totals()) != self._totals_logged

    def _log_load(self, now: float) -> None:
        load, (p50, p95) = self._load, self._load.errors()
        since, self._since_logged, self._logged_at = self._since_logged, Counter(), now
        log.info(
            "worker_load",
            queued_sequences=load.num_queued,
            queued_tokens=load.queued_tokens,
            backlog_s=round(load.backlog_s(now), 4),
            prediction_error_p50=_rounded(p50),
            prediction_error_p95=_rounded(p95),
            batches=since["batches"],
            **self._counted(),
            overloaded=since[Cause.OVERLOADED],
            missed={str(cause): since[cause] for cause in _MISSES},
        )

    def _counted(self) -> dict[str, Any]:
        """Counts since the last log, and the number of online requests by the bound of their latency in seconds."""
        totals, latencies = Counter(self._metrics.totals()), Counter(self._metrics.latency.counts())
        counted, latency = totals - self._totals_logged, latencies - self._latencies_logged
        self._totals_logged, self._latencies_logged = totals, latencies
        return {
            "answered": int(counted.pop("ok", 0)),
            **{name: int(counted.pop(name, 0)) for name in ("sequences", "cached", "tokens", "padded_tokens")},
            "device_s": round(counted.pop("device_s", 0.0), 6),
            "rejected": {code: int(count) for code, count in counted.items()},
            "latency_le_s": dict(latency),
            "routes": self._routes_counted(),
        }

    def _routes_counted(self) -> dict[str, dict[str, int]]:
        """Finished records since the last log, by input topic and outcome."""
        totals = Counter(self._metrics.route_totals())
        counted, self._routes_logged = totals - self._routes_logged, totals
        routes: dict[str, dict[str, int]] = {}
        for (topic, outcome), records in counted.items():
            routes.setdefault(topic, {})[outcome] = int(records)
        return routes

    def _missed(self, cause: str, count: int) -> None:
        self._since_logged[cause] += count
        self._metrics.deadline_misses.labels(cause).inc(count)


def _log(stats: BatchStats) -> None:
    log.info(
        "batch_done",
        batch=stats.number,
        trigger=stats.trigger,
        partition=stats.partition,
        dp_gain=round(stats.dp_gain, 4),
        sequences=stats.sums.count,
        tokens=stats.sums.tokens,
        max_seqlen=stats.sums.longest,
        padding_avoided=round(stats.padding_avoided, 4),
        predicted_s=round(stats.predicted_s, 6),
        device_s=round(stats.device_s, 6),
    )


def _rounded(error: float) -> float | None:
    """None before the first batch."""
    return None if math.isnan(error) else round(error, 4)
