"""Rows in, results out: single flight, the scheduler's queue, batches on the engine's lanes, failures isolated.

Runs on the worker's event loop; the only waiting it does is for the engine's futures and for the scheduler's next wake.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from penstock.cache import SingleFlight
from penstock.engine import EngineLanes
from penstock.engine.types import BatchOutput, Float32Array, Int32Array, PackedBatch, TaskOptions
from penstock.producer.errors import BackendError, Expired, PenstockError
from penstock.scheduler import CostFunction, Job, Plan, Scheduler
from penstock.worker.inflight import Row

log = structlog.get_logger("penstock.dispatcher")


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What one batch was, for replies, logs and metrics."""

    trigger: str
    partition: str
    sequences: int
    tokens: int
    max_seqlen: int
    predicted_s: float
    device_s: float

    @property
    def padding_avoided(self) -> float:
        """Share of the slots of a padded batch that would have been padding."""
        return 1.0 - self.tokens / (self.sequences * self.max_seqlen)


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: list[Row]
    trigger: str
    partition: str


Settled = Callable[[Row, Float32Array], None]
Failed = Callable[[Row, PenstockError], None]
BatchDone = Callable[[Sequence[tuple[Row, Float32Array]], BatchStats], None]


class Dispatcher:
    """Owns the rows between the cache look-up and their results. Every row added is settled or failed exactly once."""

    def __init__(
        self,
        lanes: EngineLanes,
        scheduler: Scheduler,
        cost: CostFunction,
        *,
        clock: Callable[[], float],
        settled: Settled,
        failed: Failed,
        batch_done: BatchDone,
        unhealthy: Callable[[BaseException], None],
    ) -> None:
        """`settled` and `failed` are called on the event loop, once a row; `unhealthy` when the engine is past use."""
        self._lanes = lanes
        self._scheduler = scheduler
        self._cost = cost
        self._clock = clock
        self._settled = settled
        self._failed = failed
        self._batch_done = batch_done
        self._unhealthy = unhealthy
        self._flights: SingleFlight[Row] = SingleFlight()
        self._ids = itertools.count()
        self._queued: dict[int, Row] = {}
        self._ready: deque[_Batch] = deque()
        self._running = 0
        self._draining = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, rows: Sequence[Row]) -> None:
        """Queue rows; a row equal to one in flight waits for that one's result instead."""
        now = self._clock()
        jobs = []
        for row in rows:
            row.queued_at = now
            if self._flights.join(row.key, row):
                jobs.append(self._enqueue(row))
        self._scheduler.add(jobs)
        self._dispatch()

    def drain(self) -> None:
        """From now on run what is queued without waiting for batch mates."""
        self._draining = True
        self._dispatch()

    def resume(self) -> None:
        """Back to the scheduler's own triggers."""
        self._draining = False

    def close(self) -> None:
        """Run and settle nothing more. Rows still here are dropped; their records are not committed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _enqueue(self, row: Row) -> Job:
        job = Job(next(self._ids), len(row.token_ids), row.queued_at, row.owner.deadline)
        self._queued[job.id] = row
        return job

    def _dispatch(self) -> None:
        """Give the lanes what they can take."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        while self._has_room():
            if not self._ready and not self._plan():
                return
            self._submit(self._ready.popleft())

    def _has_room(self) -> bool:
        """One batch a lane; one more, prepared ahead, when waiting longer could not make it any fuller."""
        if self._running < self._lanes.num_lanes:
            return True
        return self._running == self._lanes.num_lanes and (bool(self._ready) or self._scheduler.is_full)

    def _plan(self) -> bool:
        """Ask the scheduler; true when there are batches to run."""
        now = self._clock()
        idle_lanes = max(1, self._lanes.num_lanes - self._running)
        decision = self._scheduler.drain() if self._draining else self._scheduler.poll(now, idle_lanes=idle_lanes)
        if isinstance(decision, Plan):
            for ids in decision.batches:
                rows = [self._queued.pop(job_id) for job_id in ids]
                self._ready.append(_Batch(rows, decision.trigger.value, decision.partition))
            return bool(self._ready)
        if decision is not None and decision.wake_at is not None:
            delay_s = max(0.0, decision.wake_at - now)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._dispatch)
        return False

    def _submit(self, batch: _Batch) -> None:
        rows = self._without_late(batch.rows)
        if not rows:
            return
        self._running += 1
        future = self._lanes.submit(pack(rows))
        submitted = _Batch(rows, batch.trigger, batch.partition)
        future.add_done_callback(lambda done: self._on_done(submitted, done))

    def _without_late(self, rows: list[Row]) -> list[Row]:
        """Rows worth running: their record is not refused already and its deadline not passed."""
        now = self._clock()
        kept = []
        for row in rows:
            deadline = row.owner.deadline
            if not row.owner.failed and (deadline is None or deadline > now):
                kept.append(row)
            else:
                self._give_up(row, now)
        return kept

    def _give_up(self, row: Row, now: float) -> None:
        """End a late row alone: rows that waited for its result still want it, and go on in its place."""
        living = []
        for late in (row, *self._flights.finish(row.key)):
            deadline = late.owner.deadline
            if late.owner.failed:
                continue
            if deadline is not None and deadline <= now:
                late_ms = (now - deadline) * 1000
                self._failed(late, Expired(f"The deadline passed {late_ms:.0f} ms before the request could be run."))
            else:
                living.append(late)
        leaders = [follower for follower in living if self._flights.join(follower.key, follower)]
        self._scheduler.add([self._enqueue(follower) for follower in leaders])

    def _on_done(self, batch: _Batch, done: "asyncio.Future[BatchOutput]") -> None:
        self._running -= 1
        if done.cancelled():
            return
        error = done.exception()
        if self._closed:
            return
        if error is None:
            self._settle(batch, done.result())
        elif len(batch.rows) > 1:
            self._split(batch, error)
        else:
            self._isolate(batch.rows[0], error)
        self._dispatch()

    def _settle(self, batch: _Batch, output: BatchOutput) -> None:
        rows = batch.rows
        if len(output.rows) != len(rows):
            raise RuntimeError(f"The engine answered {len(output.rows)} of {len(rows)} sequences. This is a bug.")
        results = list(zip(rows, output.rows, strict=True))
        for row, result in results[:]:
            results += [(follower, result) for follower in self._flights.finish(row.key)]
        self._batch_done(results, self._stats(batch, output.device_s))
        for row, result in results:
            self._settled(row, result)

    def _split(self, batch: _Batch, error: BaseException) -> None:
        """A batch failed: run its halves, until the culprits are alone."""
        log.warning("batch_failed", sequences=len(batch.rows), error=repr(error))
        half = len(batch.rows) // 2
        for rows in (batch.rows[half:], batch.rows[:half]):
            self._ready.appendleft(_Batch(rows, batch.trigger, batch.partition))

    def _isolate(self, row: Row, error: BaseException) -> None:
        """A sequence failed alone. If a plain one-token batch fails too, the engine is at fault."""
        self._running += 1
        probe = self._lanes.submit(health_probe(row.options))

        def judge(done: "asyncio.Future[BatchOutput]") -> None:
            self._running -= 1
            if done.cancelled():
                return
            broken = done.exception()
            if self._closed:
                return
            if broken is not None:
                log.error("engine_unhealthy", error=repr(broken))
                self.close()
                self._unhealthy(broken)
                return
            log.warning("sequence_failed", tokens=len(row.token_ids), error=repr(error))
            refusal = BackendError(f"The engine failed on this sequence: {error!r}"[:500])
            for failed in (row, *self._flights.finish(row.key)):
                self._failed(failed, refusal)
            self._dispatch()

        probe.add_done_callback(judge)

    def _stats(self, batch: _Batch, device_s: float) -> BatchStats:
        lengths = np.array([len(row.token_ids) for row in batch.rows])
        tokens, longest = int(lengths.sum()), int(lengths.max())
        squares = int((lengths * lengths).sum())
        predicted_s = float(self._cost.seconds(tokens, squares, longest, len(lengths)))
        return BatchStats(batch.trigger, batch.partition, len(lengths), tokens, longest, predicted_s, device_s)


def pack(rows: Sequence[Row]) -> PackedBatch:
    """The engine's view of rows: flat arrays, nothing else."""
    lengths = [len(row.token_ids) for row in rows]
    cu_seqlens = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    types = None
    if any(row.token_type_ids is not None for row in rows):
        types = np.concatenate([_types(row) for row in rows])
    token_ids = np.concatenate([row.token_ids for row in rows])
    return PackedBatch(token_ids, cu_seqlens, max(lengths), types, [row.options for row in rows])


def _types(row: Row) -> Int32Array:
    return row.token_type_ids if row.token_type_ids is not None else np.zeros(len(row.token_ids), np.int32)


def health_probe(options: TaskOptions) -> PackedBatch:
    """The smallest clean batch: one sequence of one token."""
    return PackedBatch(np.zeros(1, np.int32), np.array([0, 1], np.int32), 1, None, [options])
