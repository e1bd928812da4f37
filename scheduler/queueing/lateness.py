"""How late answers are beyond predictions: host time, prediction errors, and the replies' way to the broker."""

import math
from collections import deque

_NUM_RECENT = 64  # batches that are remembered
_DECAY = 1 / 64  # of the replies' margin, with each reply that took less
_BLOCK = 8  # batches in a block, in whose mean chance delays cancel
_HIGH = 0.9  # quantile taken as a margin
_MAX_SHARE = 0.5  # of predicted time, for queued work: a longer delay is a stall, against which no margin helps


class LatenessTracker:
    """Margins of admission and planning, from recent batches. Not thread-safe.

    A single batch may be late by chance. Over the many batches that a request waits for, chance delays cancel. So the
    margin of queued work is a high quantile of the means of blocks of batches.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_NUM_RECENT)  # predicted seconds, lateness
        self._mean_s = 0.0  # high quantile of the blocks' means
        self.batch_s = 0.0  # high quantile of a batch's lateness
        self.usual_s = 0.0  # its median
        self.reply_s = 0.0  # from a batch's end to the broker's acknowledgement of its replies, at most but for a few
        self.slowdown = 1.0  # duration of a usual batch over its predicted duration

    def observe(self, predicted_s: float, late_s: float) -> None:
        """A batch ended `late_s` later than predicted; below 0: sooner. Times that are no numbers are ignored."""
        if not (-math.inf < late_s < math.inf and 0 <= predicted_s < math.inf):
            return
        self._recent.append((predicted_s, late_s))
        late = [late_s for _, late_s in self._recent]
        blocks = [late[begin : begin + _BLOCK] for begin in range(0, len(late), _BLOCK)]
        self._mean_s = _quantile([sum(block) / len(block) for block in blocks], _HIGH)
        self.usual_s, self.batch_s = _quantile(late, 0.5), _quantile(late, _HIGH)
        mean_predicted_s = sum([predicted_s for predicted_s, _ in self._recent]) / len(late)
        self.slowdown = 1 + (self.usual_s / mean_predicted_s if mean_predicted_s > 0 else 0.0)

    def observe_reply(self, seconds: float) -> None:
        """The broker acknowledged replies so long after the end of their batch."""
        self.reply_s = max(seconds, self.reply_s + _DECAY * (seconds - self.reply_s))

    def share(self, full_s: float) -> float:
        """Share of predicted time that queued work takes longer if it runs in batches of `full_s`."""
        return min(_MAX_SHARE, self._mean_s / full_s) if full_s > 0 else 0.0


def _quantile(values: list[float], share: float) -> float:
    """At least 0."""
    return max(0.0, sorted(values)[int(share * len(values))])
