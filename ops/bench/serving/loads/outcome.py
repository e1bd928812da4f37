"""The outcome of one run, real or simulated: every request's times, every batch, and the figures made from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.ops.bench.serving.loads.arrivals import Floats
from penstock.scheduler.types import Cause


@dataclass(frozen=True, slots=True)
class Ran:
    """One batch as it was run."""

    started: float  # s since the run began
    finished: float  # when the scheduler learned of it: device time plus host time before and after
    count: int
    tokens: int
    squares: int  # sum of the squared lengths
    longest: int
    predicted_s: float
    measured_s: float  # the device's time
    trigger: str
    partition: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Arrays have one entry a request, bulk first, then in the order of arrival, in seconds since the run began."""

    arrival: Floats
    start: Floats  # of its batch; nan: not run
    finish: Floats  # nan: not answered with a result before the end of the run
    refused: Mapping[str, int]  # cause -> requests
    batches: tuple[Ran, ...]  # empty where they were not kept
    scheduler_s: float  # spent in the scheduler, for all requests together
    num_bulk: int = 0  # requests of the class bulk
    busy_s: float = 0.0  # lanes' time in batches, all lanes together
    offered_s: float | None = None  # s during which requests were offered; None: to the last arrival

    @property
    def num_requests(self) -> int:
        return len(self.arrival)

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
    def num_refused(self) -> int:
        return sum(self.refused.values())

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
        return float(((self.latency_s <= slo_s) & (self.arrival[self.num_bulk :] >= begin)).sum()) / (
            self.span_s - begin
        )

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

    def latency_summary_s(self) -> dict[str, float]:
        """avg, min, max, p50 and p99; avg, min and max are of answered requests."""
        latency = self.latency_s
        answered = latency[np.isfinite(latency)]
        nothing = len(answered) == 0
        return {
            "avg": math.inf if nothing else float(answered.mean()),
            "min": math.inf if nothing else float(answered.min()),
            "max": math.inf if nothing else float(answered.max()),
            "p50": self.percentile_s(50),
            "p99": self.percentile_s(99),
        }

    def prediction_errors(self) -> list[float]:
        """|predicted / measured - 1| of each batch, predicted at the time of its plan."""
        return [abs(ran.predicted_s / ran.measured_s - 1) for ran in self.batches if ran.measured_s > 0]

    def padding(self) -> float:
        """Share of the tokens of padded batches that are padding."""
        padded = sum(batch.count * batch.longest for batch in self.batches)
        return 1 - sum(batch.tokens for batch in self.batches) / padded if padded else 0.0

    def scheduler_us(self) -> float:
        """Scheduler time in microseconds a request."""
        return self.scheduler_s / self.num_requests * 1e6

    def mean_batch(self) -> float:
        """Mean number of sequences in a batch."""
        return sum(batch.count for batch in self.batches) / len(self.batches) if self.batches else 0.0

    def keeps_up(self, slo_s: float) -> bool:
        """Whether responses keep up with arrivals and p99 is within the SLO. A rejection is a miss."""
        answered, offered = self.answered_per_s(0.5), self.offered_per_s(0.5)
        # Requests in flight at either end of this half make the two counts differ by chance.
        slack = 0.02 * offered + 1.5 * math.sqrt(offered / self.span_s)
        return self.percentile_s(99) <= slo_s and answered >= offered - slack


def p50_p95(errors: Sequence[float]) -> tuple[float, float]:
    """Mean; NaN of no values."""
    if not errors:
        return math.nan, math.nan
    p50, p95 = np.percentile(errors, (50, 95)).tolist()
    return p50, p95
