"""A slow scheduler's view of the same jobs, by the definitions. It judges every task, and runs it."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler, CellTask
from penstock.scheduler.cellular.scheduler import PATIENCE_S
from penstock.scheduler.types import Wait


def graph_of(nodes: Sequence[tuple[int, int, Sequence[int]]]) -> CellGraph:
    """Nodes of a cell, steps, and the nodes before that they depend on."""
    width = max([1, *[len(parents) for _, _, parents in nodes]])
    rows = [[*parents, *[-1] * (width - len(parents))] for _, _, parents in nodes]
    return CellGraph(
        np.array([cell for cell, _, _ in nodes], np.int32),
        np.array([steps for _, steps, _ in nodes], np.int32),
        np.array(rows, np.int32).reshape(-1, width),
    )


def tree_of(num_leaves: int, leaf: int = 0, inner: int = 1) -> CellGraph:
    """A binary tree, built level by level."""
    nodes: list[tuple[int, int, Sequence[int]]] = [(leaf, 1, ()) for _ in range(num_leaves)]
    level = list(range(num_leaves))
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        above = level[-1:] if len(level) % 2 else []
        for pair in pairs:
            above.append(len(nodes))
            nodes.append((inner, 1, pair))
        level = above
    return graph_of(nodes)


@dataclass
class ModelNode:
    cell: int
    left: int  # steps in no task yet
    parents: list[int]
    stops_at: int | None
    ran: int = 0
    num_tasks: int = 0  # outstanding
    is_stopped: bool = False

    @property
    def has_ended(self) -> bool:
        return self.is_stopped or (self.left == 0 and self.num_tasks == 0)


@dataclass
class ModelJob:
    job: CellJob
    key: tuple[bool, float, int]
    nodes: list[ModelNode]
    has_begun: bool = False

    def ready(self, cell: int) -> set[int]:
        """By definition: steps are left, and none is left of what the node waits for."""
        return {
            index
            for index, node in enumerate(self.nodes)
            if node.cell == cell and node.left and not any(self.nodes[parent].left for parent in node.parents)
        }


@dataclass
class Model:
    """Drives a scheduler, and asserts that it does what its contract says. Slots without limit."""

    rules: Sequence[CellRule]
    max_tasks: int = 2
    max_slots: int | None = None

    def __post_init__(self) -> None:
        self.scheduler = CellScheduler(self.rules, self.max_tasks, self.max_slots)
        self.jobs: dict[int, ModelJob] = {}
        self.outstanding: deque[CellTask] = deque()
        self.now = 0.0
        self.left: list[int] = []  # ids of jobs that ended, expired or were cancelled
        self.tasks: list[CellTask] = []
        self._num_added = 0

    def add(
        self,
        graph: CellGraph,
        *,
        deadline: float | None = None,
        bulk: bool = False,
        stops: Mapping[int, int] | None = None,
        slots: int = 1,
    ) -> int:
        """A job that arrives now. `stops`: steps after which a node stops."""
        job = CellJob(self._num_added, graph, self.now, deadline, bulk, slots)
        self._num_added += 1
        rejected = self.scheduler.add([job], self.now)
        if deadline is not None and deadline <= self.now:
            assert [rejection.id for rejection in rejected] == [job.id]
            self.left.append(job.id)
            return job.id
        assert rejected == []
        due = min(self.now + PATIENCE_S, float("inf") if deadline is None else deadline)
        parents = [[parent for parent in row if parent >= 0] for row in graph.dependencies.tolist()]
        nodes = [
            ModelNode(int(cell), int(steps), parents[index], (stops or {}).get(index))
            for index, (cell, steps) in enumerate(zip(graph.cells, graph.steps, strict=True))
        ]
        self.jobs[job.id] = ModelJob(job, (bulk, due, job.id), nodes)
        return job.id

    def poll(self) -> CellTask | None:
        """The next task, checked."""
        plan = self.scheduler.poll(self.now)
        self._expire([rejection.id for rejection in plan.rejected])
        if isinstance(plan, Wait):
            is_full = len(self.outstanding) == self.max_tasks
            assert is_full or not any(self._ready(cell) for cell in range(len(self.rules)))
            deadlines = [job.job.deadline for job in self.jobs.values() if job.job.deadline is not None]
            assert plan.wake_at == min(deadlines, default=None)
            return None
        self._check(plan)
        assert sorted(plan.begun.tolist()) == sorted(
            {job_id for job_id, _, _ in _rows(plan) if not self.jobs[job_id].has_begun}
        )
        for job_id, index, steps in _rows(plan):
            node = self.jobs[job_id].nodes[index]
            node.left -= steps
            node.num_tasks += 1
            self.jobs[job_id].has_begun = True
        self.outstanding.append(plan)
        self.tasks.append(plan)
        return plan

    def finish(self) -> list[int]:
        """Run the first outstanding task. Returns the jobs that ended, checked."""
        task = self.outstanding.popleft()
        ran, is_stopped = task.steps.copy(), np.zeros(len(task.steps), np.bool_)
        ended = set()
        for row, (job_id, index, steps) in enumerate(_rows(task)):
            if job_id not in self.jobs:
                continue
            node = self.jobs[job_id].nodes[index]
            ran[row] = min(steps, (node.stops_at or 10**9) - node.ran)
            assert ran[row] or node.is_stopped
            node.ran += int(ran[row])
            node.num_tasks -= 1
            if node.stops_at == node.ran:
                is_stopped[row] = node.is_stopped = True
                node.left = 0
            if all(other.has_ended for other in self.jobs[job_id].nodes):
                ended.add(job_id)
        got = self.scheduler.finished(task.id, self.now, ran, is_stopped, 1e-3)
        assert sorted(got) == sorted(ended)
        for job_id in got:
            self._leave(job_id)
        return got

    def cancel(self, *ids: int) -> None:
        active = [job_id for job_id in dict.fromkeys(ids) if job_id in self.jobs]
        assert self.scheduler.cancel(ids) == len(active)
        for job_id in active:
            del self.jobs[job_id]
            self.left.append(job_id)

    def drain(self) -> None:
        """Run all jobs to their end. Each has left exactly once."""
        while self.jobs:
            self.poll()
            assert self.outstanding or not self.jobs
            if self.outstanding:
                self.finish()
        assert sorted(self.left) == list(range(self._num_added))
        assert self.scheduler.num_joined == self.scheduler.num_waiting == 0

    def _check(self, task: CellTask) -> None:
        rule = self.rules[task.cell]
        assert len(self.outstanding) < self.max_tasks
        rows = _rows(task)
        assert 1 <= len({row[:2] for row in rows}) == len(rows) <= rule.max_rows
        assert 1 <= task.quantum <= rule.max_steps
        ready = self._ready(task.cell)
        for job_id, index, steps in rows:
            assert (job_id, index) in ready
            assert steps == min(self.jobs[job_id].nodes[index].left, task.quantum)
        assert len(rows) == min(rule.max_rows, len(ready))
        passed_over = [self.jobs[job_id].key for job_id, _ in ready - {row[:2] for row in rows}]
        last = max(self.jobs[job_id].key for job_id, _, _ in rows)
        assert all(key >= last for key in passed_over)

    def _ready(self, cell: int) -> set[tuple[int, int]]:
        return {(job_id, index) for job_id, job in self.jobs.items() for index in job.ready(cell)}

    def _expire(self, ids: Sequence[int]) -> None:
        late = [job_id for job_id, job in self.jobs.items() if (job.job.deadline or 10**9) <= self.now]
        assert sorted(ids) == sorted(late)
        for job_id in ids:
            self._leave(job_id)

    def _leave(self, job_id: int) -> None:
        job = self.jobs.pop(job_id)
        self.left.append(job_id)
        for node in job.nodes:
            assert node.stops_at is None or node.ran <= node.stops_at


def _rows(task: CellTask) -> list[tuple[int, int, int]]:
    return list(zip(task.jobs.tolist(), task.nodes.tolist(), task.steps.tolist(), strict=True))
