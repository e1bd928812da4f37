"""Estimated cost of a queued job in a typical batch: the seconds that backlogs and admission are counted in."""

import math
from collections.abc import Sequence

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.policies.order import Draft
from penstock.scheduler.policies.partition import Caps
from penstock.scheduler.types import Job

# Of an SLO, for a batch: one may be running, one prepared, and the job's own still ends in time, with a quarter left
# for delays before and after, and for prediction errors.
BATCH_SHARE = 1 / 4
LATENESS_SHARE = 1 / 8  # of an SLO, at most, for batches that end later than predicted

_MEMORY = 1024  # jobs from which the typical mix is known


class WorkEstimator:
    """Seconds a token in a full batch of recent jobs, times planned over estimated seconds of the last full plan.

    The ratio covers what one typical batch leaves out: padding, and batches that do not come out even.
    """

    def __init__(self, cost: CostFunction, caps: Caps, *, slo_s: float) -> None:
        self._cost = cost
        self._caps = caps
        self._slo_s = slo_s
        self._count = self._tokens = self._squares = 0.0  # of the jobs remembered
        self._full_token_s = 0.0  # a token in a full batch
        self._ratio = 1.0  # planned over estimated seconds
        self._knows_ratio = False
        self.full_s = 0.0  # a full batch
        self.token_s = 0.0  # lane seconds that a token adds
        self.launch_s = 0.0  # a batch's seconds beyond its tokens'
        self.small_s = 0.0  # the shortest batch

    def observe(self, jobs: Sequence[Job]) -> None:
        """Count arriving jobs into the typical mix."""
        if self._count > _MEMORY:
            self._count, self._tokens, self._squares = self._count / 2, self._tokens / 2, self._squares / 2
        self._count += len(jobs)
        self._tokens += sum([job.num_tokens for job in jobs])
        self._squares += sum([job.num_tokens * job.num_tokens for job in jobs])
        if not self._full_token_s:
            self._update()

    def learn(self, drafts: Sequence[Draft], *, are_full: bool) -> None:
        """Compare a plan with its estimate. Underfull batches only lower the ratio.

        Otherwise a ratio that is too high would reject so many jobs that no batch is ever full again.
        """
        if drafts and self._full_token_s > 0:
            tokens = sum([job.num_tokens for draft in drafts for job in draft.jobs])
            ratio = sum([draft.seconds for draft in drafts]) / (tokens * self._full_token_s)
            self._knows_ratio = self._knows_ratio or are_full
            if are_full or (self._knows_ratio and ratio < self._ratio):
                self._ratio = ratio
        self._update()

    def longest_batch_s(self, slo_s: float) -> float:
        """Most seconds of a batch while this is the tightest SLO queued. One sequence may take longer."""
        return max(slo_s * BATCH_SHARE, self.small_s)

    def _update(self) -> None:
        """Estimate anew: the cost function learns, and the mix of jobs changes."""
        single = 1 / self._count
        full = max(single, min(self._caps.max_sequences / self._count, self._caps.max_tokens / self._tokens))
        full_s = self._typical_s(full)
        self.small_s = predicted_s(self._cost, 1, 1, 1, 1)
        max_seconds = self.longest_batch_s(self._slo_s)
        if full_s > max_seconds:
            full = max(single, full * max_seconds / full_s)
            full_s = self._typical_s(full)
        self.full_s, self._full_token_s = full_s, full_s / (self._tokens * full)
        self.token_s = self._full_token_s * self._ratio
        self.launch_s = max(0.0, self._typical_s(single) - self._tokens * single * self._full_token_s)

    def _typical_s(self, scale: float) -> float:
        """Seconds of a batch like the jobs remembered, `scale` times as many."""
        squares = self._squares * scale
        # The length of an average token's sequence, for the longest: the cost of padding is in the ratio.
        longest = self._squares / self._tokens
        return predicted_s(self._cost, self._tokens * scale, squares, longest, self._count * scale)


def predicted_s(cost: CostFunction, tokens: float, squares: float, longest: float, count: float) -> float:
    """Seconds of one batch. ValueError when the cost function gives no finite number, 0 or more."""
    seconds = float(cost.seconds(tokens, squares, longest, count))
    if not 0 <= seconds < math.inf:
        raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {seconds}")
    return seconds
