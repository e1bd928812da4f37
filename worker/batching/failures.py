"""Failed batches: retried where the failure may pass, else halved until the culprits are alone and are blamed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from penstock.engine import EngineLanes
from penstock.engine.errors import DeviceFailed, NotFinite, is_out_of_memory, wider_than
from penstock.engine.types import BatchOutput, PackedBatch
from penstock.scheduler import LaneBatch, LaneDriver
from penstock.worker.batching.batch import sums_of
from penstock.worker.batching.failure_rules import Remedy, pause_s, remedy_of
from penstock.worker.batching.token_budget import TokenBudget
from penstock.worker.requests.request import PendingSequence

log = structlog.get_logger("penstock.dispatcher")


class FailedBatches:
    """Decides what becomes of each failed batch. Called on the worker's event loop, by the dispatcher.

    - A lack of memory: the halves run, and the token budget shrinks.
    - Another failure that may pass: the batch runs again, up to `MAX_RETRIES` times, after growing pauses.
    - Else the halves run. k culprits among n sequences take at most 1 + 2k·⌈log2 n⌉ runs, and k probes.
    - A sequence that fails alone is blamed if a probe, a batch of one token, runs. If not, the engine is at fault.
    - Sequences whose results are not finite are blamed at once if another of their batch has a finite one, else by a
      probe. They do not run again: equal input gives equal results.
    """

    def __init__(
        self,
        lanes: EngineLanes,
        driver: LaneDriver,
        clock: Callable[[], float],
        planned: Mapping[int, PendingSequence],
        *,
        part: Callable[[LaneBatch, tuple[int, ...]], LaneBatch],
        run_again: Callable[[Sequence[LaneBatch]], None],
        blame: Callable[[int, BaseException], None],
        unhealthy: Callable[[BaseException], None],
    ) -> None:
        """The callbacks run on the event loop.

        Args:
            planned: the dispatcher's sequences by job id; those of a failed batch stay there until they are blamed.
            part: makes a batch of some jobs of another.
            run_again: runs batches before any other. Without effect once the dispatcher is closed.
            blame: the sequence of this job fails with its error.
            unhealthy: the engine fails on clean input, or its device has failed for good.
        """
        self.token_budget = TokenBudget(driver.scheduler.settings.max_batch_tokens, clock)
        self._lanes = lanes
        self._driver = driver
        self._clock = clock
        self._planned = planned
        self._part = part
        self._run_again = run_again
        self._blame = blame
        self._unhealthy = unhealthy

    def handle(self, batch: LaneBatch, error: BaseException) -> None:
        """A batch failed, and has left its lane."""
        sequences = [self._planned[job_id] for job_id in batch.ids]
        for sequence in sequences:
            sequence.note_failure()
        if isinstance(error, DeviceFailed):
            self._unhealthy(error)
            return
        match remedy_of(error, len(sequences), batch.num_retries):
            case Remedy.RETRY:
                self._retry(batch, error)
            case Remedy.SPLIT:
                if is_out_of_memory(error):
                    self.token_budget.shrink(sums_of(sequences).tokens)
                self._split(batch, error)
            case Remedy.ISOLATE:
                self._probe(batch.ids, error)

    def blame_rows(self, batch: LaneBatch, output: BatchOutput) -> None:
        """A batch ran, and rows of its output are not finite. Those sequences leave `planned`, now or by a probe."""
        dtype = self._lanes.dtype
        error = NotFinite(f"the result holds NaN or infinity: numbers overflow in {dtype}. {wider_than(dtype)}")
        ids = [batch.ids[row] for row in output.not_finite]
        for job_id in ids:
            self._planned[job_id].note_failure()
        if len(ids) == len(batch.ids):
            self._probe(ids, error)
            return
        for job_id in ids:
            self._blame(job_id, error)

    def _retry(self, batch: LaneBatch, error: BaseException) -> None:
        again = self._part(batch, batch.ids)
        again.num_retries += 1
        seconds = pause_s(batch.num_retries)
        pause = round(seconds, 3)
        log.warning("batch_retried", batch=batch.number, sequences=len(batch.ids), error=repr(error), pause_s=pause)
        asyncio.get_running_loop().call_later(seconds, self._run_again, [again])

    def _split(self, batch: LaneBatch, error: BaseException) -> None:
        log.warning("batch_failed", batch=batch.number, sequences=len(batch.ids), error=repr(error))
        half = len(batch.ids) // 2
        self._run_again([self._part(batch, ids) for ids in (batch.ids[:half], batch.ids[half:])])

    def _probe(self, ids: Sequence[int], error: BaseException) -> None:
        """No sequence of these has a result: find out whether they or the engine are at fault."""
        probe = LaneBatch((), "probe", "probe", 0.0)
        self._driver.run_now(probe, self._clock())

        def judge(done: "asyncio.Future[BatchOutput]") -> None:
            self._driver.finish(probe, self._clock(), failed=True)
            if done.cancelled():
                return
            broken = done.exception()
            if broken is None and done.result().not_finite:
                broken = NotFinite("the result of one token holds NaN or infinity.")
            if broken is not None:
                self._unhealthy(broken)
                return
            for job_id in ids:
                self._blame(job_id, error)

        options = self._planned[ids[0]].options
        self._lanes.submit(PackedBatch.probe(options)).add_done_callback(judge)
