"""Estimated cost of a queued job in a typical batch: the seconds that backlogs and admission are counted in."""

from collections.abc import Sequence

from penstock.scheduler.costs.cost import CostFunction, predicted_s
from penstock.scheduler.policies.partition import Caps
from penstock.scheduler.types import Job

# Of an SLO, for a batch: one may be running, one prepared, and the job's own still ends in time, with a quarter left
# for delays before and after, and for prediction errors.
BATCH_SHARE = 1 / 4


class WorkEstimator:
    """Seconds a token in the last full plan; before the first, in a full batch like the first jobs.

    A plan covers what one typical batch leaves out: padding, and batches that do not come out even.
    """

    def __init__(self, cost: CostFunction, caps: Caps, slo_s: float) -> None:
        self._cost = cost
        self._caps = caps
        self._slo_s = slo_s
        self._knows_plans = False
        self.full_s = 0.0  # a full batch
        self.token_s = 0.0  # lane seconds that a token adds
        self.small_s = 0.0  # the shortest batch

    def observe(self, jobs: Sequence[Job]) -> None:
        """Estimate from arriving jobs, at least one, while nothing better is known."""
        if self.token_s > 0:
            return
        count, tokens = len(jobs), sum([job.num_tokens for job in jobs])
        squares = sum([job.num_tokens * job.num_tokens for job in jobs])
        times = max(1 / count, min(self._caps.max_sequences / count, self._caps.max_tokens / tokens))
        # The length of an average token's sequence, for the longest.
        full_s = predicted_s(self._cost, tokens * times, squares * times, squares / tokens, count * times)
        self.small_s = predicted_s(self._cost, 1, 1, 1, 1)
        self.token_s = full_s / (tokens * times)
        self.full_s = min(full_s, self.longest_batch_s(self._slo_s))

    def learn(self, tokens: int, batch_s: Sequence[float], *, are_full: bool) -> None:
        """A plan of online batches, at least one, was made. Underfull batches only lower the estimate.

        Otherwise an estimate that is too high would reject so many jobs that no batch is ever full again.
        """
        small_s = predicted_s(self._cost, 1, 1, 1, 1)
        if self.small_s > 0:  # the cost function has learned: it predicts all batches by this factor longer
            self.token_s *= small_s / self.small_s
            self.full_s *= small_s / self.small_s
        self.small_s = small_s
        token_s = sum(batch_s) / tokens
        self._knows_plans = self._knows_plans or are_full
        if are_full or (self._knows_plans and token_s < self.token_s):
            self.token_s = token_s
        if are_full:
            self.full_s = sum(batch_s) / len(batch_s)

    def longest_batch_s(self, tightest_slo_s: float) -> float:
        """Most seconds of a batch now: a job that comes just after its start must be able to wait for it and run.

        One sequence may take longer.
        """
        return max(min(self._slo_s, tightest_slo_s) * BATCH_SHARE, self.small_s)
