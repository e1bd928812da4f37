"""The batch stage: sequences in, results and rejections out. Batches run on engine lanes; failures are isolated."""

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Sequence

import structlog

from penstock.engine import EngineLanes
from penstock.engine.types import BatchOutput
from penstock.producer.errors import BackendError
from penstock.producer.wire.headers import ReplyAddress
from penstock.scheduler import Cause, CostFunction, LaneBatch, LaneDriver
from penstock.worker.batching.batch import BatchStats, pack, sums_of
from penstock.worker.batching.failures import FailedBatches
from penstock.worker.batching.flight_queue import FlightQueue
from penstock.worker.batching.single_flight import deadline_of
from penstock.worker.batching.watchdog import Watchdog, WorkUnderway
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields
from penstock.worker.requests.request import PendingSequence, Rejection, SequenceResults

log = structlog.get_logger("penstock.dispatcher")


class Dispatcher:
    """Owns sequences between the cache look-up and their results. Runs on the worker's event loop.

    Every sequence added ends once: in the results of a batch, or with its request, which is rejected once.
    """

    def __init__(
        self,
        lanes: EngineLanes,
        driver: LaneDriver,
        cost: CostFunction,
        *,
        clock: Callable[[], float] = time.monotonic,
        batch_done: Callable[[BatchStats, SequenceResults], None],
        rejected: Callable[[Sequence[Rejection]], None],
        unhealthy: Callable[[BaseException], None],
    ) -> None:
        """The callbacks run on the event loop.

        Args:
            batch_done: a batch ran. Results of requests that have failed are among them.
            rejected: these requests have failed.
            unhealthy: the engine fails on clean input, or a batch does not end. The dispatcher has closed itself.
        """
        self._lanes = lanes
        self._driver = driver
        self._cost = cost
        self._clock = clock
        self._batch_done = batch_done
        self._rejected = rejected
        self._unhealthy = unhealthy
        self._queue = FlightQueue(driver, clock)
        self._planned: dict[int, PendingSequence] = {}  # by job id: leaders in batches that have not finished
        self._failures = FailedBatches(
            lanes,
            driver,
            clock,
            self._planned,
            part=self._part,
            run_again=self._run_again,
            blame=self._blame,
            unhealthy=self._give_up,
        )
        self.token_budget = self._failures.token_budget
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sequences: Sequence[PendingSequence]) -> None:
        """Queue sequences. Requests that cannot meet their deadlines are rejected at once."""
        now = self._clock()
        for sequence in sequences:
            sequence.request.times.note_queued(now)
        self._queue.add(sequences)
        self._dispatch()

    def drain(self) -> None:
        """From now on run what is queued without waiting for full batches."""
        self._driver.is_draining = True
        self._dispatch()

    def resume(self) -> None:
        """Go back to the scheduler's own triggers."""
        self._driver.is_draining = False

    def cancel(self, addresses: Collection[ReplyAddress]) -> None:
        """See `SequenceDispatcher`. A batch takes milliseconds: nothing is cancelled."""

    def take_back(self, sources: Collection[Source], *, bulk_only: bool, begun: bool) -> list[PendingRecord]:
        """Drop requests of these partitions. Returns their records, which remain without an answer.

        Without `begun`: only requests of which some sequence has no batch yet.
        """
        chosen = [
            request
            for request in self._queue.in_flight(queued=not begun)
            if request.record.source in sources and (request.bulk or not bulk_only)
        ]
        records = self._queue.take_back(chosen)
        self._dispatch()
        return records

    async def watch(self) -> None:
        """Give up when a batch does not end. Runs until cancelled."""
        await Watchdog(self._running, self._clock, self._give_up).run()

    def _running(self) -> list[WorkUnderway]:
        return [
            WorkUnderway(batch, f"A batch of {len(batch.ids)} sequences", batch.predicted_s)
            for batch in self._driver.running
        ]

    def close(self) -> None:
        """Run nothing more and report nothing more. Records whose sequences are here stay uncommitted."""
        self._closed = True
        self._stop_timer()

    def _dispatch(self) -> None:
        """Hand the lanes what they can take, then report what was rejected. Every step ends here."""
        self._stop_timer()
        if self._closed:
            return
        while True:
            dispatch = self._driver.dispatch(self._clock())
            self._planned.update(zip(dispatch.planned, self._queue.take(dispatch.planned), strict=True))
            self._queue.reject_jobs(dispatch.rejected)
            are_unchanged = [self._submit(batch) for batch in dispatch.start]
            if all(are_unchanged) and not dispatch.rejected:
                break
        if dispatch.wake_at is not None:
            delay_s = max(0.0, dispatch.wake_at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._dispatch)
        if rejections := self._queue.take_rejections():
            self._rejected(rejections)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _submit(self, batch: LaneBatch) -> bool:
        """Hand a batch to the lanes, without flights that no request waits for any longer.

        Returns whether the whole batch runs as planned. If not, jobs may be queued and lanes idle.
        """
        now, is_unchanged = self._clock(), True
        for job_id in batch.ids:
            leader = self._planned[job_id]
            if leader.request.is_failed or deadline_of(leader) <= now:
                self._replace(job_id, leader, now)
                is_unchanged = False
        ids = tuple([job_id for job_id in batch.ids if job_id in self._planned])
        if not ids:
            self._driver.finish(batch, now, failed=True)
            return False
        sequences = [self._planned[job_id] for job_id in ids]
        num_fitting = self.token_budget.num_fitting(sequences)
        if num_fitting < len(ids):
            self._driver.run_first([self._part(batch, ids[num_fitting:])])
            ids, sequences = ids[:num_fitting], sequences[:num_fitting]
            is_unchanged = False
        if len(ids) < len(batch.ids):
            batch.ids, batch.predicted_s = ids, self._predict(sequences)
        future = self._lanes.submit(pack(sequences))
        future.add_done_callback(functools.partial(self._on_done, batch))
        return is_unchanged

    def _replace(self, job_id: int, leader: PendingSequence, now: float) -> None:
        """The leader of a planned job has failed or expired: run the job for another sequence of its flight, if any."""
        if not leader.request.is_failed:
            self._queue.expire(leader, now - deadline_of(leader))
        del self._planned[job_id]
        if (following := self._queue.next_leader(leader)) is not None:
            self._planned[job_id] = following

    def _on_done(self, batch: LaneBatch, done: "asyncio.Future[BatchOutput]") -> None:
        error = None if done.cancelled() else done.exception()
        self._driver.finish(batch, self._clock(), failed=done.cancelled() or error is not None)
        if done.cancelled() or self._closed:
            return
        if error is None:
            self._finish(batch, done.result())
        else:
            self._failures.handle(batch, error)
        self._dispatch()

    def _finish(self, batch: LaneBatch, output: BatchOutput) -> None:
        """Report the results of a batch. A request fails if its deadline had passed when a lane took up the batch.

        Sequences whose results are not finite fail; they are neither reported nor cached.
        """
        if len(output.rows) != len(batch.ids):
            raise RuntimeError(f"The engine answered {len(output.rows)} of {len(batch.ids)} sequences. This is a bug.")
        bad = frozenset(output.not_finite)
        good = [index for index in range(len(batch.ids)) if index not in bad]
        if good:
            self._report(batch, good, output)
        if bad:
            self._failures.blame_rows(batch, output)

    def _report(self, batch: LaneBatch, indices: Sequence[int], output: BatchOutput) -> None:
        """Report the results of these sequences, and the statistics of all."""
        sums = sums_of([self._planned[job_id] for job_id in batch.ids])
        flights = self._queue.finish([self._planned.pop(batch.ids[index]) for index in indices])
        results = [
            (sequence, output.rows[index])
            for flight, index in zip(flights, indices, strict=True)
            for sequence in flight
        ]
        if batch.started is not None:
            for sequence in [one for one, _ in results if deadline_of(one) < batch.started]:
                late_s = batch.started - deadline_of(sequence)
                self._queue.reject(sequence, deadline_error(Cause.QUEUED, late_s))
        rule = batch.trigger, batch.partition, batch.dp_gain
        stats = BatchStats(*rule, sums, batch.predicted_s, output.device_s, number=batch.number)
        self._batch_done(stats, results)

    def _part(self, batch: LaneBatch, ids: tuple[int, ...]) -> LaneBatch:
        predicted_s = self._predict([self._planned[job_id] for job_id in ids])
        rule = batch.trigger, batch.partition
        retries, number = batch.num_retries, batch.number
        return LaneBatch(ids, *rule, predicted_s, batch.dp_gain, num_retries=retries, number=number)

    def _predict(self, sequences: Sequence[PendingSequence]) -> float:
        sums = sums_of(sequences)
        return float(self._cost.seconds(sums.tokens, sums.squares, sums.longest, sums.count))

    def _run_again(self, batches: Sequence[LaneBatch]) -> None:
        """Batches of planned jobs run before any other."""
        self._driver.run_first(batches)
        self._dispatch()

    def _blame(self, job_id: int, error: BaseException) -> None:
        """The engine fails on one sequence, and works otherwise."""
        leader = self._planned.pop(job_id)
        record = record_fields(leader.request.record)
        tokens, runs = len(leader.token_ids), leader.num_failures
        log.warning("sequence_failed", tokens=tokens, runs=runs, error=repr(error), **record)
        failure = BackendError(f"The engine failed on this sequence. Raised: {error!r}"[:500])
        for flight in self._queue.finish([leader]):
            for one in flight:
                one.request.record.note_attempts(leader.num_failures)
                rejected = BackendError(failure.message, {one.index: failure})
                rejected.__cause__ = error
                self._queue.reject(one, rejected)
        self._dispatch()

    def _give_up(self, error: BaseException) -> None:
        if self._closed:
            return
        log.error("engine_unhealthy", error=repr(error))
        self.close()
        self._unhealthy(error)
