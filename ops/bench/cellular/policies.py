"""Policies from before cellular batching, with the methods of `CellScheduler`. They form batches of requests."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from penstock.scheduler.cellular import CellJob, CellRule, CellScheduler, CellSettings, CellTask
from penstock.scheduler.cellular.types import BoolArray, CellGraph, Int32Array
from penstock.scheduler.types import RejectedJob, Wait


class GraphBatching:
    """A batch of requests runs to its end before the next begins, and all its results come together (Fold, DyNet).

    Nodes of one cell type run together, as far as the requests of the batch have them. A request that ends leaves its
    rows empty, which costs nothing. Deadlines and classes do not count. One device.
    """

    def __init__(self, rules: Sequence[CellRule], settings: CellSettings, max_jobs: int) -> None:
        self._inner = CellScheduler(rules, settings)
        self._max_jobs = max_jobs
        self._queue: dict[int, CellJob] = {}
        self._running: set[int] = set()
        self._ended: list[int] = []

    def add(self, jobs: Sequence[CellJob], now: float) -> list[RejectedJob]:
        """Queue jobs. None is rejected."""
        self._queue.update((job.id, job) for job in jobs)
        return []

    def poll(self, now: float, device: int = 0) -> CellTask | Wait:
        """The next task of the batch. The next batch begins once no job of the last one runs."""
        if not self._running and self._queue:
            batch = self._next_batch()
            self._running = {job.id for job in batch}
            for job in batch:
                del self._queue[job.id]
            self._inner.add([job._replace(deadline=None) for job in batch], now)
        return self._inner.poll(now, device)

    def finished(
        self, task_id: int, now: float, steps: Int32Array, is_stopped: BoolArray, measured_s: float
    ) -> list[int]:
        """The ids of the whole batch, once its last job has ended."""
        ended = self._inner.finished(task_id, now, steps, is_stopped, measured_s)
        self._running.difference_update(ended)
        self._ended += ended
        if self._running:
            return []
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, ids: Iterable[int]) -> int:
        """Remove jobs; returns how many were active."""
        gone = list(ids)
        num_queued = len([job_id for job_id in gone if self._queue.pop(job_id, None) is not None])
        self._running.difference_update(gone)
        return num_queued + self._inner.cancel(gone)

    def _next_batch(self) -> list[CellJob]:
        return list(self._queue.values())[: self._max_jobs]


class BucketPadding(GraphBatching):
    """Chains are padded to a multiple of `width` steps, and batches hold chains of one length (MXNet, TensorFlow).

    Buckets take turns. A chain that stops early runs on to its padded length.
    """

    def __init__(self, rules: Sequence[CellRule], settings: CellSettings, max_jobs: int, width: int = 10) -> None:
        super().__init__(rules, settings, max_jobs)
        self._width = width
        self._turns: deque[bytes] = deque()  # buckets that may hold jobs, by their padded steps
        self._buckets: dict[bytes, deque[int]] = {}
        self._asked: dict[int, Int32Array] = {}  # steps of the rows of outstanding tasks

    def add(self, jobs: Sequence[CellJob], now: float) -> list[RejectedJob]:
        """Queue jobs in their buckets. None is rejected."""
        padded = [job._replace(graph=self._pad(job.graph)) for job in jobs]
        for job in padded:
            bucket = job.graph.steps.tobytes()
            if bucket not in self._buckets:
                self._buckets[bucket] = deque()
                self._turns.append(bucket)
            self._buckets[bucket].append(job.id)
        return super().add(padded, now)

    def poll(self, now: float, device: int = 0) -> CellTask | Wait:
        """The next task of the batch."""
        plan = super().poll(now, device)
        if isinstance(plan, CellTask):
            self._asked[plan.id] = plan.steps
        return plan

    def finished(
        self, task_id: int, now: float, steps: Int32Array, is_stopped: BoolArray, measured_s: float
    ) -> list[int]:
        """The ids of the whole batch, once it has ended."""
        asked = self._asked.pop(task_id)
        return super().finished(task_id, now, asked, np.zeros(len(asked), np.bool_), measured_s)

    def _next_batch(self) -> list[CellJob]:
        while True:
            bucket = self._turns.popleft()
            ids = self._buckets[bucket]
            batch: list[CellJob] = []
            while ids and len(batch) < self._max_jobs:
                job = self._queue.get(ids.popleft())
                batch += [] if job is None else [job]
            if ids:
                self._turns.append(bucket)
            else:
                del self._buckets[bucket]
            if batch:
                return batch

    def _pad(self, graph: CellGraph) -> CellGraph:
        return graph._replace(steps=(-(-graph.steps // self._width) * self._width).astype(np.int32))
