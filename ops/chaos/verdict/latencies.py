"""How long requests waited for their first answers, by the moment they were sent."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from penstock.ops.chaos.load.asked import Asked

# What is promised.
MOST_RECOVERY_S = 15.0  # after SIGKILL of a member or of the supervisor: the session of Kafka's group, and 5 s
MOST_P99_S = 5.0  # while members are rolled

SLOW_S = 2.0  # an answer that takes longer was held up by a fault
_GAP_S = 1.0  # the last slow request so close to the cut-off may have been followed by others


class Recovery(NamedTuple):
    """How long after a fault the last slow request was sent, and whether slow requests had ended when it was cut off.

    A recovery that is not over took at least so long.
    """

    seconds: float
    is_over: bool


class Latencies:
    """Of all requests of a topic that got an answer in a reply topic. Times are Unix seconds, by the records."""

    def __init__(self, asked: Iterable[Asked], topic: str) -> None:
        online = [one for one in asked if one.replies and one.partition[0] == topic]
        sent_ms = np.array([one.timestamp for one in online], np.float64)
        answered_ms = np.array([min(reply.timestamp for reply in one.replies) for one in online], np.float64)
        order = np.argsort(sent_ms, kind="stable")
        self._sent = sent_ms[order] / 1e3
        self._seconds = (answered_ms - sent_ms)[order] / 1e3

    def recovery(self, since: float, until: float) -> Recovery:
        """The time from `since` to the last request that waited for longer than `SLOW_S`.

        What a fault at `until` delays does not count, so it is cut off `SLOW_S` before, and at the end of the load.
        """
        chosen = slice(*np.searchsorted(self._sent, (since, until - SLOW_S)))
        slow = self._sent[chosen][self._seconds[chosen] > SLOW_S]
        if not len(slow):
            return Recovery(0.0, is_over=True)
        cut_off = min(until - SLOW_S, self._sent[-1])
        return Recovery(float(slow[-1] - since), is_over=bool(slow[-1] < cut_off - _GAP_S))

    def p99_s(self, since: float, until: float) -> float | None:
        """The 99th percentile of the requests that were sent in this time. None if there are none."""
        chosen = self._seconds[slice(*np.searchsorted(self._sent, (since, until)))]
        return float(np.quantile(chosen, 0.99)) if len(chosen) else None
