"""A model of sums, its requests and engines that fail, for the tests of the cell runner."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from penstock.engine.cells.contract import Cell, CellBatch, CellOutput, CellSpec, RunningCells, StateSpec, Tensors
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.emissions import emissions_of, split
from penstock.engine.cells.graph import GraphBuilder, GraphLimits
from penstock.engine.cells.models.model import CellModel, RequestFields
from penstock.engine.types import Float32Array
from penstock.scheduler.types import RejectedJob
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.cell_model import SequenceChecks
from penstock.worker.stepping.cell_runner import CellRunner
from penstock.worker.stepping.contract import StepJob

SUM = StateSpec("sum", 1)
RAISES = 66  # the cell raises
BREAKS = 77  # the engine does not start the batch


def add(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    if (inputs["value"] == RAISES).any():
        raise ArithmeticError("a bad value")
    new = states["sum"] + inputs["value"][:, None].float()
    return {"sum": new}, {"sum": new, "is_ten": (new == 10).int()}


def halve(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    return {"sum": states["sum"] / 2}, {"half": states["sum"] / 2}


EMITS = (SUM, StateSpec("is_ten", 1, torch.int32))
ADD = CellSpec("add", (SUM,), ("value",), emits=EMITS, stop={"is_ten": 1}, max_rows=4, max_steps=4)
HALVE = CellSpec("halve", (SUM,), emits=(StateSpec("half", 1),), max_rows=4, max_steps=1, priority=1)


def unfold(request: RequestFields, graph: GraphBuilder) -> None:
    """A chain of values that ends at a sum of 10, and half of it."""
    graph.add("halve", reads=[graph.add("add", value=request["values"])])


MODEL = CellModel.of([Cell(ADD, add), Cell(HALVE, halve)], unfold)
EMISSIONS = emissions_of(MODEL.specs)


@dataclass
class DeviceStandIn:
    """A step engine that works unwatched: batches run when their results are asked for, in their order."""

    engine: CpuStepEngine
    started: list[CellBatch] = field(default_factory=list)
    most_underway: int = 0
    start_error: Callable[[CellBatch], Exception | None] = lambda batch: None
    result_error: Callable[[CellBatch], Exception | None] = lambda batch: None
    changed: Callable[[CellOutput], CellOutput] = lambda output: output
    _underway: deque[CellBatch] = field(default_factory=deque)

    @property
    def cells(self) -> "dict[str, CellSpec]":
        return dict(self.engine.cells)

    @property
    def num_slots(self) -> int:
        return self.engine.num_slots

    def idle(self) -> bool:
        return self.engine.idle()

    def start(self, batch: CellBatch) -> RunningCells:
        error = self.start_error(batch)
        if error is not None:
            raise error
        self.started.append(batch)
        self._underway.append(batch)
        self.most_underway = max(self.most_underway, len(self._underway))
        return _Running(self, batch)

    def run(self, batch: CellBatch) -> CellOutput:
        assert self._underway.popleft() is batch
        error = self.result_error(batch)
        if error is not None:
            raise error
        return self.changed(self.engine.start(batch).result())


@dataclass
class _Running:
    device: DeviceStandIn
    batch: CellBatch

    def result(self) -> CellOutput:
        return self.device.run(self.batch)


def holds(value: int) -> Callable[[CellBatch], Exception | None]:
    """An error for batches that have this value in a step that runs."""

    def error(batch: CellBatch) -> Exception | None:
        if batch.cell != "add":
            return None
        rows = zip(batch.inputs["value"].tolist(), batch.steps.tolist(), strict=True)
        return RuntimeError("the engine failed") if any(value in row[:steps] for row, steps in rows) else None

    return error


class Bench:
    """A runner whose jobs are lists of values, and what has become of them."""

    def __init__(
        self,
        num_slots: int = 9,
        clock: Callable[[], float] = time.perf_counter,
        max_tasks: int = 2,
    ) -> None:
        self.pauses: list[float] = []
        self.device = DeviceStandIn(CpuStepEngine(MODEL.cells, num_slots))
        self.runner = CellRunner(MODEL.specs, self.device, max_tasks=max_tasks, clock=clock, pause=self.pauses.append)
        self.checks = SequenceChecks(MODEL, num_slots - 1, GraphLimits())
        self.now = 0.0
        self.results: dict[int, list[float]] = {}  # half of the sum, behind the sums
        self.failed: dict[int, BaseException] = {}
        self.runs: dict[int, int] = {}  # failed ones, of jobs that have failed
        self.expired: list[RejectedJob] = []
        self._num_added = 0

    def add(self, *jobs: Sequence[int], deadline: float | None = None, bulk: bool = False) -> list[int]:
        """Add jobs together, and return their ids."""
        ids = list(range(self._num_added, self._num_added + len(jobs)))
        self._num_added += len(jobs)
        works = [self.checks.work({"values": list(values)}) for values in jobs]
        self.runner.add([StepJob(*job, self.now, deadline, bulk) for job in zip(ids, works, strict=True)])
        return ids

    def advance(self) -> JobEvents:
        events = self.runner.advance(self.now)
        for job_id, joined in events.finished:
            assert job_id not in self.results
            self.results[job_id] = values_of(joined)
        self.failed.update(events.failed)
        self.runs.update(events.runs)
        self.expired += events.expired
        self.runner.check_integrity()
        return events

    def drain(self) -> None:
        for _ in range(1000):
            if self.runner.is_idle:
                return
            self.advance()
        raise AssertionError("the runner does not become idle")


def values_of(joined: Float32Array) -> list[float]:
    """The sums of a job, and half of the last one."""
    columns = split(joined, EMISSIONS)
    assert columns["is_ten"].ravel().tolist() == (columns["sum"] == 10).ravel().tolist()
    return [*columns["sum"].ravel().tolist(), *columns["half"].ravel().tolist()]


def expected(values: Sequence[int]) -> list[float]:
    """The result of a job alone."""
    sums: list[float] = []
    for value in values:
        sums.append(value + (sums[-1] if sums else 0))
        if sums[-1] == 10:
            break
    return [*sums, sums[-1] / 2]
