"""Runs jobs in batches on engine lanes, by the scheduler's plans. Batches that fail are isolated."""

import asyncio
import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from penstock.engine import EngineLanes
from penstock.engine.errors import DeviceFailed, NotFinite, wider_than
from penstock.engine.types import BatchOutput, PackedBatch
from penstock.scheduler import CostFunction, Job, LaneBatch, LaneDriver, RejectedJob
from penstock.scheduler.lane_driver import Dispatch
from penstock.worker.batching.batch import BatchStats, Sums, lengths_of, pack, sums_of
from penstock.worker.batching.failure_rules import next_attempt
from penstock.worker.batching.flights import Flight
from penstock.worker.batching.job_runner import JobEvents, RunnerOwner
from penstock.worker.batching.token_budget import TokenBudget
from penstock.worker.batching.watchdog import WorkUnderway
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_block import SequenceBlock

# Sequences of requests that are one job. When a part of it is planned, the rest is gone through again: in batches of
# eight, 64 requests of 64 take 5.9 us a sequence in jobs of 128, and 15.8 in one.
_MOST_JOINED = 128


class LaneRunner:
    """Implements `JobRunner`. Lanes run one batch after another, of jobs that the scheduler puts together.

    Failed batches run again by `next_attempt`. Sequences whose results are not finite are blamed at once if another of
    their batch has a finite one, else by a probe. They do not run again: equal input gives equal results.
    """

    by_step = False

    def __init__(
        self,
        lanes: EngineLanes,
        driver: LaneDriver,
        cost: CostFunction,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` is called before any other method."""
        self._lanes = lanes
        self._driver = driver
        self._cost = cost
        self._clock = clock
        self._owner: RunnerOwner
        self._num_runs: Counter[int] = Counter()  # failed ones, by job id
        self._is_settled = True  # whether nothing can begin before an event
        self._held: Dispatch | None = None  # what is to start, once the owner has taken the rejections with it
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self.token_budget = TokenBudget(driver.scheduler.settings.max_batch_tokens, clock)

    def start(self, owner: RunnerOwner) -> None:
        """Begin. Called once."""
        self._owner = owner

    def add(self, flights: Sequence[Flight]) -> list[RejectedJob]:
        """See `JobRunner`. Of a request the scheduler takes all or nothing: a part of it answers nothing."""
        rejected = self._driver.add(_jobs(flights), self._clock())
        refused = {one.id for one in rejected}
        formers = [one.former.job_id for one in flights if one.former is not None and one.job_id not in refused]
        if formers:
            self.cancel(formers)
        self._is_settled = False
        return rejected

    def cancel(self, ids: Sequence[int]) -> None:
        """See `JobRunner`."""
        self._driver.scheduler.remove(ids)
        self._is_settled = False

    def drain(self) -> None:
        """See `JobRunner`."""
        self._driver.is_draining = True
        self._is_settled = False

    def resume(self) -> None:
        """See `JobRunner`. Go back to the scheduler's own triggers."""
        self._driver.is_draining = False

    def advance(self) -> JobEvents | None:
        """See `JobRunner`. Hand the lanes what they can take."""
        if self._is_settled:
            return None
        self._stop_timer()
        held, self._held = self._held, None
        dispatch = held or self._driver.dispatch(self._clock())
        if dispatch.rejected:  # first of all: other jobs of their requests may be among those that are to start
            self._held = dispatch._replace(planned=[], rejected=[])
            return JobEvents(started=dispatch.planned, expired=dispatch.rejected)
        are_unchanged = [self._submit(batch) for batch in dispatch.start]
        self._is_settled = all(are_unchanged) and held is None
        if dispatch.wake_at is not None:
            delay_s = max(0.0, dispatch.wake_at - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)
        if self._is_settled and not dispatch.planned:
            return None
        return JobEvents(started=dispatch.planned)

    def running(self) -> list[WorkUnderway]:
        """See `JobRunner`."""
        return [
            WorkUnderway(batch, f"A batch of {len(batch.ids)} sequences", batch.predicted_s)
            for batch in self._driver.running
        ]

    def stop(self) -> None:
        """See `JobRunner`."""
        self._stopped = True
        self._stop_timer()

    def _wake(self) -> None:
        """Something can begin that could not before."""
        if not self._stopped:
            self._is_settled = False
            self._owner.on_events(None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _submit(self, batch: LaneBatch) -> bool:
        """Hand a batch to the lanes, without jobs that no request waits for any longer.

        Returns whether the whole batch runs as planned. If not, jobs may be queued and lanes idle.
        """
        # In the order of their ids sequences of one request lie side by side. Within a batch the order is of no effect.
        now, planned = self._clock(), sorted(batch.ids)
        ids, blocks = self._owner.wanted(planned, now)
        if len(ids) < len(planned):
            self._forget([job_id for job_id in planned if job_id not in ids])
        if not ids:
            self._driver.finish(batch, now, failed=True)
            return False
        num_fitting = self.token_budget.num_fitting(lengths_of(blocks))
        if num_fitting < len(ids):
            self._driver.run_first([self._part(batch, ids[num_fitting:], batch.num_retries)])
            ids = ids[:num_fitting]
            blocks = self._owner.blocks(ids)
        batch.ids = tuple(ids)
        if len(ids) < len(planned):
            batch.predicted_s = self._predict(blocks)
        future = self._lanes.submit(pack(blocks))
        future.add_done_callback(functools.partial(self._on_done, batch, sums_of(blocks)))
        return len(ids) == len(planned)

    def _on_done(self, batch: LaneBatch, sums: Sums, done: "asyncio.Future[BatchOutput]") -> None:
        error = None if done.cancelled() else done.exception()
        self._driver.finish(batch, self._clock(), failed=done.cancelled() or error is not None)
        if done.cancelled() or self._stopped:
            return
        events = None
        if error is None:
            events = self._finish(batch, sums, done.result())
        else:
            self._repair(batch, sums, error)
        self._is_settled = False
        self._owner.on_events(events)

    def _finish(self, batch: LaneBatch, sums: Sums, output: BatchOutput) -> JobEvents | None:
        """Report the results of a batch. Those that are not finite fail; they are neither reported nor cached."""
        ids, rows = batch.ids, output.rows
        if len(rows) != len(ids):
            raise RuntimeError(f"The engine answered {len(rows)} of {len(ids)} sequences. This is a bug.")
        bad_rows = frozenset(output.not_finite)
        bad = [ids[index] for index in output.not_finite]
        good = [index for index in range(len(ids)) if index not in bad_rows]
        if good:
            rule = batch.trigger, batch.partition, batch.dp_gain
            stats = BatchStats(*rule, sums, batch.predicted_s, output.device_s, number=batch.number)
            finished = [ids[index] for index in good]
            self._forget(finished)
            self._owner.on_batch(finished, [rows[index] for index in good], stats, batch.started)
        if not bad:
            return None
        dtype = self._lanes.dtype
        error = NotFinite(f"the result holds NaN or infinity: numbers overflow in {dtype}. {wider_than(dtype)}")
        self._num_runs.update(bad)
        if good:
            return self._blamed(bad, error)
        self._probe(bad, error)
        return None

    def _repair(self, batch: LaneBatch, sums: Sums, error: BaseException) -> None:
        """A batch failed, and has left its lane: parts of it run again, or the engine is probed."""
        self._num_runs.update(batch.ids)
        if isinstance(error, DeviceFailed):
            self._owner.give_up(error)
            return
        attempt = next_attempt(
            batch.ids,
            error,
            batch.num_retries,
            self.token_budget,
            sums.tokens,
            batch=batch.number,
        )
        if attempt is None:
            self._probe(batch.ids, error)
            return
        parts = [self._part(batch, ids, attempt.num_retries) for ids in attempt.parts]
        if attempt.pause_s:
            asyncio.get_running_loop().call_later(attempt.pause_s, self._run_again, parts)
        else:
            self._driver.run_first(parts)

    def _run_again(self, batches: Sequence[LaneBatch]) -> None:
        self._driver.run_first(batches)
        self._wake()

    def _probe(self, ids: Sequence[int], error: BaseException) -> None:
        """No sequence of these has a result: find out whether they or the engine are at fault."""
        probe = LaneBatch((), "probe", "probe", 0.0)
        self._driver.run_now(probe, self._clock())

        def judge(done: "asyncio.Future[BatchOutput]") -> None:
            self._driver.finish(probe, self._clock(), failed=True)
            if done.cancelled() or self._stopped:
                return
            broken = done.exception()
            if broken is None and done.result().not_finite:
                broken = NotFinite("the result of one token holds NaN or infinity.")
            if broken is not None:
                self._owner.give_up(broken)
                return
            self._is_settled = False
            self._owner.on_events(self._blamed(ids, error))

        (block,) = self._owner.blocks(ids[:1])
        self._lanes.submit(PackedBatch.probe(block.options)).add_done_callback(judge)

    def _blamed(self, ids: Sequence[int], error: BaseException) -> JobEvents:
        events = JobEvents(failed=dict.fromkeys(ids, error), runs={job_id: self._num_runs[job_id] for job_id in ids})
        self._forget(ids)
        return events

    def _forget(self, ids: Sequence[int]) -> None:
        if self._num_runs:
            for job_id in ids:
                del self._num_runs[job_id]

    def _part(self, batch: LaneBatch, ids: Sequence[int], num_retries: int) -> LaneBatch:
        predicted_s = self._predict(self._owner.blocks(ids))
        rule = batch.trigger, batch.partition
        return LaneBatch(tuple(ids), *rule, predicted_s, batch.dp_gain, num_retries=num_retries, number=batch.number)

    def _predict(self, blocks: Sequence[SequenceBlock]) -> float:
        sums = sums_of(blocks)
        return float(self._cost.seconds(sums.tokens, sums.squares, sums.longest, sums.count))


def _jobs(flights: Iterable[Flight]) -> list[Job]:
    """A job for all that requests lead which are due together, up to a number of sequences."""
    led: defaultdict[PendingRequest, list[Flight]] = defaultdict(list)
    for flight in flights:
        led[flight.leader.request].append(flight)
    jobs: list[Job] = []
    underway: dict[tuple[float, float | None, bool], tuple[list[int], list[int], list[int]]] = {}
    for request, own in led.items():
        due = request.times.queued, request.deadline, request.bulk
        if due not in underway or len(underway[due][0]) >= _MOST_JOINED:
            ids, lengths, sizes = underway[due] = [], [], []
            jobs.append(Job(ids, lengths, *due, sizes))
        ids, lengths, sizes = underway[due]
        num_before = len(ids)
        for flight in own:
            ids += flight.jobs
            lengths += flight.leader.lengths
        sizes.append(len(ids) - num_before)
    return jobs
