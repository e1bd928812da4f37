"""Unacknowledged answers by their destination, so that one stalled partition does not stop the others.

A partition without a leader accepts no answer, and the answers for it would fill the worker's memory.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

STALL_S = 20.0  # a failover takes about 10 s, of which 9 are the session of a broker
_SHARE = 0.25  # of the worker's bounds, for the answers to one stalled destination
_LOOK_S = 0.25
_OUTAGE_S = 1.0  # the first acknowledgement of any after as long ends an outage, and others get time for theirs


ReplyDestination = tuple[str, int | None, bool]  # topic, partition (None: the keys choose), whether for bulk requests


@dataclass(slots=True)
class Footprint:
    """Memory that records hold until they are finished, or answers until they are acknowledged, or the bounds of it."""

    records: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0

    def add(self, other: "Footprint", sign: int = 1) -> None:
        """Add or, with a sign of -1, subtract."""
        self.records += sign * other.records
        self.request_bytes += sign * other.request_bytes
        self.reply_bytes += sign * other.reply_bytes


@dataclass(slots=True)
class _UnacknowledgedAnswers:
    """The answers to one destination."""

    held: Footprint
    progress_at: float  # the last acknowledgement, or when the first answer began to wait, or the end of an outage


class ReplyDestinations:
    """Finds stalled destinations. Called on the worker's event loop only.

    A destination is stalled when answers wait for it and none was acknowledged for `STALL_S`. It is blocked when these
    hold a quarter of a bound too. While no broker responds, no request arrives; the times start again afterwards.
    """

    def __init__(
        self, bounds: Footprint, clock: Callable[[], float] = time.monotonic, *, can_stall: bool = True
    ) -> None:
        """Without `can_stall` answers may wait for other causes than their destination, and none counts as stalled."""
        self._bounds = bounds
        self._can_stall = can_stall
        self._clock = clock
        self._waiting: dict[ReplyDestination, _UnacknowledgedAnswers] = {}
        self._looked_at = self._acknowledged_at = clock()  # the latter: by any destination
        self._stalled: dict[bool, Footprint] = {}

    def sent(self, destination: ReplyDestination, held: Footprint) -> None:
        """Count answers that go to the outbox."""
        waiting = self._waiting.get(destination)
        if waiting is None:
            self._waiting[destination] = _UnacknowledgedAnswers(held, self._clock())
        else:
            waiting.held.add(held)

    def ended(self, destination: ReplyDestination, held: Footprint, *, acknowledged: bool) -> None:
        """Count answers that were acknowledged, or refused for good."""
        waiting = self._waiting[destination]
        waiting.held.add(held, -1)
        if acknowledged:
            now = self._clock()
            is_end = now - max(waiting.progress_at, self._acknowledged_at) >= _OUTAGE_S
            self._acknowledged_at = now
            for one in self._waiting.values() if is_end else (waiting,):
                one.progress_at = now
        if not waiting.held.records:
            del self._waiting[destination]

    def is_blocked(self, destination: ReplyDestination) -> bool:
        """Whether a further answer must not wait for this destination."""
        waiting = self._waiting.get(destination)
        if not self._can_stall or waiting is None or self._clock() - waiting.progress_at < STALL_S:
            return False
        held, bounds = waiting.held, self._bounds
        return (
            held.records >= _SHARE * bounds.records
            or held.request_bytes >= _SHARE * bounds.request_bytes
            or held.reply_bytes >= _SHARE * bounds.reply_bytes
        )

    def stalled(self) -> dict[bool, Footprint]:
        """By whether bulk: what the answers to stalled destinations hold; empty if there are none.

        Looks again after a quarter second.
        """
        now = self._clock()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._stalled = self._look(now)
        return self._stalled

    def _look(self, now: float) -> dict[bool, Footprint]:
        found: dict[bool, Footprint] = {}
        for (_, _, bulk), waiting in self._waiting.items():
            if self._can_stall and now - waiting.progress_at >= STALL_S:
                found.setdefault(bulk, Footprint()).add(waiting.held)
        return found
