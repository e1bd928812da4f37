"""Policies from before cellular batching, with the methods of `CellScheduler`. They form batches of requests."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.scheduler.cellular import CellJob, CellRule, CellTask
from penstock.scheduler.cellular.choice import least_quantum
from penstock.scheduler.cellular.types import BoolArray, CellGraph, Int32Array
from penstock.scheduler.types import RejectedJob, Wait

Rows = npt.NDArray[np.int64]
Ranks = Callable[[CellGraph], Int32Array]  # of each node; each rank is above those of the nodes that it waits for

_MAX_TASKS = 2  # outstanding, as of the scheduler that they are compared with


class CellScheduling(Protocol):
    """Methods that `CellScheduler` and the policies it is compared with have in common."""

    def add(self, jobs: Sequence[CellJob], now: float) -> list[RejectedJob]: ...

    def poll(self, now: float) -> CellTask | Wait: ...

    def finished(
        self, task_id: int, now: float, steps: Int32Array, is_stopped: BoolArray, measured_s: float
    ) -> list[int]: ...


def depths(graph: CellGraph) -> Int32Array:
    """Nodes on the longest path to each node: the order of depth-based batching (Fold)."""
    found: list[int] = []
    for row in graph.dependencies.tolist():
        found.append(1 + max([found[node] for node in row if node >= 0], default=0))
    return np.array(found, np.int32)


def depths_results_last(graph: CellGraph) -> Int32Array:
    """Depths, but nodes that no node reads come after all others.

    So runs DyNet's agenda, which takes the cell type of the least mean depth, on trees whose result is read at the
    root; it would sometimes run the first of the results earlier, in a task of their own.
    """
    found = depths(graph)
    found[np.setdiff1d(np.arange(len(found)), graph.dependencies)] = np.iinfo(np.int32).max
    return found


def padded(steps: Int32Array, width: int) -> Int32Array:
    """Steps of nodes, rounded up to multiples of a bucket's width."""
    return (-(-steps // width) * width).astype(np.int32)


@dataclass(slots=True)
class _Group:
    """Nodes of one cell type that run together, for all their steps."""

    cell: int
    rows: Rows  # of the batch


class _Batch:
    """Requests that began together, and their nodes end to end."""

    def __init__(self, jobs: Sequence[CellJob], ranks: Sequence[Int32Array], rules: Sequence[CellRule]) -> None:
        graphs = [job.graph for job in jobs]
        counts = [len(graph.cells) for graph in graphs]
        self.jobs = np.array([job.id for job in jobs], np.int64)
        self.ids = np.repeat(self.jobs, counts)
        self.nodes = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        self.left = np.concatenate([graph.steps for graph in graphs])
        self.num_outstanding = 0
        cells = np.concatenate([graph.cells for graph in graphs])
        self._groups = deque(_grouped(np.concatenate(ranks), cells, rules))

    def next_group(self) -> _Group | None:
        """The first group with steps that are in no task; None once all are."""
        while self._groups and not self.left[self._groups[0].rows].any():
            self._groups.popleft()
        return self._groups[0] if self._groups else None


def _grouped(ranks: Int32Array, cells: Int32Array, rules: Sequence[CellRule]) -> Iterator[_Group]:
    """Nodes of one rank and cell type, in tasks of as many rows as there may be."""
    order = np.lexsort((cells, ranks))
    is_new = (np.diff(ranks[order]) != 0) | (np.diff(cells[order]) != 0)
    for rows in np.split(order, np.flatnonzero(is_new) + 1):
        cell = int(cells[rows[0]])
        for first in range(0, len(rows), rules[cell].max_rows):
            yield _Group(cell, rows[first : first + rules[cell].max_rows])


class GraphBatching:
    """A batch of requests runs to its end, all its results come together, and none joins it (Fold, DyNet).

    Nodes of one cell type and rank run together: stages of chains, levels of trees. A chain that ends leaves its row,
    which costs nothing. The next batch is prepared behind the last task of the one before. Deadlines and classes do not
    count.
    """

    def __init__(self, rules: Sequence[CellRule], max_jobs: int, ranks: Ranks = depths) -> None:
        self._rules, self._max_jobs, self._ranks = tuple(rules), max_jobs, ranks
        self._known: dict[int, tuple[CellGraph, Int32Array]] = {}  # ranks by the id of a graph, which is kept for it
        self._batches: deque[_Batch] = deque()  # that have not ended; only the last may have steps in no task
        self._tasks: dict[int, _Batch] = {}
        self._num_planned = 0
        self._queue: deque[CellJob] = deque()

    def add(self, jobs: Sequence[CellJob], now: float) -> list[RejectedJob]:
        """Queue jobs. None is rejected."""
        self._queue.extend(jobs)
        return []

    def poll(self, now: float) -> CellTask | Wait:
        """The next task of the batch. The next batch begins once all steps of the last one are in tasks."""
        if len(self._tasks) >= _MAX_TASKS:
            return Wait(None, ())
        group = self._batches[-1].next_group() if self._batches else None
        if group is None:
            jobs = self._next_batch()
            if not jobs:
                return Wait(None, ())
            self._batches.append(_Batch(jobs, [self._ranks_of(job.graph) for job in jobs], self._rules))
            group = self._batches[-1].next_group()
            if group is None:
                raise RuntimeError("A batch has no step. This is a bug.")
        return self._plan(self._batches[-1], group)

    def finished(
        self, task_id: int, now: float, steps: Int32Array, is_stopped: BoolArray, measured_s: float
    ) -> list[int]:
        """The ids of the batches whose last job has ended."""
        batch = self._tasks.pop(task_id)
        batch.num_outstanding -= 1
        ended: list[int] = []
        while self._batches and self._batches[0].num_outstanding == 0 and self._batches[0].next_group() is None:
            ended += self._batches.popleft().jobs.tolist()
        return ended

    def _plan(self, batch: _Batch, group: _Group) -> CellTask:
        rule = self._rules[group.cell]
        rows = group.rows[batch.left[group.rows] > 0]
        quantum = min(least_quantum(int(batch.left[rows].max())), rule.max_steps)
        steps = np.minimum(batch.left[rows], quantum)
        batch.left[rows] -= steps
        batch.num_outstanding += 1
        self._num_planned += 1
        self._tasks[self._num_planned] = batch
        return CellTask(self._num_planned, group.cell, batch.ids[rows], batch.nodes[rows], steps, quantum, 0.0)

    def _next_batch(self) -> list[CellJob]:
        return [self._queue.popleft() for _ in range(min(self._max_jobs, len(self._queue)))]

    def _ranks_of(self, graph: CellGraph) -> Int32Array:
        """Ranks of a graph that may come again. Those of a known one cost nothing."""
        known = self._known.get(id(graph))
        if known is None:
            known = self._known[id(graph)] = graph, self._ranks(graph)
        return known[1]


class BucketPadding(GraphBatching):
    """Batches hold chains of equal length (MXNet, TensorFlow): the caller pads the first node to a bucket's end.

    Buckets take turns.
    """

    def __init__(self, rules: Sequence[CellRule], max_jobs: int) -> None:
        super().__init__(rules, max_jobs)
        self._turns: deque[int] = deque()  # buckets that hold jobs, by their padded steps
        self._buckets: dict[int, deque[CellJob]] = {}

    def add(self, jobs: Sequence[CellJob], now: float) -> list[RejectedJob]:
        """Queue jobs in their buckets. None is rejected."""
        for job in jobs:
            bucket = int(job.graph.steps[0])
            if bucket not in self._buckets:
                self._buckets[bucket] = deque()
                self._turns.append(bucket)
            self._buckets[bucket].append(job)
        return []

    def _next_batch(self) -> list[CellJob]:
        if not self._turns:
            return []
        bucket = self._turns.popleft()
        waiting = self._buckets[bucket]
        batch = [waiting.popleft() for _ in range(min(self._max_jobs, len(waiting)))]
        if waiting:
            self._turns.append(bucket)
        else:
            del self._buckets[bucket]
        return batch
