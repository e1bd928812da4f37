"""The scheduler's queue as the dispatcher sees it: a job for each flight, and rejections where a job is rejected."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.producer.errors import PenstockError
from penstock.scheduler import Cause, Job, LaneDriver, RejectedJob
from penstock.worker.batching.single_flight import SingleFlight
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import PendingRequest, PendingSequence, Rejection


class FlightQueue:
    """Queues one job for each flight of equal sequences, in the name of its leader.

    When a leader is rejected, or leaves with its request, the next leader of the flight gets a job.
    """

    def __init__(self, driver: LaneDriver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._flights = SingleFlight()
        self._ids = itertools.count()
        self._leaders: dict[int, PendingSequence] = {}  # by job id: those whose jobs are queued
        self._rejections: list[Rejection] = []

    def add(self, sequences: Sequence[PendingSequence]) -> None:
        """Queue sequences. One that is equal to another in flight shares its result."""
        self._enqueue(self._flights.join(sequences))

    def take(self, job_ids: Iterable[int]) -> list[PendingSequence]:
        """The leaders whose jobs have left the scheduler's queue."""
        leaders = [self._leaders.pop(job_id) for job_id in job_ids]
        self._flights.start(leaders)
        return leaders

    def reject_jobs(self, jobs: Sequence[RejectedJob]) -> None:
        """The scheduler rejected jobs that were queued."""
        leaders = self.take([job.id for job in jobs])
        self._enqueue(self._reject_leaders(zip(leaders, jobs, strict=True)))

    def expire(self, sequence: PendingSequence, late_s: float) -> None:
        """Reject a taken sequence whose deadline has passed, and those of its flight that are late as well."""
        self._enqueue(self._next_leaders(self._reject_late(sequence, Cause.QUEUED, late_s)))

    def reject(self, sequence: PendingSequence, error: PenstockError) -> None:
        """End the request of a sequence with an error, unless it has ended."""
        self._enqueue(self._next_leaders(self._reject(sequence, error)))

    def in_flight(self, *, queued: bool) -> set[PendingRequest]:
        """Requests that have not ended; with `queued`, those of which a sequence has no batch yet."""
        return {request for request in self._flights.in_flight(queued=queued) if not request.is_failed}

    def take_back(self, requests: Iterable[PendingRequest]) -> list[PendingRecord]:
        """End requests without an answer, and return their records. Results that come for them are ignored."""
        ids, records = [], []
        for request in requests:
            records.append(request.take_back())
            ids += [job_id for job_id in request.job_ids if job_id in self._leaders]
        self._driver.scheduler.remove(ids)
        self._enqueue(self._next_leaders(self.take(ids)))
        return records

    def next_leader(self, sequence: PendingSequence) -> PendingSequence | None:
        """The sequence for which a taken job runs now that the request of `sequence` has failed, if for any."""
        return self._flights.next_leader(sequence)

    def finish(self, leaders: Iterable[PendingSequence]) -> list[list[PendingSequence]]:
        """End taken flights. Returns the sequences of each in the order they came, without those of failed requests."""
        return self._flights.finish(leaders)

    def take_rejections(self) -> list[Rejection]:
        """The requests that have failed since the last call, each once."""
        rejections, self._rejections = self._rejections, []
        return rejections

    def _enqueue(self, candidates: Sequence[PendingSequence]) -> None:
        """Queue a job for each candidate. In the flight of one that is rejected, the next leader is a candidate."""
        while candidates:
            offered = dict(zip(self._ids, candidates, strict=False))
            rejected = [(offered.pop(job.id), job) for job in self._offer(offered)]
            self._promote(offered)
            candidates = self._reject_leaders(rejected)

    def _offer(self, offered: Mapping[int, PendingSequence]) -> list[RejectedJob]:
        """Offer jobs to the scheduler. It admits all jobs of one request or none: a part of them answers nothing."""
        now = self._clock()
        groups: dict[PendingRequest | None, list[Job]] = {}  # None: requests of one sequence
        for job_id, sequence in offered.items():
            request = sequence.request
            job = Job(job_id, len(sequence.token_ids), request.times.queued, request.deadline, request.bulk)
            groups.setdefault(request if len(request.results) > 1 else None, []).append(job)
        return [
            rejected
            for request, jobs in groups.items()
            for rejected in self._driver.add(jobs, now, together=request is not None)
        ]

    def _promote(self, leaders: Mapping[int, PendingSequence]) -> None:
        """The jobs of these sequences, by job id, are queued: each leads its flight."""
        for former in self._flights.promote(leaders.values()):
            self._driver.scheduler.remove([former.job_id])
            del self._leaders[former.job_id]
        for job_id, sequence in leaders.items():
            sequence.note_job(job_id)
        self._leaders.update(leaders)

    def _reject_leaders(self, rejected: Iterable[tuple[PendingSequence, RejectedJob]]) -> list[PendingSequence]:
        """Reject sequences whose jobs were rejected. Returns the next leaders of their flights."""
        leaderless: list[PendingSequence] = []
        for sequence, job in rejected:
            leaderless += [sequence, *self._reject_late(sequence, job.cause, job.late_s)]
        return self._next_leaders(leaderless)

    def _reject_late(self, sequence: PendingSequence, cause: Cause, late_s: float) -> list[PendingSequence]:
        """Reject a sequence, and those of its flight that would be late with it. Returns as `_reject`."""
        late = self._flights.late_with(sequence, late_s)
        return [one for other, by_s in late for one in self._reject(other, deadline_error(cause, by_s))]

    def _reject(self, sequence: PendingSequence, error: PenstockError) -> list[PendingSequence]:
        """End a request, once, and remove its queued jobs. Returns the sequences whose flights lost their leader."""
        request = sequence.request
        if request.is_failed:
            return []
        self._rejections.append(request.reject(error))
        ids = [job_id for job_id in request.job_ids if job_id in self._leaders]
        if not ids:
            return []
        self._driver.scheduler.remove(ids)
        return self.take(ids)

    def _next_leaders(self, former: Iterable[PendingSequence]) -> list[PendingSequence]:
        flights = {sequence.key: sequence for sequence in former}
        return [leader for one in flights.values() if (leader := self._flights.next_leader(one)) is not None]
