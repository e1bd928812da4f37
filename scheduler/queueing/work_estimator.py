"""Estimates from the last plans and batches: the seconds that backlogs and admission are counted in, and margins."""

import math
from collections import deque
from collections.abc import Sequence

from penstock.scheduler.costs.cost import CostFunction, predicted_s
from penstock.scheduler.types import Caps, Job

BATCH_SHARE = 1 / 4  # of an SLO, for a batch: one runs, one is prepared, one is the job's, and delays have the rest
_NUM_RECENT = 64  # batches whose lateness is remembered
_BLOCK = 8  # batches in a block, in whose mean chance delays cancel
_HIGH = 0.9  # quantile of the lateness of one batch, taken as a margin
_MAX_SHARE = 0.5  # of predicted time, for queued work: a longer delay is a stall, against which no margin helps
_DECAY = 1 / 64  # of the replies' margin, with each reply that took less


class WorkEstimator:
    """Seconds a token in the last full plan, and how late batches end: host time and prediction errors.

    A plan covers what one typical batch leaves out: padding, and batches that do not come out even. Before the first
    full plan, a full batch like the first jobs counts. A plan of one short sequence is full if the next does not fit
    into its batch, and says little about others. So a plan counts by its seconds, as a share of the usual ones.

    A single batch may be late by chance, so its margin is a high quantile. Over the many batches that a request waits
    for, chance delays cancel: queued work is late as the median of the means of blocks of batches.
    """

    def __init__(self, cost: CostFunction, caps: Caps, slo_s: float) -> None:
        self._cost = cost
        self._caps = caps
        self.slo_s = slo_s  # of online jobs without a deadline; inf: they have none
        self.full_s = 0.0  # a full batch
        self.token_s = 0.0  # lane seconds that a token adds
        self.small_s = 0.0  # the shortest batch
        self._recent: deque[tuple[float, float]] = deque(maxlen=_NUM_RECENT)  # predicted seconds, lateness
        self._mean_late_s = 0.0  # median of the blocks' means
        self.high_late_s = 0.0  # high quantile of a batch's lateness
        self.usual_late_s = 0.0  # its median
        self.slowdown = 1.0  # duration of a usual batch over its predicted duration
        self.reply_s = 0.0  # from a batch's end to the broker's acknowledgement of its replies, at most but for a few

    @property
    def late_share(self) -> float:
        """Seconds that queued work, which runs in full batches, takes beyond its prediction, as a share of that."""
        return min(_MAX_SHARE, self._mean_late_s / self.full_s) if self.full_s > 0 else 0.0

    def longest_batch_s(self, tightest_slo_s: float) -> float:
        """Most seconds of a batch of several jobs, so that a job that comes after its start can wait and still run."""
        return max(min(self.slo_s, tightest_slo_s) * BATCH_SHARE, self.small_s)

    def jobs_came(self, jobs: Sequence[Job]) -> None:
        """Estimate from at least one arriving job, until a full plan was made."""
        if self.token_s > 0:
            return
        lengths = [length for job in jobs for length in job.lengths]
        count, tokens, squares = len(lengths), sum(lengths), sum([length * length for length in lengths])
        times = max(1 / count, min(self._caps.max_sequences / count, self._caps.max_tokens / tokens))
        # The length of an average token's sequence, for the longest.
        full_s = predicted_s(self._cost, tokens * times, squares * times, squares / tokens, count * times)
        self.small_s = predicted_s(self._cost, 1, 1, 1, 1)
        self.token_s = full_s / (tokens * times)
        self.full_s = min(full_s, self.longest_batch_s(self.slo_s))

    def planned(self, tokens: int, batch_s: Sequence[float], *, are_full: bool) -> None:
        """Learn from a plan of at least one online batch. Underfull batches only lower the estimate.

        Otherwise an estimate that is too high would reject so many jobs that no batch is ever full again.
        """
        small_s = predicted_s(self._cost, 1, 1, 1, 1)
        if self.small_s > 0:  # the cost function has learned: it predicts all batches by this factor longer
            self.token_s *= small_s / self.small_s
            self.full_s *= small_s / self.small_s
        self.small_s = small_s
        token_s, full_s = sum(batch_s) / tokens, sum(batch_s) / len(batch_s)
        if not are_full:
            self.token_s = min(token_s, self.token_s)
            return
        usual_s = min(self.full_s, self.longest_batch_s(self.slo_s))  # a sequence alone may take longer than a batch
        share = min(1.0, full_s / usual_s) if usual_s > 0 else 1.0
        self.token_s += share * (token_s - self.token_s)
        self.full_s += share * (full_s - self.full_s)

    def ended(self, predicted_s: float, late_s: float) -> None:
        """Record that a batch ended `late_s` later than predicted; below 0: sooner. Times of NaN are ignored."""
        if not (-math.inf < late_s < math.inf and 0 <= predicted_s < math.inf):
            return
        self._recent.append((predicted_s, late_s))
        late = [late_s for _, late_s in self._recent]
        blocks = [late[begin : begin + _BLOCK] for begin in range(0, len(late), _BLOCK)]
        self._mean_late_s = _quantile([sum(block) / len(block) for block in blocks], 0.5)
        self.usual_late_s, self.high_late_s = _quantile(late, 0.5), _quantile(late, _HIGH)
        mean_predicted_s = sum([predicted_s for predicted_s, _ in self._recent]) / len(late)
        self.slowdown = 1 + (self.usual_late_s / mean_predicted_s if mean_predicted_s > 0 else 0.0)

    def replied(self, seconds: float) -> None:
        """Record how long after the end of their batch the broker acknowledged replies."""
        self.reply_s = max(seconds, self.reply_s + _DECAY * (seconds - self.reply_s))


def _quantile(values: list[float], share: float) -> float:
    """At least 0."""
    return max(0.0, sorted(values)[int(share * len(values))])
