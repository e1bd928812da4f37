"""The requests of one run, and the jobs that they become as time goes on."""

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from penstock.ops.bench.common.lengths import Lengths
from penstock.ops.bench.serving.loads.arrivals import Floats
from penstock.scheduler import Job

TOGETHER = 512  # most jobs in one call of `Scheduler.add`, which blocks everything else
_BULK_TOGETHER = 64  # the same for bulk, while enough of it waits
BULK_WAITING = 2048  # waiting jobs up to which bulk is added: a worker reads ahead in its topic by so much only
_CHUNK = 65_536  # requests that exist as Python objects at a time


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one worker: first `num_bulk` bulk requests, at time 0, then online requests by arrival."""

    arrival: Floats
    lengths: Lengths
    num_bulk: int = 0

    def __post_init__(self) -> None:
        if len(self.arrival) != len(self.lengths):
            raise ValueError(f"{len(self.arrival)} arrivals, but {len(self.lengths)} lengths.")
        if not 0 <= self.num_bulk <= len(self.arrival):
            raise ValueError(f"{self.num_bulk} of {len(self.arrival)} requests cannot be bulk.")

    @classmethod
    def beside_bulk(cls, online: Floats, lengths: Lengths) -> "Stream":
        """As many bulk requests as there are more lengths than online arrivals."""
        num_bulk = len(lengths) - len(online)
        return cls(np.concatenate([np.zeros(num_bulk), online]), lengths, num_bulk)

    def jobs(self, begin: int, end: int) -> list[Job]:
        """Of the requests [begin, end), all of one class; a job's id is its request's index."""
        is_bulk = end <= self.num_bulk
        rows = zip(
            range(begin, end),
            self.lengths[begin:end].tolist(),
            self.arrival[begin:end].tolist(),
            strict=True,
        )
        return [Job((index,), (length,), arrival, None, is_bulk) for index, length, arrival in rows]


class Arrivals:
    """Jobs of a stream by time of arrival. They are created in chunks, which bounds memory."""

    def __init__(self, stream: Stream, *, chunk: int = _CHUNK) -> None:
        self._stream = stream
        self._chunk = chunk
        self._bulk = stream.jobs(0, stream.num_bulk)
        self._num_bulk_taken = 0
        self._begin = stream.num_bulk  # of the chunk after this one
        self._jobs: list[Job] = []
        self._times: list[float] = []
        self._at = 0
        self.next_at = math.inf  # time of the next arrival, when `take` is due; inf: no more arrivals
        self._turn()
        if self._bulk:
            self.next_at = 0.0

    def take(self, now: float, num_waiting: int) -> list[Job]:
        """Jobs that have arrived by `now`, at most TOGETHER, and bulk jobs while few jobs wait. Call at every event.

        `num_waiting`: jobs that wait at the scheduler.
        """
        end = min(bisect_right(self._times, now, self._at), self._at + TOGETHER)
        jobs = self._jobs[self._at : end]
        self._at = end
        if end < len(self._times):
            self.next_at = self._times[end]
        else:
            self._turn()
        return jobs + self._more_bulk(num_waiting + len(jobs), TOGETHER - len(jobs))

    def _more_bulk(self, num_waiting: int, most: int) -> list[Job]:
        begin = self._num_bulk_taken
        if begin == len(self._bulk) or num_waiting > BULK_WAITING - TOGETHER:
            return []
        if num_waiting > TOGETHER:
            most = min(most, _BULK_TOGETHER)
        more = self._bulk[begin : begin + most]
        self._num_bulk_taken += len(more)
        return more

    def _turn(self) -> None:
        end = min(self._begin + self._chunk, len(self._stream.arrival))
        self._jobs = self._stream.jobs(self._begin, end)
        self._times = self._stream.arrival[self._begin : end].tolist()
        self._begin, self._at = end, 0
        self.next_at = self._times[0] if self._times else math.inf
