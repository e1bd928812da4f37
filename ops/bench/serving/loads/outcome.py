"""The outcome of one run, real or simulated: every request's times, every batch, and the figures made from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.ops.bench.serving.loads.arrivals import Floats
from penstock.scheduler.types import Cause

SINCE = 0.3  # share of a run that is left out, until its state is steady


@dataclass(frozen=True, slots=True)
class Ran:
    """One batch as it was run."""

    started: float  # s since the run began
    count: int
    tokens: int
    predicted_s: float
    measured_s: float  # the device's time


@dataclass(frozen=True, slots=True)
class Outcome:
    """Arrays have one entry a request, bulk first, then in the order of arrival, in seconds since the run began."""

    arrival: Floats
    start: Floats  # of its batch; nan: not run
    finish: Floats  # nan: not answered with a result before the end of the run
    refused: Mapping[str, int]  # cause -> requests
    batches: tuple[Ran, ...] = ()
    scheduler_s: float = 0.0  # spent in the scheduler, for all requests together
    num_bulk: int = 0  # requests of the class bulk
    offered_s: float | None = None  # s during which requests were offered; None: to the last arrival

    @property
    def latency_s(self) -> Floats:
        """Latency of each online request; inf if it was rejected, or not answered before the end."""
        latency = self.finish - self.arrival
        return np.where(np.isnan(latency), np.inf, latency)[self.num_bulk :]

    @property
    def span_s(self) -> float:
        """Seconds during which requests were offered."""
        return float(self.arrival[-1]) if self.offered_s is None else self.offered_s

    @property
    def busy_s(self) -> float:
        """Lanes' time in batches, all lanes together."""
        return sum(batch.measured_s for batch in self.batches)

    def answered_per_s(self, since: float = 0.5) -> float:
        """Answers a second while requests arrived, without the first share `since` of that time."""
        begin, end = since * self.span_s, self.span_s
        return float(((self.finish > begin) & (self.finish <= end)).sum()) / (end - begin)

    def offered_per_s(self, since: float = 0.0) -> float:
        """Arrivals a second, without the first share `since` of the time."""
        begin = since * self.span_s
        return float((self.arrival > begin).sum()) / (self.span_s - begin)

    def goodput_per_s(self, slo_s: float, since: float = 0.0) -> float:
        """Online requests answered within `slo_s`, a second, of those that arrived after the first share `since`."""
        begin = since * self.span_s
        in_time = (self.latency_s <= slo_s) & (self.arrival[self.num_bulk :] >= begin)
        return float(in_time.sum()) / (self.span_s - begin)

    def in_time_of_accepted(self, slo_s: float) -> float:
        """Share of the admitted online requests that were answered within `slo_s`.

        A request rejected after it was admitted counts as not in time.
        """
        rejected = sum(self.refused.get(cause, 0) for cause in (Cause.OVERLOADED, Cause.ARRIVED_LATE))
        accepted = len(self.latency_s) - rejected
        return float((self.latency_s <= slo_s).sum()) / accepted if accepted else math.nan

    def percentile_s(self, percent: float) -> float:
        """Latency percentile of the online requests; without an answer it is infinite."""
        return float(np.percentile(self.latency_s, percent, method="higher"))

    def bulk_per_s(self) -> float:
        """Bulk requests answered a second while online ones came."""
        return float((self.finish[: self.num_bulk] <= self.span_s).sum()) / self.span_s

    def prediction_errors(self) -> list[float]:
        """|predicted / measured - 1| of each batch, predicted at the time of its plan."""
        return [abs(ran.predicted_s / ran.measured_s - 1) for ran in self.batches if ran.measured_s > 0]

    def keeps_up(self, slo_s: float) -> bool:
        """Whether responses keep up with arrivals and p99 is within the SLO. A rejection is a miss."""
        answered, offered = self.answered_per_s(0.5), self.offered_per_s(0.5)
        # Requests in flight at either end of this half make the two counts differ by chance.
        slack = 0.02 * offered + 1.5 * math.sqrt(offered / self.span_s)
        return self.percentile_s(99) <= slo_s and answered >= offered - slack

    def figures(self, slo_s: float, since: float = SINCE) -> dict[str, Any]:
        """All figures, as a kept run has them. Rates are those after the share `since` of the time."""
        sizes = [batch.count for batch in self.batches]
        return {
            "offered_per_s": self.offered_per_s(since),
            "answered_per_s": self.answered_per_s(since),
            "goodput_per_s": self.goodput_per_s(slo_s, since),
            "in_time_of_accepted": self.in_time_of_accepted(slo_s),
            "refused": dict(self.refused),
            "requests": len(self.latency_s),
            "latency_s": self.latency_summary_s(),
            "mean_batch": sum(sizes) / len(sizes) if sizes else 0.0,
            "scheduler_us": self.scheduler_s / len(self.arrival) * 1e6,
        }

    def latency_summary_s(self) -> dict[str, float]:
        """avg, min, max, p50 and p99; avg, min and max are of answered requests."""
        answered = self.latency_s[np.isfinite(self.latency_s)]
        avg, least, most = (answered.mean(), answered.min(), answered.max()) if len(answered) else (math.inf,) * 3
        found = {"avg": float(avg), "min": float(least), "max": float(most)}
        return {**found, "p50": self.percentile_s(50), "p99": self.percentile_s(99)}
