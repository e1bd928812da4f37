"""How much waits and how well it is predicted: gauges once a second, and a log event every ten while there is work."""

import math
from collections import Counter
from collections.abc import Callable

import structlog

from penstock.scheduler import Cause, LearnedCost, Scheduler
from penstock.worker.requests.record import InFlight
from penstock.worker.telemetry.metrics import Metrics

TICK_S = 1.0
_LOG_EVERY_S = 10.0

PREDICTED_WRONG = "predicted_wrong"  # beside the causes of refusal: a batch for it was answered after its deadline
_MISSES = (Cause.ARRIVED_LATE, Cause.QUEUED, PREDICTED_WRONG)

log = structlog.get_logger("penstock.load")


class Load:
    """What the worker tells of its load. Called on the worker's event loop only."""

    def __init__(
        self, scheduler: Scheduler, cost: LearnedCost, metrics: Metrics, *, busy_s: Callable[[], float]
    ) -> None:
        """`busy_s`: predicted seconds until the lanes have worked off what has been planned."""
        self._scheduler = scheduler
        self._cost = cost
        self._metrics = metrics
        self._busy_s = busy_s
        self._since_logged: Counter[str] = Counter()
        self._logged_at = -math.inf

    def batch_done(self) -> None:
        """A batch ran."""
        self._since_logged["batches"] += 1

    def missed(self, cause: str) -> None:
        """A record missed its deadline, or was refused for it: a `Cause`, or PREDICTED_WRONG."""
        self._since_logged[cause] += 1
        if cause == Cause.OVERLOADED:
            self._metrics.overload_refusals.inc()
        else:
            self._metrics.deadline_misses.labels(cause).inc()

    def tick(self, now: float) -> None:
        """Called every TICK_S; `now` is monotonic, in seconds."""
        backlog_s = self._busy_s() + self._scheduler.backlog_s
        p50, p95 = self._cost.errors()
        self._metrics.show_load(backlog_s, p50, p95)
        is_working = self._scheduler.num_queued or self._since_logged
        if not is_working or now - self._logged_at < _LOG_EVERY_S:
            return
        since, self._since_logged, self._logged_at = self._since_logged, Counter(), now
        log.info(
            "worker_load",
            queued_sequences=self._scheduler.num_queued,
            queued_tokens=self._scheduler.queued_tokens,
            backlog_s=round(backlog_s, 4),
            prediction_error_p50=_rounded(p50),
            prediction_error_p95=_rounded(p95),
            batches=since["batches"],
            overloaded=since[Cause.OVERLOADED],
            missed={str(cause): since[cause] for cause in _MISSES},
        )


def why_late(owner: InFlight) -> str:
    """The cause of a record's answer that came after its deadline.

    Of one that came wholly from the cache, or from what others had asked for, nothing was predicted.
    """
    return PREDICTED_WRONG if owner.job_ids else Cause.QUEUED


def _rounded(error: float) -> float | None:
    """None before the first batch."""
    return None if math.isnan(error) else round(error, 4)
