"""How much later batches end than was predicted: what the host adds to the device, and what predictions miss."""

import math
from collections import deque

_NUM_RECENT = 64  # batches that are remembered
_HIGH = 0.9  # quantile that promises are made with
_MOST = 0.5  # of predicted time, beyond it: more is a standstill, against which no promise is proof
_LEAST_HORIZON_S, _MOST_HORIZON_S = 0.02, 1.0


class Lag:
    """Margins, from batches as they ended. Not thread-safe.

    One batch is late by chance: results wait for the event loop, or the loop for them. Over the batches that a request
    waits for chances cancel, and what remains is time for which lanes were without work, or slower than predicted.
    """

    def __init__(self, horizon_s: float) -> None:
        """`horizon_s`: how long promises are for."""
        self._horizon_s = max(_LEAST_HORIZON_S, min(horizon_s, _MOST_HORIZON_S))
        self._window: deque[tuple[float, float]] = deque()  # (end, seconds late) within the horizon
        self._late_s: deque[float] = deque(maxlen=_NUM_RECENT)
        self._predicted_s: deque[float] = deque(maxlen=_NUM_RECENT)
        self._means_s: deque[float] = deque(maxlen=_NUM_RECENT)  # over the horizon, as each batch ended
        self._mean_s = 0.0  # of those, a high quantile
        self.batch_s = 0.0  # by which a batch may end later
        self.usual_s = 0.0  # by which half of the batches do
        self.slower = 1.0  # times as long as predicted, that batches usually take

    def observe(self, predicted_s: float, late_s: float, now: float) -> None:
        """A batch ended now, so much later than was predicted when a lane took it up; below 0: sooner."""
        if not (-math.inf < late_s < math.inf and 0 <= predicted_s < math.inf):
            return
        late_s = max(-self._horizon_s, min(self._horizon_s, late_s))
        self._window.append((now, late_s))
        while self._window[0][0] < now - self._horizon_s:
            self._window.popleft()
        self._late_s.append(late_s)
        self._predicted_s.append(predicted_s)
        self._means_s.append(sum([late for _, late in self._window]) / len(self._window))
        (self._mean_s,) = _quantiles(self._means_s, _HIGH)
        self.usual_s, self.batch_s = _quantiles(self._late_s, 0.5, _HIGH)
        (usual_predicted_s,) = _quantiles(self._predicted_s, 0.5)
        self.slower = 1 + (self.usual_s / usual_predicted_s if usual_predicted_s > 0 else 0.0)

    def share(self, full_s: float) -> float:
        """Of predicted time, by which work that waits takes longer if it runs in batches of `full_s`."""
        return min(_MOST, self._mean_s / full_s) if full_s > 0 else 0.0


def _quantiles(values: deque[float], *shares: float) -> list[float]:
    """Each at least 0."""
    ordered = sorted(values)
    return [max(0.0, ordered[min(len(ordered) - 1, int(share * len(ordered)))]) for share in shares]
