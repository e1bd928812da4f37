"""Rows in, results out: single flight, the scheduler's queue, batches on the engine's lanes, failures isolated.

Runs on the worker's event loop; the only waiting it does is for the engine's futures and for the scheduler's next wake.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from penstock.engine import EngineLanes
from penstock.engine.types import BatchOutput, Float32Array, PackedBatch
from penstock.producer.errors import BackendError, PenstockError
from penstock.scheduler import Cause, CostFunction, Job, Plan, Refusal, Scheduler, Wait
from penstock.worker.batching.batch import Batch, BatchStats, health_probe, pack, sums_of
from penstock.worker.batching.deadline_errors import refusal_error
from penstock.worker.batching.single_flight import Flights, deadline_of
from penstock.worker.requests.record import InFlight, Row

_TRIAL_EVERY_S = 1.0

log = structlog.get_logger("penstock.dispatcher")

Settled = Callable[[Row, Float32Array], None]
Failed = Callable[[Row, PenstockError], None]
BatchDone = Callable[[Sequence[tuple[Row, Float32Array]], BatchStats], None]


class Dispatcher:
    """Owns the rows between the cache look-up and their results.

    Every row added is settled or failed exactly once, unless another row of its record has failed.
    """

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
        """The callbacks are called on the event loop. `failed` is called once a record and marks it (InFlight.failed);
        `unhealthy` is called when the engine is past use.
        """
        self._lanes = lanes
        self._scheduler = scheduler
        self._cost = cost
        self._clock = clock
        self._settled = settled
        self._failed = failed
        self._batch_done = batch_done
        self._unhealthy = unhealthy
        self._flights = Flights()
        self._ids = itertools.count()
        self._queued: dict[int, Row] = {}  # by job id
        self._ready: deque[Batch] = deque()
        self._running: list[Batch] = []  # as they were submitted
        self._next_trial = -math.inf
        self._draining = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, rows: Sequence[Row]) -> None:
        """Queue rows; a row equal to one in flight shares its result. Those that would be too late fail at once."""
        now = self._clock()
        for row in rows:
            row.queued_at = now
        self._enqueue(self._flights.join(rows))
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

    def busy_s(self) -> float:
        """Predicted seconds until the lanes have worked off what has been planned, mean over lanes."""
        now = self._clock()
        batches = itertools.chain(self._running, self._ready)
        return sum([batch.left_s(now) for batch in batches]) / self._lanes.num_lanes

    def _first_free_s(self, now: float) -> float:
        """Predicted seconds until a lane is free."""
        if len(self._running) < self._lanes.num_lanes:
            return 0.0
        return min([batch.left_s(now) for batch in self._running[: self._lanes.num_lanes]])

    def _enqueue(self, rows: Sequence[Row]) -> None:
        """A job for each of these rows, on behalf of its flight. For those refused, another of the flight may go on."""
        while rows:
            is_idle = not (self._queued or self._running or self._ready)
            asked = {next(self._ids): row for row in rows}
            refused = self._ask(asked)
            if refused and is_idle:
                refused = self._try_one(asked, refused)
            refusals = [(asked.pop(refusal.id), refusal) for refusal in refused]
            for job_id, row in asked.items():
                self._lead(row, job_id)
            rows = self._refuse(refusals)

    def _ask(self, asked: Mapping[int, Row]) -> list[Refusal]:
        """Queue a job for each row; returns those refused. Of a record with one that is, none stays queued.

        Else rows that will not run, as their record fails, would keep out others that could.
        """
        now, busy_s = self._clock(), self.busy_s()
        records: dict[InFlight | None, list[Job]] = {}  # None: those of one row, which need not be told apart
        for job_id, row in asked.items():
            record = row.owner if len(row.owner.rows) > 1 else None
            records.setdefault(record, []).append(_job(job_id, row, row.owner.deadline))
        refused: list[Refusal] = []
        for record, jobs in records.items():
            too_late = self._scheduler.add(jobs, now, busy_s=busy_s)
            if too_late and record is not None:
                self._scheduler.remove([job.id for job in jobs])
            refused += too_late
        return refused

    def _try_one(self, asked: Mapping[int, Row], refused: list[Refusal]) -> list[Refusal]:
        """Now and then let one record in that would be late, as there is nothing else to do. Returns who stays refused.

        Or predictions that are far too high would refuse everything for ever: they learn from what is run.
        """
        now = self._clock()
        overloaded = {refusal.id: asked[refusal.id] for refusal in refused if refusal.cause is Cause.OVERLOADED}
        owners = {row.owner for row in overloaded.values()}
        if now < self._next_trial or not owners.issuperset(row.owner for row in asked.values()):
            return refused
        self._next_trial = now + _TRIAL_EVERY_S
        owner = next(iter(overloaded.values())).owner
        tried = {job_id: row for job_id, row in asked.items() if row.owner is owner}
        self._scheduler.add([_job(job_id, row, math.inf) for job_id, row in tried.items()], now)
        return [refusal for refusal in refused if refusal.id not in tried]

    def _lead(self, row: Row, job_id: int) -> None:
        former = self._flights.lead(row)
        if former is not None:
            self._scheduler.remove([former.job_id])
            del self._queued[former.job_id]
        row.job_id = job_id
        row.owner.job_ids.append(job_id)
        self._queued[job_id] = row

    def _dequeue(self, job_id: int) -> Row:
        """The row whose job no longer waits."""
        row = self._queued.pop(job_id)
        self._flights.start(row)
        return row

    def _refuse(self, refusals: Iterable[tuple[Row, Refusal]]) -> list[Row]:
        """Fail rows that are too late. Returns the rows that should get a job in their place."""
        without_leader: list[Row] = []
        for row, refusal in refusals:
            without_leader += [row, *self._fail_late(row, refusal.cause, refusal.late_s)]
        return self._heirs(without_leader)

    def _fail_late(self, row: Row, cause: Cause, late_s: float) -> list[Row]:
        """Fail a row, and those of its flight that would be late as well. Returns as `_fail`."""
        without_leader: list[Row] = []
        for late, by_s in self._flights.refuse(row, late_s):
            without_leader += self._fail(late, refusal_error(cause, by_s))
        return without_leader

    def _fail(self, row: Row, error: PenstockError) -> list[Row]:
        """Fail a record, once, and take back its jobs. Returns its rows whose flights have no leader any longer."""
        owner = row.owner
        if owner.failed:
            return []
        self._failed(row, error)
        return self._take_back(owner)

    def _take_back(self, owner: InFlight) -> list[Row]:
        ids = [job_id for job_id in owner.job_ids if job_id in self._queued]
        self._scheduler.remove(ids)
        return [self._dequeue(job_id) for job_id in ids]

    def _heirs(self, former: Iterable[Row]) -> list[Row]:
        """Of each flight that has lost its leader, the row that leads next, if any is left."""
        flights = {row.key: row for row in former}
        return [heir for row in flights.values() if (heir := self._flights.heir(row)) is not None]

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
        if len(self._running) < self._lanes.num_lanes:
            return True
        return len(self._running) == self._lanes.num_lanes and (bool(self._ready) or self._scheduler.is_full)

    def _plan(self) -> bool:
        """Ask the scheduler; true when there are batches to run."""
        while True:
            now = self._clock()
            idle_lanes = max(1, self._lanes.num_lanes - len(self._running))
            decision: Plan | Wait | None
            if self._draining:
                decision = self._scheduler.drain(now)
            else:
                decision = self._scheduler.poll(now, idle_lanes=idle_lanes, busy_s=self._first_free_s(now))
            if decision is None:
                return False
            refusals = [(self._dequeue(refusal.id), refusal) for refusal in decision.refused]
            if isinstance(decision, Plan):
                self._take(decision)
            self._enqueue(self._refuse(refusals))
            if self._ready:
                return True
            if not refusals:
                break
        if isinstance(decision, Wait) and decision.wake_at is not None:
            delay_s = max(0.0, decision.wake_at - now)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._dispatch)
        return False

    def _take(self, plan: Plan) -> None:
        for batch in plan.batches:
            rows = [self._dequeue(job_id) for job_id in batch.ids]
            self._ready.append(Batch(rows, plan.trigger.value, plan.partition, batch.predicted_s))

    def _submit(self, batch: Batch) -> None:
        batch.rows = self._still_wanted(batch.rows)
        if batch.rows:
            future = self._run(batch, pack(batch.rows))
            future.add_done_callback(lambda done: self._on_done(batch, done))

    def _still_wanted(self, rows: Sequence[Row]) -> list[Row]:
        """For each flight a row that its result is for, unless all of them were refused or are past their deadlines."""
        now = self._clock()
        kept: list[Row] = []
        without_leader: list[Row] = []
        for row in rows:
            late_s = now - deadline_of(row)
            if not row.owner.failed and late_s < 0:
                kept.append(row)
                continue
            if not row.owner.failed:
                without_leader += self._fail_late(row, Cause.QUEUED, late_s)
            kept += self._heirs([row])
        self._enqueue(self._heirs(without_leader))
        return kept

    def _run(self, batch: Batch, packed: PackedBatch) -> "asyncio.Future[BatchOutput]":
        self._running.append(batch)
        self._start_clocks()
        return self._lanes.submit(packed)

    def _end(self, batch: Batch) -> None:
        self._running.remove(batch)
        self._start_clocks()

    def _start_clocks(self) -> None:
        """The lanes take up batches as they were submitted."""
        now = self._clock()
        for batch in self._running[: self._lanes.num_lanes]:
            if batch.started is None:
                batch.started = now

    def _on_done(self, batch: Batch, done: "asyncio.Future[BatchOutput]") -> None:
        self._end(batch)
        if done.cancelled():
            return
        error = done.exception()
        if self._closed:
            return
        if error is None:
            now = self._clock()
            self._scheduler.ended(batch.predicted_s, batch.late_end_s(now), now)
            self._settle(batch, done.result())
        elif len(batch.rows) > 1:
            self._split(batch, error)
        else:
            self._isolate(batch.rows[0], error)
        self._dispatch()

    def _settle(self, batch: Batch, output: BatchOutput) -> None:
        if len(output.rows) != len(batch.rows):
            raise RuntimeError(f"The engine answered {len(output.rows)} of {len(batch.rows)} sequences. This is a bug.")
        results = [
            (row, result)
            for leader, result in zip(batch.rows, output.rows, strict=True)
            for row in self._flights.finish(leader)
        ]
        sums = sums_of(batch.rows)
        self._batch_done(results, BatchStats(batch.trigger, batch.partition, sums, batch.predicted_s, output.device_s))
        without_leader: list[Row] = []
        for row, result in results:
            late_s = batch.late_s(row)
            if late_s > 0:  # it waited for another's computation, or its batch for a lane, until it was too late
                without_leader += self._fail(row, refusal_error(Cause.QUEUED, late_s))
            else:
                self._settled(row, result)
        self._enqueue(self._heirs(without_leader))

    def _split(self, batch: Batch, error: BaseException) -> None:
        """A batch failed: run its halves, until the culprits are alone."""
        log.warning("batch_failed", sequences=len(batch.rows), error=repr(error))
        half = len(batch.rows) // 2
        for rows in (batch.rows[half:], batch.rows[:half]):
            self._ready.appendleft(Batch(rows, batch.trigger, batch.partition, self._predict(rows)))

    def _predict(self, rows: Sequence[Row]) -> float:
        sums = sums_of(rows)
        return float(self._cost.seconds(sums.tokens, sums.squares, sums.longest, sums.count))

    def _isolate(self, row: Row, error: BaseException) -> None:
        """A sequence failed alone. If a plain one-token batch fails too, the engine is at fault."""
        batch = Batch([row], "probe", "probe", 0.0)
        probe = self._run(batch, health_probe(row.options))

        def judge(done: "asyncio.Future[BatchOutput]") -> None:
            self._end(batch)
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
            without_leader: list[Row] = []
            for failed in self._flights.finish(row):
                without_leader += self._fail(failed, refusal)
            self._enqueue(self._heirs(without_leader))
            self._dispatch()

        probe.add_done_callback(judge)


def _job(job_id: int, row: Row, deadline: float | None) -> Job:
    return Job(job_id, len(row.token_ids), row.queued_at, deadline, row.owner.bulk)
