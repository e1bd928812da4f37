"""The batch stage for requests of many steps: sequences in, results and rejections out, at each step."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import count

import structlog

from penstock.engine.errors import EngineError, InvalidOption, InvalidSource
from penstock.engine.types import Float32Array
from penstock.producer.errors import BackendError, Cancelled, InvalidRequest, PenstockError
from penstock.producer.wire.headers import ReplyAddress
from penstock.scheduler.types import Cause, RejectedJob
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.batching.stage import StageCallbacks
from penstock.worker.batching.watchdog import Watchdog
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields
from penstock.worker.requests.request import PendingRequest, PendingSequence, Rejection
from penstock.worker.stepping.contract import StepEvents, StepJob, StepStats
from penstock.worker.stepping.step_load import StepTimes
from penstock.worker.stepping.step_single_flight import Joined, StepFlight, StepSingleFlight, late_and_rest
from penstock.worker.stepping.step_thread import StepThread

log = structlog.get_logger("penstock.dispatcher")


class StepDispatcher:
    """Implements `SequenceDispatcher` and `StageLoad` with a step runner on its own thread.

    Every sequence is handed to the runner at once, which admits, orders and expires them. One that fails, expires or
    is taken back leaves the runner before its next step. The others go on.
    """

    def __init__(
        self,
        thread: StepThread,
        work_of: Callable[[PendingSequence], object],
        callbacks: StageCallbacks,
        *,
        token_budget: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The caller starts the thread, with `on_events` and `give_up`.

        Args:
            work_of: makes the runner's input for a sequence.
            token_budget: most tokens that run together, for telemetry.
        """
        self._thread = thread
        self._work_of = work_of
        self._callbacks = callbacks
        self._clock = clock
        self._flights = StepSingleFlight()
        self._times = StepTimes()
        self._numbers = count(1)
        self._rejections: list[Rejection] = []  # of this turn
        self._ended: list[PendingRequest] = []  # the requests that they end
        self._closed = False
        self.token_budget = token_budget

    @property
    def num_queued(self) -> int:
        """See `StageLoad`."""
        return self._flights.num_queued

    @property
    def queued_tokens(self) -> int:
        """See `StageLoad`."""
        return self._flights.queued_tokens

    def backlog_s(self, now: float) -> float:
        """See `StageLoad`."""
        return len(self._flights) * self._times.seconds_a_sequence

    def errors(self) -> tuple[float, float]:
        """See `StageLoad`."""
        return self._times.errors()

    def add(self, sequences: Sequence[PendingSequence]) -> None:
        """See `SequenceDispatcher`. One that is equal to another in flight shares its result."""
        now = self._clock()
        for sequence in sequences:
            sequence.request.times.note_queued(now)
        self._run(self._flights.join(sequences))

    def drain(self) -> None:
        """See `SequenceDispatcher`. No step waits for more sequences."""

    def resume(self) -> None:
        """See `SequenceDispatcher`."""

    def take_back(self, sources: Collection[Source], *, bulk_only: bool, begun: bool) -> list[PendingRecord]:
        """See `SequenceDispatcher`."""
        chosen = [
            request
            for request in self._flights.requests(queued=not begun)
            if request.record.source in sources and (request.bulk or not bulk_only)
        ]
        records = [request.take_back() for request in chosen]
        self._leave(chosen)
        return records

    def cancel(self, addresses: Collection[ReplyAddress]) -> None:
        """See `SequenceDispatcher`."""
        if self._closed:
            return
        wanted = {_sender(address) for address in addresses if address.correlation_id is not None}
        chosen = [request for request in self._flights.requests(queued=False) if _sender(request.address) in wanted]
        rejections = [request.reject(Cancelled("The sender took the request back.")) for request in chosen]
        self._leave(chosen)
        self._callbacks.rejected(rejections)

    async def watch(self) -> None:
        """See `SequenceDispatcher`."""
        await Watchdog(self._thread.running, self._clock, self.give_up).run()

    def close(self) -> None:
        """See `SequenceDispatcher`."""
        self._closed = True

    def _run(self, joined: Joined) -> None:
        jobs = []
        for flight in joined.run:
            leader = flight.leader
            request = leader.request
            jobs.append(StepJob(flight.job_id, self._work_of(leader), flight.arrival, request.deadline, request.bulk))
        if self._closed:
            return
        if joined.replaced:
            self._thread.cancel(joined.replaced)
        if jobs:
            self._thread.add(jobs)

    def on_events(self, events: StepEvents) -> None:
        """Take what a turn of the runner has changed. Events of jobs that have left are ignored."""
        if self._closed:
            return
        now = self._clock()
        self._flights.start(events.started, now)
        for job_id, row in events.emitted:
            if (streaming := self._flights.streaming(job_id, now)) is not None:
                self._callbacks.partial(streaming.alive, row)
        self._finish(events.finished, events.stats, now)
        for job_id, error in events.failed.items():
            if (flight := self._flights.end(job_id)) is not None:
                self._blame(flight, error, events.runs.get(job_id, 1))
        self._expire(events.expired, now)
        for member, late_s in self._flights.late(now):
            self._reject(member, deadline_error(Cause.QUEUED, late_s))
        if self._rejections:
            rejections, self._rejections = self._rejections, []
            ended, self._ended = self._ended, []
            self._leave(ended)
            self._callbacks.rejected(rejections)

    def _finish(self, finished: Sequence[tuple[int, Float32Array]], task: StepStats | None, now: float) -> None:
        ended = [(flight, row) for job_id, row in finished if (flight := self._flights.end(job_id)) is not None]
        stats = _batch_stats(task, len(ended), next(self._numbers))
        if task is not None:
            self._times.observe(task, len(ended))
            self._callbacks.ran(stats)
        for flight, row in ended:
            began = now if flight.started is None else flight.started
            own = replace(stats, device_s=max(0.0, now - began))
            self._callbacks.results([(member, row) for member in flight.alive], own)

    def _blame(self, flight: StepFlight, error: EngineError, num_runs: int) -> None:
        """The engine fails on one sequence, and works otherwise."""
        is_invalid = isinstance(error, InvalidOption | InvalidSource)
        if not is_invalid:
            record = record_fields(flight.leader.request.record)
            log.warning("sequence_failed", tokens=flight.num_tokens, runs=num_runs, error=repr(error), **record)
        for member in flight.alive:
            member.request.record.note_attempts(num_runs)
            failure = (
                InvalidRequest(f"This model cannot do that: {error}")
                if is_invalid
                else BackendError(f"The engine failed on this sequence. Raised: {error!r}"[:500])
            )
            rejected = type(failure)(failure.message, {member.index: failure})
            rejected.__cause__ = error
            self._reject(member, rejected)

    def _expire(self, jobs: Sequence[RejectedJob], now: float) -> None:
        """Reject what is late. Others of the same flight have time left, so they run anew."""
        for job in jobs:
            flight = self._flights.end(job.id)
            if flight is None:
                continue
            late, rest = late_and_rest(flight, job, now)
            for member, by_s in late:
                self._reject(member, deadline_error(job.cause, by_s))
            rest = [member for member in rest if not member.request.is_failed]
            self._run(self._flights.join(rest))

    def _reject(self, sequence: PendingSequence, error: PenstockError) -> None:
        """End a request with an error, unless it has ended."""
        if not sequence.request.is_failed:
            self._ended.append(sequence.request)
            self._rejections.append(sequence.request.reject(error))

    def _leave(self, requests: Sequence[PendingRequest]) -> None:
        """The other sequences of requests that have ended leave the runner, unless others wait for them."""
        ids = self._flights.deserted(requests)
        if ids:
            self._thread.cancel(ids)

    def give_up(self, error: BaseException) -> None:
        """The runner has raised, or does not return: it cannot be trusted with any job."""
        if self._closed:
            return
        log.error("engine_unhealthy", error=repr(error))
        self.close()
        self._callbacks.unhealthy(error)


def _sender(address: ReplyAddress) -> tuple[str, int | None, bytes | None]:
    """By which a cancellation names its request."""
    return address.topic, address.partition, address.correlation_id


def _batch_stats(task: StepStats | None, num_ended: int, number: int) -> BatchStats:
    """A task as the statistics of a batch: rows are its sequences, and each runs up to a quantum of tokens."""
    if task is None:
        return BatchStats("step", "step", 0.0, Sums(1, 1, 1, 1), 0.0, 0.0, num_ended, number)
    longest = max(task.quantum, -(-task.steps // task.rows))
    sums = Sums(task.steps, task.steps * longest, longest, task.rows)
    return BatchStats("step", task.cell, 0.0, sums, task.predicted_s, task.device_s, num_ended, number)
