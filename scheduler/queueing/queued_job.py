"""One job in the queue, and the bounds over several that triggers and caps depend on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[float, ...]


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A queued job. Its times are the scheduler's steady time."""

    id: int
    num_tokens: int
    bulk: bool
    arrival: float
    deadline: float  # inf: none
    key: Key  # place in the queue, unique
    work_s: float  # estimated seconds for which it keeps the lanes busy, all of them together
    latest_begin: float  # the moment by which the work ahead of it must be done; inf: no deadline


class Bounds(NamedTuple):
    """Extremes over jobs. Of none: 0 and infinities."""

    longest: int  # tokens
    oldest_arrival: float
    half_slo_at: float  # earliest moment at which a job has used half the time its deadline gave it
    tightest_slo_s: float  # least deadline - arrival

    @classmethod
    def of(cls, jobs: Sequence[QueuedJob]) -> "Bounds":
        """The bounds over these jobs."""
        slos_s = [job.deadline - job.arrival for job in jobs]
        return cls(
            max([job.num_tokens for job in jobs], default=0),
            min([job.arrival for job in jobs], default=math.inf),
            min([job.arrival + slo_s / 2 for job, slo_s in zip(jobs, slos_s, strict=True)], default=math.inf),
            min(slos_s, default=math.inf),
        )

    def widened_by(self, job: QueuedJob) -> "Bounds":
        """The bounds over one job more."""
        slo_s = job.deadline - job.arrival
        return Bounds(
            max(self.longest, job.num_tokens),
            min(self.oldest_arrival, job.arrival),
            min(self.half_slo_at, job.arrival + slo_s / 2),
            min(self.tightest_slo_s, slo_s),
        )
