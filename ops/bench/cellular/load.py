"""A driver that offers requests to a runner of steps, in an open loop or by a fixed number in flight."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, repeat
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.contract import StepJob

Floats = npt.NDArray[np.float64]

# StepJob's own `__new__` takes three times as long, and the driver is a part of every contestant's host.
_new_job: Callable[[Iterable[object]], StepJob] = partial(tuple.__new__, StepJob)
_LONG_S = 2e-3  # a wait that is slept through, up to its last millisecond
MAX_IN_FLIGHT = 8192  # the worker's default: it takes in no more before some have ended


class OfferedRunner(Protocol):
    """The methods of `StepRunner` that a driver calls."""

    @property
    def is_idle(self) -> bool: ...

    def add(self, jobs: Sequence[StepJob]) -> None: ...

    def advance(self, now: float) -> JobEvents: ...


class Clock(Protocol):
    """Time that passes by itself, or in a test by what happens."""

    def now(self) -> float: ...

    def wait_until(self, moment: float) -> None: ...


class MonotonicClock:
    """The process's own time."""

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Spin at the end: a sleep lasts longer than some requests."""
        while (left := moment - time.perf_counter()) > 0:
            if left > _LONG_S:
                time.sleep(left - _LONG_S / 2)


@dataclass(frozen=True, slots=True)
class Offered:
    """Times of requests, on the driver's clock."""

    arrivals: Floats  # as scheduled: a driver that is late does not move them
    ends: Floats
    began: float
    ended: float


class Driver:
    """Gives requests to a runner and notes when each has ended. Request i has work i mod len(works). For one load."""

    def __init__(self, runner: OfferedRunner, works: Sequence[object], clock: Clock) -> None:
        self._runner, self._works, self._clock = runner, cycle(works), clock
        self._arrivals: list[float] = []
        self._ends: list[float | None] = []  # None: it has not ended
        self._num_open = 0

    def offer(self, arrivals: Floats) -> Offered:
        """An open loop of requests that are due at these seconds from now, ascending. Returns when all have ended.

        A request counts from the time at which it was due, however late it is given. Beyond `MAX_IN_FLIGHT` requests
        are held back, as a worker leaves them in Kafka: in overload, taking them in would leave no time for steps.
        """
        began = self._clock.now()
        due = (began + arrivals).tolist()
        while len(self._arrivals) < len(due) or self._num_open:
            now, given = self._clock.now(), len(self._arrivals)
            ready = min(bisect_right(due, now, lo=given), given + MAX_IN_FLIGHT - self._num_open)
            if ready > given:
                self._give(due[given:ready])
            if self._num_open:
                self._advance(now)
            else:
                self._clock.wait_until(due[given])
        return self._offered(began)

    def saturate(self, in_flight: int, seconds: float) -> Offered:
        """A closed loop: `in_flight` requests at all times, for the given seconds, and then until all have ended."""
        began = self._clock.now()
        self._give([began] * in_flight)
        while self._num_open:
            num_ended = self._advance(self._clock.now())
            now = self._clock.now()
            if num_ended and now < began + seconds:
                self._give([now] * num_ended)
        return self._offered(began)

    def _give(self, dues: Sequence[float]) -> None:
        first = len(self._arrivals)
        self._arrivals += dues
        self._num_open += len(dues)
        self._ends += [None] * len(dues)
        ids = range(first, first + len(dues))
        jobs = zip(ids, self._works, dues, repeat(None), repeat(False), strict=False)  # three of them have no end
        self._runner.add(list(map(_new_job, jobs)))

    def _advance(self, now: float) -> int:
        """Number of requests that have ended. RuntimeError: a request failed, or ended twice."""
        if self._runner.is_idle:
            raise RuntimeError(f"The runner is idle, and {self._num_open} requests have not ended. This is a bug.")
        events = self._runner.advance(now)
        if events.failed or events.expired:
            raise RuntimeError(f"Requests did not finish: {[*events.failed.values(), *events.expired][:3]}.")
        ends, ended = self._ends, self._clock.now()
        for number, _ in events.finished:
            if ends[number] is not None:
                raise RuntimeError(f"Request {number} ended twice. This is a bug.")
            ends[number] = ended
        self._num_open -= len(events.finished)
        return len(events.finished)

    def _offered(self, began: float) -> Offered:
        return Offered(np.array(self._arrivals), np.array(self._ends, np.float64), began, self._clock.now())


def throughput(offered: Offered, begin: float, end: float) -> float:
    """Requests a second, from the first end after `begin` to the last one before `end`: requests may end in batches.

    Over the whole load where all that end in between end at once.
    """
    ends = offered.ends[(offered.ends >= begin) & (offered.ends < end)]
    if len(ends) and ends.max() > ends.min():
        return float((ends > ends.min()).sum() / (ends.max() - ends.min()))
    return float(len(offered.ends) / (offered.ended - offered.began))


def percentiles_ms(seconds: Floats) -> Mapping[str, float]:
    """Of latencies, by the names p50, p90 and p99."""
    return {f"p{share}": float(1e3 * np.percentile(seconds, share)) for share in (50, 90, 99)}
