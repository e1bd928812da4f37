"""The batch stage: sequences in, results and rejections out. What runs them, batches or steps, is a `JobRunner`."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import structlog

from penstock.engine.errors import InvalidOption, InvalidSource
from penstock.engine.types import Float32Array
from penstock.producer.errors import BackendError, Cancelled, InvalidRequest, PenstockError
from penstock.producer.wire.headers import ReplyAddress
from penstock.scheduler.types import Cause, RejectedJob
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.flights import Flight, Flights, Late
from penstock.worker.batching.job_runner import JobEvents, JobRunner
from penstock.worker.batching.stage import StageCallbacks
from penstock.worker.batching.watchdog import Watchdog
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields
from penstock.worker.requests.request import PendingRequest, Rejection
from penstock.worker.requests.sequence_block import SequenceBlock

log = structlog.get_logger("penstock.dispatcher")


class Dispatcher:
    """Implements `SequenceDispatcher` with a runner, to which it hands a job for each flight of equal sequences.

    The runner admits, orders, runs and expires jobs. Every public method ends in `_advance`, which lets it begin what
    it can, and reports the rejections of this turn.
    """

    def __init__(
        self,
        runner: JobRunner,
        callbacks: StageCallbacks,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The caller starts the runner, with this as its owner."""
        self._runner = runner
        self._callbacks = callbacks
        self._clock = clock
        self._rejections: list[Rejection] = []  # of this turn
        self._ended: list[PendingRequest] = []  # the requests that they end, of which other sequences may be in flight
        self._closed = False
        self.flights = Flights(by_step=runner.by_step)  # others only read its counts

    def add(self, sequences: Sequence[SequenceBlock]) -> None:
        """See `SequenceDispatcher`. One that is equal to another in flight shares its result."""
        now = self._clock()
        for times in {sequence.request.times for sequence in sequences}:
            times.note_queued(now)
        self._run(sequences)
        self._advance()

    def drain(self) -> None:
        """See `SequenceDispatcher`."""
        self._runner.drain()
        self._advance()

    def resume(self) -> None:
        """See `SequenceDispatcher`."""
        self._runner.resume()

    def take_back(self, sources: Collection[Source], *, bulk_only: bool, begun: bool) -> list[PendingRecord]:
        """See `SequenceDispatcher`."""
        chosen = [
            request
            for request in self.flights.requests(queued=not begun)
            if request.record.source in sources and (request.bulk or not bulk_only)
        ]
        records = [request.take_back() for request in chosen]
        self._ended += chosen
        self._advance()
        return records

    def cancel(self, addresses: Collection[ReplyAddress]) -> None:
        """See `SequenceDispatcher`. A batch takes milliseconds: there nothing is cancelled."""
        if self._closed or not self._runner.by_step:
            return
        wanted = {_sender(address) for address in addresses if address.correlation_id is not None}
        for request in self.flights.requests(queued=False):
            if _sender(request.address) in wanted:
                self._end(request, Cancelled("The sender took the request back."))
        self._advance()

    async def watch(self) -> None:
        """See `SequenceDispatcher`."""
        await Watchdog(self._runner.running, self._clock, self.give_up).run()

    def close(self) -> None:
        """See `SequenceDispatcher`."""
        self._closed = True
        self._runner.stop()

    def on_events(self, events: JobEvents | None) -> None:
        """See `RunnerOwner`. Events of jobs that have left are ignored."""
        if self._closed:
            return
        if events is not None:
            self._take(events)
        self._advance()

    def on_batch(
        self, ids: Sequence[int], rows: Sequence[Float32Array], stats: BatchStats, began: float | None
    ) -> None:
        """See `RunnerOwner`. A request fails if its deadline had passed when a lane took up the batch."""
        if self._closed:
            return
        results: list[tuple[SequenceBlock, Sequence[Float32Array]]] = []
        late: Late = []
        for flight, places in self.flights.runs(ids):
            run, own = ids[places], rows[places]
            for member in (flight.part(run),) if flight.is_block else flight.members:
                request = member.request
                if request.is_failed:
                    continue
                results.append((member, own))
                if began is not None and request.deadline is not None and request.deadline < began:
                    late.append((member, began - request.deadline))
            self.flights.end_all(flight, run)
        for member, late_s in late:
            self._reject(member, deadline_error(Cause.QUEUED, late_s))
        self._callbacks.ran(stats)
        self._callbacks.results(results, stats)

    def wanted(self, ids: Sequence[int], now: float) -> tuple[list[int], list[SequenceBlock]]:
        """See `RunnerOwner`. Sequences that are late by now are rejected."""
        wanted: list[int] = []
        blocks: list[SequenceBlock] = []
        for flight, places in self.flights.runs(ids):
            is_wanted = False
            for member in flight.members:
                request = member.request
                if request.is_failed:
                    continue
                if request.deadline is None or request.deadline > now:
                    is_wanted = True
                else:
                    self._end(request, deadline_error(Cause.QUEUED, now - request.deadline))
            if is_wanted:
                wanted += ids[places]
                blocks.append(flight.part(ids[places]))
            else:
                self.flights.end_all(flight, ids[places])
        return wanted, blocks

    def blocks(self, ids: Sequence[int]) -> list[SequenceBlock]:
        """See `RunnerOwner`."""
        return [flight.part(ids[places]) for flight, places in self.flights.runs(ids)]

    def give_up(self, error: BaseException) -> None:
        """See `RunnerOwner`. The runner cannot be trusted with any job."""
        if self._closed:
            return
        log.error("engine_unhealthy", error=repr(error))
        self.close()
        self._callbacks.unhealthy(error)

    def _run(self, sequences: Iterable[SequenceBlock]) -> None:
        """Hand a job to the runner for each flight that needs one. Where it is rejected at once, the next leader's."""
        flights = self.flights.join(sequences)
        while flights and not self._closed:
            rejected = self._runner.add(flights)
            anew = self._refuse(rejected)
            self.flights.admit(flights)
            flights = self.flights.join(anew)

    def _advance(self) -> None:
        """Let the runner begin what it can, then report what was rejected."""
        while not self._closed:
            while self._ended:
                ended, self._ended = self._ended, []
                ids, rest = self.flights.leave(ended)
                if ids:
                    self._runner.cancel(ids)
                if rest:
                    self._run(rest)
            events = self._runner.advance()
            if events is not None:
                self._take(events)
            elif not self._ended:  # it may have found requests that are late
                break
        if self._rejections and not self._closed:
            rejections, self._rejections = self._rejections, []
            self._callbacks.rejected(rejections)

    def _take(self, events: JobEvents) -> None:
        """Take what the runner has changed."""
        now = self._clock()
        self.flights.start(events.started, now)
        for job_id, row in events.emitted:
            if (streaming := self.flights.streaming(job_id, now)) is not None:
                self._callbacks.partial(streaming.alive, row)
        if events.stats is not None:
            self._finish(events.finished, events.stats, now)
        for job_id, error in events.failed.items():
            if (flight := self.flights.end(job_id)) is not None:
                self._blame(flight, error, events.runs.get(job_id, 1))
        if events.expired:
            self._run(self._refuse(events.expired))
        for member, late_s in self.flights.late(now):
            self._reject(member, deadline_error(Cause.QUEUED, late_s))

    def _finish(self, finished: Sequence[tuple[int, Float32Array]], stats: BatchStats, now: float) -> None:
        ended = [(flight, row) for job_id, row in finished if (flight := self.flights.end(job_id)) is not None]
        stats = replace(stats, num_ended=len(ended))
        self._callbacks.ran(stats)
        for flight, row in ended:
            began = now if flight.started is None else flight.started
            own = replace(stats, device_s=max(0.0, now - began))
            self._callbacks.results([(member, [row]) for member in flight.alive], own)

    def _blame(self, flight: Flight, error: BaseException, num_runs: int) -> None:
        """The engine fails on one sequence, and works otherwise."""
        is_invalid = isinstance(error, InvalidOption | InvalidSource)
        if not is_invalid:
            record, num_tokens = record_fields(flight.leader.request.record), len(flight.leader.token_ids)
            log.warning("sequence_failed", tokens=num_tokens, runs=num_runs, error=repr(error), **record)
        for member in flight.alive:
            member.request.record.note_attempts(num_runs)
            failure = (
                InvalidRequest(f"This model cannot do that: {error}")
                if is_invalid
                else BackendError(f"The engine failed on this sequence. Raised: {error!r}"[:500])
            )
            row = member.indices[0] // member.request.message.sequences_per_row
            rejected = type(failure)(failure.message, {row: failure})
            rejected.__cause__ = error
            self._reject(member, rejected)

    def _refuse(self, jobs: Iterable[RejectedJob]) -> list[SequenceBlock]:
        """Reject what is late with jobs that were rejected. Returns the others of their flights, which run anew."""
        anew: list[SequenceBlock] = []
        for job in jobs:
            late, rest = self.flights.refuse(job)
            for member, by_s in late:
                self._reject(member, deadline_error(job.cause, by_s))
            anew += rest
        return [member for member in anew if not member.request.is_failed]

    def _reject(self, sequence: SequenceBlock, error: PenstockError) -> None:
        """End a request with an error, unless it has ended."""
        if not sequence.request.is_failed:
            self._end(sequence.request, error)

    def _end(self, request: PendingRequest, error: PenstockError) -> None:
        self._ended.append(request)
        self._rejections.append(request.reject(error))


def _sender(address: ReplyAddress) -> tuple[str, int | None, bytes | None]:
    """By which a cancellation names its request."""
    return address.topic, address.partition, address.correlation_id
