"""Single flight with urgency: equal sequences run once, with the class and the deadline of the most urgent."""

import heapq
import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.scheduler.types import RejectedJob
from penstock.worker.requests.request import PendingRequest, PendingSequence

_STREAM_EVERY_S = 0.05  # a partial result has all that came before, so that few of them make a long answer cheap
_FEW = 64  # deadlines of members whose flights have ended, which are not worth a removal
Late = list[tuple[PendingSequence, float]]  # sequences, and the seconds by which each is late


class Former(NamedTuple):
    """The queued job that another one is to replace."""

    job_id: int
    leader: PendingSequence


@dataclass(slots=True, eq=False)
class Flight:
    """Sequences of one key that stream or do not, and the job that runs for them."""

    key: bytes  # the sequences' own; that of those which stream is longer
    job_id: int
    leader: PendingSequence  # the job has its class and its deadline
    members: list[PendingSequence]  # in the order in which they came
    arrival: float  # when the first of them came
    started: float | None = None  # when the job left the queue; None: it is queued
    streamed: float = -math.inf  # when the last partial result was reported
    former: Former | None = None  # until the runner has admitted the job
    number: int = field(init=False)  # its own, whichever job it has: that of the first

    def __post_init__(self) -> None:
        self.number = self.job_id

    @property
    def alive(self) -> list[PendingSequence]:
        """Those whose requests wait for the result."""
        return [one for one in self.members if not one.request.is_failed]

    def is_behind(self, sequence: PendingSequence) -> bool:
        """Whether a sequence is to lead it: more urgent than the leader, whose job is queued."""
        return self.started is None and urgency(sequence) < urgency(self.leader)


