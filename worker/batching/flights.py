"""Single flight with urgency: equal sequences run once, with the class and the deadline of the most urgent."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import NamedTuple

from penstock.scheduler.types import RejectedJob
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_block import SequenceBlock

_STREAM_EVERY_S = 0.05  # a partial result has all that came before, so that few of them make a long answer cheap
_FEW = 64  # deadlines of members whose flights have ended, which are not worth a removal
Late = list[tuple[SequenceBlock, float]]  # sequences, and the seconds by which each is late


class Former(NamedTuple):
    """The queued job that another one is to replace."""

    job_id: int
    leader: SequenceBlock


@dataclass(slots=True, eq=False)
class Flight:
    """Sequences that run for one or several requests.

    Those of one key, which are one member each, whichever requests they are of; or a block, of one request and as many
    keys, which is the only member. A block is taken apart once another request has an equal sequence.
    """

    leader: SequenceBlock  # its jobs have its class and its deadline
    job_id: int  # of its first sequence; those of the others follow
    members: list[SequenceBlock]  # in the order in which they came
    arrival: float  # when the first of them came
    number: int  # its own, whichever job it has
    num_open: int  # jobs that have not ended
    key: bytes  # of its only sequence; of a block that of the first
    is_block: bool  # whether it has several sequences
    gone: set[int] | None = None  # of a block: jobs that have ended, while others have not
    started: float | None = None  # when a job left the queue last; None: none has
    streamed: float = -math.inf  # when the last partial result was reported
    former: Former | None = None  # until the runner has admitted the job

    @property
    def alive(self) -> list[SequenceBlock]:
        """Those whose requests wait for the result."""
        return [one for one in self.members if not one.request.is_failed]

    @property
    def jobs(self) -> Sequence[int]:
        """Those that have not ended."""
        if not self.is_block:
            return (self.job_id,)
        ids = range(self.job_id, self.job_id + len(self.leader.keys))
        return ids if self.gone is None else [job_id for job_id in ids if job_id not in self.gone]

    def part(self, job_ids: Sequence[int]) -> SequenceBlock:
        """Its sequences with these jobs, at least one."""
        first = self.job_id
        return self.leader.part([job_id - first for job_id in job_ids]) if self.is_block else self.leader


class Flights:
    """Bookkeeping of flights by job and by key. Used on the event loop; the counts are read from other threads.

    Each sequence has a job, by which the runner knows it. The most urgent member leads a flight: the job has its class
    and deadline. While that is queued, a more urgent sequence that joins becomes the leader, and its job replaces the
    former one, if it is admitted. Once the job has begun, the leader is fixed.

    Jobs of many steps take long. So an online sequence does not join a bulk job that has begun, which runs behind
    online ones, but gets its own. A member whose deadline passes leaves, and a job that nothing waits for ends. A batch
    ends within moments: what has begun is shared by all, and runs to its end.
    """

    def __init__(self, *, by_step: bool) -> None:
        """`by_step`: jobs run for many steps, between which they may be left. Their blocks have one sequence each."""
        self._by_step = by_step
        self._next_id = 0  # of a job or a flight
        self._by_key: dict[bytes, Flight] = {}
        self._by_job: dict[int, Flight] = {}
        self._by_number: dict[int, Flight] = {}  # which its requests know, so that a new job is no news to them
        self._queued: dict[int, int] = {}  # tokens of the jobs that have not begun
        # Of jobs of many steps. A heap, also of members whose flights have ended, until they are half of all.
        self._deadlines: list[tuple[float, int, SequenceBlock, Flight]] = []
        self._num_members = 0  # of flights that have not ended
        self._num_joined = count()
        self.num_queued = 0
        self.queued_tokens = 0

    def __len__(self) -> int:
        return len(self._by_job)

    def __getitem__(self, job_id: int) -> Flight:
        return self._by_job[job_id]

    def join(self, blocks: Iterable[SequenceBlock]) -> list[Flight]:
        """Add sequences. Returns the flights that need jobs: new ones, and those with a more urgent leader.

        The caller hands the jobs of each to the runner, calls `refuse` for those that are rejected at once, and then
        `admit`.
        """
        new: set[int] = set()  # numbers
        promoted: list[Flight] = []
        needing: list[Flight] = []  # both kinds, in the order in which they are offered
        # One after another: what a block has added, the next one finds.
        for part in chain.from_iterable(map(self._parts, blocks)):
            key = self._key_of(part) if self._by_step else part.keys[0]
            flight = self._by_key.get(key)
            if flight is not None and flight.is_block:
                alone = self._take_apart(flight)
                if flight.number in new:
                    new.update([one.number for one in alone])
                    needing += alone
                flight = self._by_key[key]
            if flight is None or (self._by_step and self._is_overtaken(flight, part)):
                flight = self._begin(part, key)
                new.add(flight.number)
                needing.append(flight)
            else:
                flight.members.append(part)
                part.request.flights.append(flight.number)
            if flight.leader is not part and self._is_behind(flight, part):
                if flight.former is None and flight.number not in new:
                    flight.former = Former(flight.job_id, flight.leader)
                    promoted.append(flight)
                    needing.append(flight)
                flight.leader = part
            self._num_members += 1
            if self._by_step and part.request.deadline is not None:
                heapq.heappush(self._deadlines, (part.request.deadline, next(self._num_joined), part, flight))
        for flight in promoted:
            self._renumber(flight, self._next_id)
            self._next_id += 1
        return [flight for flight in needing if flight.num_open]

    def admit(self, flights: Iterable[Flight]) -> None:
        """The runner has the jobs of these flights, those that were not refused, in place of former ones."""
        for flight in flights:
            flight.former = None

    def runs(self, job_ids: Sequence[int]) -> list[tuple[Flight, slice]]:
        """Flights in the order of their jobs, and where those are. Jobs that have ended are in none."""
        found: list[tuple[Flight, slice]] = []
        flights, begin = list(map(self._by_job.get, job_ids)), 0
        for end, (flight, following) in enumerate(pairwise([*flights, None]), 1):
            if following is not flight:
                if flight is not None:
                    found.append((flight, slice(begin, end)))
                begin = end
        return found

    def refuse(self, job: RejectedJob) -> tuple[Late, list[SequenceBlock]]:
        """The runner rejected a job: of a flight that needed one, or of one in its queue, or that ran.

        Returns the leader and the members that are late with it, with the seconds, and the others: these may join anew.
        Members that the former job serves in time are not among them. Nothing for a job that has ended.
        """
        flight = self._by_job.get(job.id)
        if flight is None:
            return [], []
        leader, former, unserved = flight.leader, flight.former, flight.members
        if former is None:
            self.end_all(flight, [job.id])
        else:
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

    def start(self, job_ids: Sequence[int], now: float) -> None:
        """These jobs have left the queue of the runner: they run, or are in a batch that is to run."""
        for job_id in job_ids:
            if job_id in self._queued:
                self._leave_queue(job_id)
                self._by_job[job_id].started = now

    def streaming(self, job_id: int, now: float) -> Flight | None:
        """The flight of a job that has a partial result; None if it was left, or had one just before."""
        flight = self._by_job.get(job_id)
        if flight is None or now - flight.streamed < _STREAM_EVERY_S:
            return None
        flight.streamed = now
        return flight

    def end(self, job_id: int) -> Flight | None:
        """The flight of a job that has ended, without others of its block; None if it was left before."""
        flight = self._by_job.get(job_id)
        if flight is None:
            return None
        if flight.is_block:
            self._take_apart(flight)
            flight = self._by_job[job_id]
        self.end_all(flight, [job_id])
        return flight

    def end_all(self, flight: Flight, job_ids: Sequence[int]) -> None:
        """Jobs of a flight have ended."""
        first, keys, by_key = flight.job_id, flight.leader.keys, self._by_key
        for job_id in job_ids:
            del self._by_job[job_id]
            if job_id in self._queued:
                self._leave_queue(job_id)
            key = keys[job_id - first] if flight.is_block else flight.key
            if by_key.get(key) is flight:
                del by_key[key]
        flight.num_open -= len(job_ids)
        if flight.num_open:
            if flight.gone is None:
                flight.gone = set()
            flight.gone.update(job_ids)
        else:
            del self._by_number[flight.number]
            self._num_members -= len(flight.members)

    def requests(self, *, queued: bool) -> set[PendingRequest]:
        """Requests that have not ended; with `queued`, those of which a sequence has not begun."""
        flights = {flight for job_id, flight in self._by_job.items() if job_id in self._queued or not queued}
        return {member.request for flight in flights for member in flight.alive}

    def leave(self, requests: Iterable[PendingRequest]) -> tuple[list[int], list[SequenceBlock]]:
        """End the flights of failed requests that no other request waits for, or that wait in batches behind them.

        Returns their jobs, and the sequences that are left without a leader: these join anew. A job that has begun is
        among them only if it may be left between two steps.
        """
        candidates = {number for request in requests for number in request.flights if number in self._by_number}
        ended: list[int] = []
        rest: list[SequenceBlock] = []
        for flight in [self._by_number[number] for number in sorted(candidates)]:
            ids = [job_id for job_id in flight.jobs if self._by_step or job_id in self._queued]
            is_leaderless = not self._by_step and flight.leader.request.is_failed
            if ids and (is_leaderless or not flight.alive):
                ended += ids
                rest += flight.alive
                self.end_all(flight, ids)
        return ended, rest

    def _key_of(self, block: SequenceBlock) -> bytes:
        """Of a sequence that runs in steps. Those that stream share nothing with those that do not."""
        return block.keys[0] + b"stream" if block.request.message.options.stream else block.keys[0]

    def _parts(self, block: SequenceBlock) -> Sequence[SequenceBlock]:
        """The block whole where no sequence of it is in flight or there twice; else those that are, each by itself."""
        keys = block.keys
        if len(keys) == 1 or (len(set(keys)) == len(keys) and self._by_key.keys().isdisjoint(keys)):
            return (block,)
        seen: set[bytes] = set()
        new, shared = list[int](), list[int]()
        for place, key in enumerate(keys):
            (shared if key in seen or key in self._by_key else new).append(place)
            seen.add(key)
        return [*([block.part(new)] if new else []), *[block.part((place,)) for place in shared]]

    def _begin(self, block: SequenceBlock, key: bytes) -> Flight:
        """A flight of its own, in the queue."""
        num_jobs, job_id = len(block.keys), self._next_id
        self._next_id += num_jobs
        flight = Flight(block, job_id, [block], block.request.times.queued, job_id, num_jobs, key, num_jobs > 1)
        if num_jobs == 1:
            self._by_key[key] = self._by_job[job_id] = flight
            self._queued[job_id] = block.lengths[0]
        else:
            self._by_key.update(dict.fromkeys(block.keys, flight))
            ids = range(job_id, job_id + num_jobs)
            self._by_job.update(dict.fromkeys(ids, flight))
            self._queued.update(zip(ids, block.lengths, strict=True))
        self._by_number[job_id] = flight
        block.request.flights.append(job_id)
        self.num_queued += num_jobs
        self.queued_tokens += sum(block.lengths)
        return flight

    def _take_apart(self, flight: Flight) -> list[Flight]:
        """A flight for each sequence of a block that has not ended, in its place: what it shares, it shares alone."""
        alone = []
        for job_id in flight.jobs:
            member = flight.part((job_id,))
            number, self._next_id = self._next_id, self._next_id + 1
            one = Flight(member, job_id, [member], flight.arrival, number, 1, member.keys[0], is_block=False)
            self._by_job[job_id] = self._by_key[member.keys[0]] = self._by_number[number] = one
            member.request.flights.append(number)
            alone.append(one)
        del self._by_number[flight.number]
        self._num_members += len(alone) - 1
        flight.num_open = 0
        return alone

    def _is_overtaken(self, flight: Flight, block: SequenceBlock) -> bool:
        return flight.started is not None and flight.leader.request.bulk and not block.request.bulk

    def _is_behind(self, flight: Flight, block: SequenceBlock) -> bool:
        """Whether a sequence is to lead a flight: more urgent than the leader, whose job is queued."""
        return flight.job_id in self._queued and urgency(block) < urgency(flight.leader)

    def _renumber(self, flight: Flight, job_id: int) -> None:
        """Give the flight of one key another job, in the queue as the last one is."""
        del self._by_job[flight.job_id]
        self._queued[job_id] = self._queued.pop(flight.job_id)
        flight.job_id = job_id
        self._by_job[job_id] = flight

    def _waits(self, member: SequenceBlock, flight: Flight) -> bool:
        return self._by_job.get(flight.job_id) is flight and not member.request.is_failed

    def _leave_queue(self, job_id: int) -> None:
        """A job is not queued any more."""
        self.queued_tokens -= self._queued.pop(job_id)
        self.num_queued -= 1


def deadline_of(block: SequenceBlock) -> float:
    """The deadline in monotonic seconds; infinite without one."""
    deadline = block.request.deadline
    return math.inf if deadline is None else deadline


def urgency(block: SequenceBlock) -> tuple[bool, float]:
    """The sort key of urgency, most urgent first: online before bulk, then by deadline."""
    return block.request.bulk, deadline_of(block)
