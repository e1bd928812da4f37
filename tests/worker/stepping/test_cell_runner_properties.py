"""Jobs of any graph come, fail, expire and are cancelled: each ends once, and with the result that it has alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.cells.contract import Cell, CellBatch, Tensors
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.emissions import emissions_of, split
from penstock.engine.cells.graph import GraphLimits
from penstock.engine.cells.models.model import CellModel
from penstock.worker.stepping.cell_model import SequenceChecks
from penstock.worker.stepping.cell_runner import CellRunner
from penstock.worker.stepping.contract import StepJob
from tests.engine.cells import test_schedules as graphs
from tests.worker.stepping.cell_models import DeviceStandIn

RAISES, BREAKS, IS_LOST = 47, 48, 49  # values of `first`: the cell raises; the engine does not start, or loses, a batch


def raising(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    if "token" in inputs and (inputs["token"] == RAISES).any():
        raise ArithmeticError("a bad value")
    return graphs.mixed(states, inputs)


CELLS = [Cell(cell.spec, raising if cell.step is graphs.mixed else cell.step) for cell in graphs.CELLS]
MODEL = CellModel.of(CELLS, graphs.unfold)
EMISSIONS = emissions_of(MODEL.specs)


def has(value: int, batch: CellBatch) -> Exception | None:
    if batch.cell != "read":
        return None
    rows = zip(batch.inputs["token"].tolist(), batch.steps.tolist(), strict=True)
    return RuntimeError("injected") if any(value in row[:steps] for row, steps in rows) else None


class Running(RuleBasedStateMachine):
    """A runner with its callers."""

    @initialize(num_slots=st.integers(12, 40))
    def start(self, num_slots: int) -> None:
        device = DeviceStandIn(CpuStepEngine(MODEL.cells, num_slots))
        device.start_error = lambda batch: has(BREAKS, batch)
        device.result_error = lambda batch: has(IS_LOST, batch)
        # Admission predicts by these: a stall of the machine must not reject a job that is in time.
        device.changed = lambda output: replace(output, device_s=1e-6)
        self.runner = CellRunner(MODEL.specs, device, clock=lambda: 0.0)
        self.checks = SequenceChecks(MODEL, num_slots - 1, GraphLimits())
        self.now = 0.0
        self.running: dict[int, dict[str, Any]] = {}
        self.deadlines: dict[int, float] = {}
        self.num_added = 0

    @rule(request=graphs.REQUESTS, slo_s=st.none() | st.integers(-1, 6), bulk=st.booleans())
    def add(self, request: dict[str, Any], slo_s: int | None, bulk: bool) -> None:
        job_id, deadline = self.num_added, None if slo_s is None else self.now + slo_s
        self.num_added += 1
        self.running[job_id] = request
        if deadline is not None:
            self.deadlines[job_id] = deadline
        self.runner.add([StepJob(job_id, self.checks.work(request), self.now, deadline, bulk)])

    @rule(places=st.lists(st.integers(0, 20), max_size=3))
    def cancel(self, places: list[int]) -> None:
        self.runner.cancel(places)
        for job_id in places:
            self.running.pop(job_id, None)

    @rule(seconds=st.integers(0, 3), times=st.integers(1, 4))
    def advance(self, seconds: int, times: int) -> None:
        self.now += seconds
        for _ in range(times):
            events = self.runner.advance(self.now)
            for job_id, joined in events.finished:
                self.check(self.running.pop(job_id), split(joined, EMISSIONS))
            for job_id in events.failed:
                request = self.running.pop(job_id)
                assert {RAISES, BREAKS, IS_LOST} & set(request["first"])
            for job in events.expired:
                del self.running[job.id]
                assert self.deadlines[job.id] <= self.now

    @staticmethod
    def check(request: dict[str, Any], found: Mapping[str, np.ndarray[Any, Any]]) -> None:
        assert not {RAISES, BREAKS, IS_LOST} & set(request["first"])
        for name, values in graphs.expected(request).items():
            np.testing.assert_array_equal(found[name], values)

    @invariant()
    def slots_belong_to_jobs(self) -> None:
        self.runner.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        for _ in range(3000):
            if self.runner.is_idle:
                break
            self.advance(0, 1)
        assert self.running == {}
        assert self.runner.is_idle
        self.runner.check_integrity()


TestRunning = Running.TestCase
TestRunning.settings = settings(max_examples=40, stateful_step_count=30)
