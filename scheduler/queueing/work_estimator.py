"""What a job will cost among those it has not met yet: the seconds that backlogs and admission are counted in."""

import math
from collections.abc import Sequence

from penstock.scheduler.costs.cost import CostFunction
from penstock.scheduler.policies.order import Draft
from penstock.scheduler.policies.partition import Caps
from penstock.scheduler.types import Job

# Of an SLO, for a batch: one may be running, one prepared, and the own one still ends in time, with a quarter to spare
# for what comes before and after, and for wrong predictions.
BATCH_SHARE = 1 / 4
LAG_SHARE = 1 / 8  # of an SLO, at most, for batches that end later than predicted
_SMALL = 1.25  # a batch that takes no more than this times the least there is holds what runs almost for nothing

_MEMORY = 1024  # jobs from which the typical mix is known
_WEIGHT = 0.2  # of the latest plan, in what plans cost against their price


class Prices:
    """The price of a token in a full batch of the jobs that come these days, times what full plans really cost.

    The factor covers what the price of one typical batch leaves out: padding, and batches that do not come out even.
    """

    def __init__(self, cost: CostFunction, caps: Caps, *, slo_s: float) -> None:
        self._cost = cost
        self._caps = caps
        self._slo_s = slo_s
        self._count = self._tokens = self._squares = 0.0  # of the jobs remembered
        self._full_token_s = 0.0  # a token in a full batch
        self._pace: float | None = None  # seconds planned for each second priced
        self.full_s = 0.0  # a full batch
        self.token_s = 0.0  # what a token adds to the work of one lane
        self.launch_s = 0.0  # what a batch takes beyond its tokens
        self.small_s = 0.0  # a batch so short that making it shorter gains nothing

    def observe(self, jobs: Sequence[Job]) -> None:
        """Note what jobs come."""
        if self._count > _MEMORY:
            self._count, self._tokens, self._squares = self._count / 2, self._tokens / 2, self._squares / 2
        self._count += len(jobs)
        self._tokens += sum([job.num_tokens for job in jobs])
        self._squares += sum([job.num_tokens * job.num_tokens for job in jobs])
        if not self._full_token_s:
            self._look_up()

    def learn(self, drafts: Sequence[Draft], *, are_full: bool) -> None:
        """Note what was planned. Batches that could take no more say what backlogs cost; others, that it is less.

        Or a pace that is too high would refuse so much that no batch is ever full again.
        """
        if drafts and self._full_token_s > 0:
            tokens = sum([job.num_tokens for draft in drafts for job in draft.jobs])
            pace = sum([draft.seconds for draft in drafts]) / (tokens * self._full_token_s)
            if self._pace is None:
                self._pace = pace if are_full else None
            elif are_full or pace < self._pace:
                self._pace += _WEIGHT * (pace - self._pace)
        self._look_up()

    def longest_batch_s(self, slo_s: float) -> float:
        """Most seconds of a batch while jobs wait of which the tightest has this SLO. One sequence may take longer."""
        return max(slo_s * BATCH_SHARE, self.small_s)

    def _look_up(self) -> None:
        """Prices as of now: the cost function learns, and the jobs that come change."""
        single = 1 / self._count
        full = max(single, min(self._caps.max_sequences / self._count, self._caps.max_tokens / self._tokens))
        full_s = self._typical_s(full)
        self.small_s = _SMALL * price(self._cost, 1, 1, 1, 1)
        max_seconds = self.longest_batch_s(self._slo_s)
        if full_s > max_seconds:
            full = max(single, full * max_seconds / full_s)
            full_s = self._typical_s(full)
        self.full_s, self._full_token_s = full_s, full_s / (self._tokens * full)
        self.token_s = self._full_token_s * (1.0 if self._pace is None else self._pace)
        self.launch_s = max(0.0, self._typical_s(single) - self._tokens * single * self._full_token_s)

    def _typical_s(self, scale: float) -> float:
        """Seconds of a batch like the jobs remembered, `scale` times as many."""
        squares = self._squares * scale
        # The length that a token's sequence has on average, for the longest: what padding costs is learned.
        longest = self._squares / self._tokens
        return price(self._cost, self._tokens * scale, squares, longest, self._count * scale)


def price(cost: CostFunction, tokens: float, squares: float, longest: float, count: float) -> float:
    """Seconds of one batch. ValueError when the cost function gives what cannot be."""
    seconds = float(cost.seconds(tokens, squares, longest, count))
    if not 0 <= seconds < math.inf:
        raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {seconds}")
    return seconds
