"""Equal sequences that run once: each flight is one job of the step runner."""

import heapq
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.scheduler.types import Cause, RejectedJob
from penstock.worker.batching.single_flight import deadline_of, urgency
from penstock.worker.requests.request import PendingRequest, PendingSequence

_STREAM_EVERY_S = 0.05  # a partial result has all that came before, so that few of them make a long answer cheap
_FEW = 64  # deadlines of members whose flights have ended, which are not worth a removal
_Key = tuple[bytes, bool]  # the sequence's own; whether it streams


@dataclass(slots=True, eq=False)
class StepFlight:
    """Sequences of one key that stream or do not, and the job that runs for them."""

    job_id: int
    leader: PendingSequence  # the job has its class and its deadline
    members: list[PendingSequence]  # in the order in which they came
    started: float | None = None  # when the runner took it up; None: it is queued
    streamed: float = -math.inf  # when the last partial result was reported
    num_tokens: int = field(init=False)  # of the input

    def __post_init__(self) -> None:
        self.num_tokens = len(self.leader.token_ids)

    @property
    def alive(self) -> list[PendingSequence]:
        """Those whose requests wait for the result."""
        return [one for one in self.members if not one.request.is_failed]

    @property
    def arrival(self) -> float:
        """When the first of its members came."""
        return min([member.request.times.queued for member in self.members])


class Joined(NamedTuple):
    """Flights that need a job, and the jobs that are to leave: more urgent ones take their places."""

    run: list[StepFlight]
    replaced: list[int]


class StepSingleFlight:
    """Bookkeeping of flights by job and by key. Used on the event loop; the counts are read from other threads.

    The most urgent member leads a flight, as in `SingleFlight`. While its job is queued, a more urgent sequence that
    joins becomes the leader, and a job of its class and deadline replaces the former one. A job that has begun goes on.
    An online sequence does not join a bulk job that has begun, which runs behind online ones: it gets its own.
    """

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._by_key: dict[_Key, StepFlight] = {}
        self._by_job: dict[int, StepFlight] = {}
        # A heap, also of members whose flights have ended, until they are half of all.
        self._deadlines: list[tuple[float, int, PendingSequence, StepFlight]] = []
        self._num_members = 0  # of flights that have not ended
        self._num_joined = itertools.count()
        self.num_queued = 0
        self.queued_tokens = 0

    def __len__(self) -> int:
        return len(self._by_job)

    def join(self, sequences: Iterable[PendingSequence]) -> Joined:
        """Add sequences."""
        new: dict[int, StepFlight] = {}
        promoted: dict[int, StepFlight] = {}  # by the job that leaves
        for sequence in sequences:
            flight = self._by_key.get(_key(sequence))
            if flight is None or (flight.started is not None and urgency(sequence)[0] < urgency(flight.leader)[0]):
                flight = StepFlight(next(self._ids), sequence, [])
                self._by_key[_key(sequence)] = self._by_job[flight.job_id] = new[flight.job_id] = flight
                self._count(flight, 1)
            elif flight.started is None and urgency(sequence) < urgency(flight.leader):
                flight.leader = sequence
                if flight.job_id not in new:
                    promoted[flight.job_id] = flight
            flight.members.append(sequence)
            self._num_members += 1
            sequence.request.job_ids.append(flight.job_id)
            if sequence.request.deadline is not None:
                entry = sequence.request.deadline, next(self._num_joined), sequence, flight
                heapq.heappush(self._deadlines, entry)
        for job_id, flight in promoted.items():
            flight.job_id = next(self._ids)
            self._by_job[flight.job_id] = self._by_job.pop(job_id)
            for member in flight.members:
                member.request.job_ids.append(flight.job_id)
        return Joined([*new.values(), *promoted.values()], list(promoted))

    def late(self, now: float) -> list[tuple[PendingSequence, float]]:
        """Members whose deadlines have passed since the last call, with the seconds. Their flights go on."""
        if len(self._deadlines) > 2 * self._num_members + _FEW:
            self._deadlines = [entry for entry in self._deadlines if self._waits(*entry[2:])]
            heapq.heapify(self._deadlines)
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, _, member, flight = heapq.heappop(self._deadlines)
            if self._waits(member, flight):
                found.append((member, now - deadline))
        return found

    def start(self, job_ids: Iterable[int], now: float) -> None:
        """These jobs have begun."""
        for job_id in job_ids:
            flight = self._by_job.get(job_id)
            if flight is not None and flight.started is None:
                self._count(flight, -1)
                flight.started = now

    def streaming(self, job_id: int, now: float) -> StepFlight | None:
        """The flight of a job that has a partial result; None if it was left, or had one just before."""
        flight = self._by_job.get(job_id)
        if flight is None or now - flight.streamed < _STREAM_EVERY_S:
            return None
        flight.streamed = now
        return flight

    def end(self, job_id: int) -> StepFlight | None:
        """The flight of a job that has ended; None if it was left before."""
        flight = self._by_job.pop(job_id, None)
        if flight is not None:
            if self._by_key.get(_key(flight.leader)) is flight:
                del self._by_key[_key(flight.leader)]
            if flight.started is None:
                self._count(flight, -1)
            self._num_members -= len(flight.members)
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

    def _waits(self, member: PendingSequence, flight: StepFlight) -> bool:
        return self._by_job.get(flight.job_id) is flight and not member.request.is_failed

    def _count(self, flight: StepFlight, sign: int) -> None:
        self.num_queued += sign
        self.queued_tokens += sign * flight.num_tokens


def late_and_rest(
    flight: StepFlight, job: RejectedJob, now: float
) -> tuple[list[tuple[PendingSequence, float]], list[PendingSequence]]:
    """The members of a flight whose job was rejected: those that are late with it, with the seconds, and the others."""
    done_at = deadline_of(flight.leader) + job.late_s if job.cause is Cause.OVERLOADED else now
    late, rest = [], []
    for member in flight.alive:
        by_s = job.late_s if member is flight.leader else done_at - deadline_of(member)
        if by_s >= 0:
            late.append((member, by_s))
        else:
            rest.append(member)
    return late, rest


def _key(sequence: PendingSequence) -> _Key:
    return sequence.key, sequence.request.message.options.stream
