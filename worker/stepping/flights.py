"""Equal sequences that run once: each flight is one job of the step runner."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.worker.batching.single_flight import deadline_of
from penstock.worker.requests.request import PendingRequest, PendingSequence

_STREAM_EVERY_S = 0.05  # a partial result has all that came before, so that few of them make a long answer cheap
_Key = tuple[bytes, bool, bool]  # the sequence's own; whether it is bulk; whether it streams


@dataclass(slots=True, eq=False)
class Flight:
    """Sequences of one key and one class that stream or do not, and the job that runs for them."""

    job_id: int
    members: list[PendingSequence]  # in the order in which they came; the first has the job's deadline
    started: float | None = None  # when the runner took it up; None: it is queued
    streamed: float = -math.inf  # when the last partial result was reported
    num_tokens: int = field(init=False)  # of the input

    def __post_init__(self) -> None:
        self.num_tokens = len(self.members[0].token_ids)

    @property
    def alive(self) -> list[PendingSequence]:
        """Those whose requests wait for the result."""
        return [one for one in self.members if not one.request.is_failed]


class Flights:
    """Bookkeeping of flights by job and by key. Used on the event loop; the counts are read from other threads.

    A sequence joins a flight of its class, whose deadline may be later than its own: a deadline that passes while the
    result is computed does not stop the reply. So an online sequence never waits behind bulk work.
    """

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._by_key: dict[_Key, Flight] = {}
        self._by_job: dict[int, Flight] = {}
        self.num_queued = 0
        self.queued_tokens = 0

    def __len__(self) -> int:
        return len(self._by_job)

    def join(self, sequences: Iterable[PendingSequence]) -> list[Flight]:
        """Add sequences. Returns the flights that are new: each needs a job."""
        new = []
        for sequence in sequences:
            flight = self._by_key.get(_key(sequence))
            if flight is not None:
                flight.members.append(sequence)
            else:
                flight = Flight(next(self._ids), [sequence])
                self._by_key[_key(sequence)] = self._by_job[flight.job_id] = flight
                self._count(flight, 1)
                new.append(flight)
            sequence.request.job_ids.append(flight.job_id)
        return new

    def start(self, job_ids: Iterable[int], now: float) -> None:
        """These jobs have begun."""
        for job_id in job_ids:
            flight = self._by_job.get(job_id)
            if flight is not None and flight.started is None:
                self._count(flight, -1)
                flight.started = now

    def streaming(self, job_id: int, now: float) -> Flight | None:
        """The flight of a job that has a partial result; None if it was left, or had one just before."""
        flight = self._by_job.get(job_id)
        if flight is None or now - flight.streamed < _STREAM_EVERY_S:
            return None
        flight.streamed = now
        return flight

    def end(self, job_id: int) -> Flight | None:
        """The flight of a job that has ended; None if it was left before."""
        flight = self._by_job.pop(job_id, None)
        if flight is not None:
            del self._by_key[_key(flight.members[0])]
            if flight.started is None:
                self._count(flight, -1)
        return flight

    def requests(self, *, queued: bool) -> set[PendingRequest]:
        """Requests that have not ended; with `queued`, those of which a sequence has not begun."""
        flights = [one for one in self._by_job.values() if one.started is None or not queued]
        return {member.request for flight in flights for member in flight.alive}

    def deserted(self, requests: Iterable[PendingRequest]) -> list[int]:
        """End the flights of failed requests that no other request waits for. Returns their jobs."""
        candidates = {job_id for request in requests for job_id in request.job_ids if job_id in self._by_job}
        ids = [job_id for job_id in candidates if not self._by_job[job_id].alive]
        for job_id in ids:
            self.end(job_id)
        return ids

    def _count(self, flight: Flight, sign: int) -> None:
        self.num_queued += sign
        self.queued_tokens += sign * flight.num_tokens


def late_and_rest(
    flight: Flight, late_s: float, now: float
) -> tuple[list[tuple[PendingSequence, float]], list[PendingSequence]]:
    """The members of a flight whose job expired: those that are late, with the seconds, and the others."""
    first = flight.members[0]
    late, rest = [], []
    for member in flight.alive:
        by_s = late_s if member is first else now - deadline_of(member)
        if by_s >= 0:
            late.append((member, by_s))
        else:
            rest.append(member)
    return late, rest


def _key(sequence: PendingSequence) -> _Key:
    request = sequence.request
    return sequence.key, request.bulk, request.message.options.stream
