"""One token through an idle engine: it tells an engine that hangs, and costs a busy one nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from penstock.engine import BatchOutput, EngineLanes, NullEngine, PackedBatch
from penstock.engine.types import TaskOptions
from penstock.worker.batching import engine_probe
from penstock.worker.batching.engine_probe import EngineProbe


class Watched(NullEngine):
    """Counts its batches, and calls `before` in the lane first."""

    def __init__(self) -> None:
        super().__init__(name="m")
        self.batches: list[PackedBatch] = []
        self.before: Callable[[], object] = lambda: None

    def run(self, batch: PackedBatch) -> BatchOutput:
        self.batches.append(batch)
        self.before()
        return super().run(batch)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Idle at once. No stall of the machine is a fault."""
    monkeypatch.setattr(engine_probe, "IDLE_S", 0.0)
    monkeypatch.setattr(engine_probe, "PROBE_S", 60.0)
    monkeypatch.setattr(engine_probe, "LOOP_S", 60.0)
    return Watched()


@pytest.fixture
async def lanes(engine: Watched) -> AsyncIterator[EngineLanes]:
    lanes = EngineLanes(engine)
    yield lanes
    assert await lanes.close(60.0)


async def asked(probe: EngineProbe) -> str:
    return await asyncio.to_thread(probe.fault)


async def test_an_idle_engine_computes_one_token(lanes: EngineLanes, engine: Watched) -> None:
    assert await asked(EngineProbe(lanes, "embed")) == ""
    (batch,) = engine.batches
    assert (len(batch.token_ids), [option.task for option in batch.options]) == (1, ["embed"])


async def test_a_batch_that_has_just_ended_is_sign_enough(
    lanes: EngineLanes, engine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = EngineProbe(lanes, "embed")
    assert await asked(probe) == ""
    monkeypatch.setattr(engine_probe, "IDLE_S", 3600.0)
    assert await asked(probe) == ""
    assert len(engine.batches) == 1


async def test_a_busy_engine_is_not_asked(lanes: EngineLanes, engine: Watched) -> None:
    """The watchdog looks after the batch that runs."""
    go_on = threading.Event()
    engine.before = go_on.wait
    running = lanes.submit(PackedBatch.probe(TaskOptions("embed")))
    try:
        assert lanes.idle_s is None
        assert await asked(EngineProbe(lanes, "embed")) == ""
    finally:
        go_on.set()
    await running
    assert len(engine.batches) == 1


async def test_an_engine_that_hangs_is_a_fault_until_it_goes_on(
    lanes: EngineLanes, engine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_probe, "PROBE_S", 0.05)
    go_on = threading.Event()
    engine.before = go_on.wait
    probe = EngineProbe(lanes, "embed")
    try:
        for _ in range(2):  # the second time by the same token
            assert await asked(probe) == "the idle engine has not computed one token for 0.05 s"
        assert len(engine.batches) == 1
    finally:
        go_on.set()
    monkeypatch.setattr(engine_probe, "PROBE_S", 60.0)
    assert await asked(probe) == ""


async def test_an_engine_that_fails_is_a_fault(lanes: EngineLanes, engine: Watched) -> None:
    def fail() -> None:
        raise RuntimeError("no device")

    engine.before = fail
    assert await asked(EngineProbe(lanes, "embed")) == ("the idle engine fails on one token: RuntimeError('no device')")


async def test_an_engine_whose_result_is_not_finite_is_a_fault(
    lanes: EngineLanes, engine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NullEngine, "run", lambda self, batch: BatchOutput([np.array([np.nan], np.float32)], 0.001))
    assert await asked(EngineProbe(lanes, "embed")) == "the idle engine's result for one token is not finite"


async def test_a_worker_that_has_stopped_has_no_fault(engine: Watched) -> None:
    lanes = EngineLanes(engine)
    probe = EngineProbe(lanes, "embed")
    await lanes.close()
    assert await asked(probe) == ""
