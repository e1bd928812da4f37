"""How much later batches end than was predicted: what the host adds to the device, and what predictions miss."""

import math
from collections import deque

_NUM_RECENT = 64  # batches that are remembered
_HIGH = 0.9  # quantile that promises are made with
_MOST = 0.5  # of predicted time, beyond it: more is a standstill, against which no promise is proof
_LEAST_HORIZON_S = 0.02


class Lag:
    """Two margins, from batches as they ended. Not thread-safe.

    One batch is late by chance: results wait for the event loop, or the loop for them. Over many the chances cancel,
    and what remains is a share of the time for which the lanes were without work, or slower than predicted.
    """

    def __init__(self, num_lanes: int, horizon_s: float) -> None:
        """`horizon_s`: how long promises are for."""
        self._num_lanes = num_lanes
        self._horizon_s = max(_LEAST_HORIZON_S, min(horizon_s, 1.0))
        self._late_s: deque[float] = deque(maxlen=_NUM_RECENT)
        self._shares: deque[float] = deque(maxlen=_NUM_RECENT)
        self._window: deque[tuple[float, float]] = deque()  # (end, seconds late) within the horizon
        self.share = 0.0  # of predicted time, for which work that waits will take longer
        self.batch_s = 0.0  # by which a batch may end later
        self.usual_s = 0.0  # by which half of the batches do

    def observe(self, late_s: float, now: float) -> None:
        """A batch ended now, so much later than was predicted when a lane took it up; below 0: sooner."""
        if not -math.inf < late_s < math.inf:
            return
        late_s = min(late_s, self._horizon_s)
        self._window.append((now, late_s))
        while self._window[0][0] < now - self._horizon_s:
            self._window.popleft()
        self._late_s.append(late_s)
        total_s = sum([late for _, late in self._window])
        self._shares.append(total_s / self._num_lanes / self._horizon_s)
        self.share = min(_MOST, max(0.0, _quantile(self._shares, _HIGH)))
        self.batch_s = max(0.0, _quantile(self._late_s, _HIGH))
        self.usual_s = max(0.0, _quantile(self._late_s, 0.5))


def _quantile(values: deque[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
