"""A device that is a model of its time: batches run one after another, and the host waits for each."""

import numpy as np
import pytest

from penstock.engine.cells.contract import CellBatch, CellSpec, StateSpec
from penstock.engine.errors import InvalidBatch
from penstock.ops.bench.cellular.loads.load import HostClock
from penstock.ops.bench.cellular.loads.simulated_engine import SimulatedEngine

SPEC = CellSpec("read", (StateSpec("h", 1),), ("token",), max_rows=4, max_steps=8)


class VirtualClock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.time = 10.0

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


def batch_of(slots: list[int], quantum: int) -> CellBatch:
    rows, write = len(slots), np.array(slots, np.int32)
    tokens = {"token": np.zeros((rows, quantum), np.int32)}
    steps, is_first = np.full(rows, quantum, np.int32), np.ones(rows, np.bool_)
    return CellBatch("read", write[:, None], write, tokens, steps, is_first, quantum)


def engine_on(clock: VirtualClock) -> SimulatedEngine:
    return SimulatedEngine([SPEC], 8, lambda cell, rows, quantum: rows * quantum * 1.0, 0.5, clock)


def test_a_batch_runs_behind_the_one_before_while_the_host_goes_on() -> None:
    clock = VirtualClock()
    engine = engine_on(clock)
    first = engine.start(batch_of([1, 2], 4))
    assert clock.time == 10.5
    second = engine.start(batch_of([3], 2))
    assert clock.time == 11.0
    assert first.result().device_s == 8
    assert clock.time == 18.5
    assert second.result().device_s == 2
    assert clock.time == 20.5


def test_a_device_that_is_idle_begins_at_once() -> None:
    clock = VirtualClock()
    engine = engine_on(clock)
    engine.start(batch_of([1], 1)).result()
    clock.wait_until(20.0)
    output = engine.start(batch_of([2, 3], 1)).result()
    assert clock.time == 22.5
    assert output.steps.tolist() == [1, 1]
    assert not output.is_stopped.any()


def test_what_a_device_would_reject_is_rejected() -> None:
    with pytest.raises(InvalidBatch):
        engine_on(VirtualClock()).start(batch_of([1, 1], 1))


def test_the_time_of_the_host_is_its_own_work_and_what_it_waits_for() -> None:
    clock = HostClock()
    moment = clock.now() + 3600.0
    clock.wait_until(moment)
    assert moment <= clock.now() < moment + 60.0
    clock.wait_until(moment - 1000.0)
    assert clock.now() >= moment