class Flights:
    """Bookkeeping of flights by job and by key. Used on the event loop; the counts are read from other threads.

    The most urgent member leads a flight: the job has its class and deadline. While that is queued, a more urgent
    sequence that joins becomes the leader, and its job replaces the former one, if it is admitted. Once the job has
    begun, the leader is fixed.

    Jobs of many steps take long. So an online sequence does not join a bulk job that has begun, which runs behind
    online ones, but gets its own. A member whose deadline passes leaves, and a job that nothing waits for ends. A batch
    ends within moments: what has begun is shared by all, and runs to its end.
    """

    def __init__(self, *, by_step: bool) -> None:
        """`by_step`: jobs run for many steps, between which they may be left."""
        self._by_step = by_step
        self._ids = itertools.count()
        self._by_key: dict[bytes, Flight] = {}
        self._by_job: dict[int, Flight] = {}
        self._by_number: dict[int, Flight] = {}  # which its requests know, so that a new job is no news to them
        # Of jobs of many steps. A heap, also of members whose flights have ended, until they are half of all.
        self._deadlines: list[tuple[float, int, PendingSequence, Flight]] = []
        self._num_members = 0  # of flights that have not ended
        self._num_joined = itertools.count()
        self.num_queued = 0
        self.queued_tokens = 0

    def __len__(self) -> int:
        return len(self._by_job)

    def __getitem__(self, job_id: int) -> Flight:
        return self._by_job[job_id]

    def join(self, sequences: Iterable[PendingSequence]) -> list[Flight]:
        """Add sequences. Returns the flights that need a job: new ones, and those with a more urgent leader.

        The caller hands the job of each to the runner, calls `refuse` for those that are rejected at once, and then
        `admit`.
        """
        new: dict[int, Flight] = {}
        promoted: list[Flight] = []
        needing: list[Flight] = []  # both kinds, in the order in which they are offered
        num_members = 0
        for sequence in sequences:
            request = sequence.request
            key = sequence.key + b"stream" if request.message.options.stream else sequence.key
            flight = self._by_key.get(key)
            if flight is None or (self._by_step and self._is_overtaken(flight, sequence)):
                flight = Flight(key, next(self._ids), sequence, [sequence], request.times.queued)
                self._by_key[key] = self._by_job[flight.job_id] = new[flight.job_id] = flight
                self._by_number[flight.number] = flight
                needing.append(flight)
            else:
                flight.members.append(sequence)
                if flight.is_behind(sequence) and flight.former is None and flight.job_id not in new:
                    flight.former = Former(flight.job_id, flight.leader)
                    promoted.append(flight)
                    needing.append(flight)
                if flight.is_behind(sequence):
                    flight.leader = sequence
            request.job_ids.append(flight.number)
            num_members += 1
            if self._by_step and request.deadline is not None:
                heapq.heappush(self._deadlines, (request.deadline, next(self._num_joined), sequence, flight))
        self._num_members += num_members
        self._count(new.values(), 1)
        for flight in promoted:
            del self._by_job[flight.job_id]
            self._renumber(flight, next(self._ids))
        return needing

    def admit(self, flights: Iterable[Flight]) -> None:
        """The runner has the jobs of these flights, those that were not refused, in place of former ones."""
        for flight in flights:
            flight.former = None

    def refuse(self, job: RejectedJob) -> tuple[Late, list[PendingSequence]]:
        """The runner rejected a job: of a flight that needed one, or of one in its queue, or that ran.

        Returns the leader and the members that are late with it, with the seconds, and the others: these may join anew.
        Members that the former job serves in time are not among them. Nothing for a job that has ended.
        """
        flight = self._by_job.get(job.id)
        if flight is None:
            return [], []
        leader, former, unserved = flight.leader, flight.former, flight.members
        if former is None:
            self.end(job.id)
        else:
            del self._by_job[job.id]
            served = urgency(former.leader)
            unserved = [member for member in flight.members if urgency(member) < served]
            flight.members = [member for member in flight.members if not urgency(member) < served]
            self._num_members -= len(unserved)
            flight.leader, flight.former = former.leader, None
            self._renumber(flight, former.job_id)
        done_at = deadline_of(leader) + job.late_s
        late: Late = [] if leader.request.is_failed else [(leader, job.late_s)]
        rest = []
        for member in unserved:
            if member is leader or member.request.is_failed:
                continue
            if (by_s := done_at - deadline_of(member)) > 0:
                late.append((member, by_s))
            else:
                rest.append(member)
        return late, rest

    def late(self, now: float) -> Late:
        """Members of jobs of many steps whose deadlines have passed since the last call. Their flights go on."""
        if len(self._deadlines) > 2 * self._num_members + _FEW:
            self._deadlines = [entry for entry in self._deadlines if self._waits(*entry[2:])]
            heapq.heapify(self._deadlines)
        found: Late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, _, member, flight = heapq.heappop(self._deadlines)
            if self._waits(member, flight):
                found.append((member, now - deadline))
        return found

    def start(self, job_ids: Iterable[int], now: float) -> None:
        """These jobs have left the queue of the runner: they run, or are in a batch that is to run."""
        flights = [one for job_id in job_ids if (one := self._by_job.get(job_id)) is not None and one.started is None]
        self._count(flights, -1)
        for flight in flights:
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
        return next(iter(self.end_all([job_id])), None)

    def end_all(self, job_ids: Iterable[int]) -> list[Flight]:
        """The flights of jobs that have ended, without those that were left before."""
        flights = [flight for job_id in job_ids if (flight := self._by_job.pop(job_id, None)) is not None]
        for flight in flights:
            del self._by_number[flight.number]
            if self._by_key.get(flight.key) is flight:
                del self._by_key[flight.key]
            if flight.started is None:
                self._count([flight], -1)
            self._num_members -= len(flight.members)
        return flights

    def requests(self, *, queued: bool) -> set[PendingRequest]:
        """Requests that have not ended; with `queued`, those of which a sequence has not begun."""
        flights = [one for one in self._by_job.values() if one.started is None or not queued]
        return {member.request for flight in flights for member in flight.alive}

    def leave(self, requests: Iterable[PendingRequest]) -> tuple[list[int], list[PendingSequence]]:
        """End the flights of failed requests that no other request waits for, or that wait in batches behind them.

        Returns their jobs, and the sequences that are left without a leader: these join anew. A job that has begun is
        among them only if it may be left between two steps.
        """
        candidates = {number for request in requests for number in request.job_ids if number in self._by_number}
        ids: list[int] = []
        rest: list[PendingSequence] = []
        for flight in [self._by_number[number] for number in sorted(candidates)]:
            is_leaderless = not self._by_step and flight.leader.request.is_failed
            if (self._by_step or flight.started is None) and (is_leaderless or not flight.alive):
                ids.append(flight.job_id)
                rest += flight.alive
        for job_id in ids:
            self.end(job_id)
        return ids, rest

    def _is_overtaken(self, flight: Flight, sequence: PendingSequence) -> bool:
        return flight.started is not None and flight.leader.request.bulk and not sequence.request.bulk

    def _renumber(self, flight: Flight, job_id: int) -> None:
        flight.job_id = job_id
        self._by_job[job_id] = flight

    def _waits(self, member: PendingSequence, flight: Flight) -> bool:
        return self._by_job.get(flight.job_id) is flight and not member.request.is_failed

    def _count(self, flights: Collection[Flight], sign: int) -> None:
        """Flights come into the queue, or leave it."""
        self.num_queued += sign * len(flights)
        self.queued_tokens += sign * sum([len(flight.leader.token_ids) for flight in flights])


def deadline_of(sequence: PendingSequence) -> float:
    """The deadline in monotonic seconds; infinite without one."""
    deadline = sequence.request.deadline
    return math.inf if deadline is None else deadline


def urgency(sequence: PendingSequence) -> tuple[bool, float]:
    """The sort key of urgency, most urgent first: online before bulk, then by deadline."""
    return sequence.request.bulk, deadline_of(sequence)
