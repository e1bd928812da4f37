"""Futures are always completed, whatever the engine, the loop or the owner does."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.engine import BatchOutput, EngineLanes, ModelInfo, NullEngine, PackedBatch
from penstock.engine.errors import EngineError, LanesClosed
from tests.engine.helpers import pack, random_sequences

BATCH = pack(random_sequences((3, 1, 8)))


class ScriptedEngine:
    """Calls a function in the lane, then answers with zeros."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._null = NullEngine(4)

    @property
    def info(self) -> ModelInfo:
        return self._null.info

    def run(self, batch: PackedBatch) -> BatchOutput:
        self._action()
        return self._null.run(batch)


class HeldEngine(ScriptedEngine):
    """Its batches end once the test lets them."""

    def __init__(self) -> None:
        self.started, self.release = threading.Event(), threading.Event()
        self.num_runs = 0
        super().__init__(self._wait)

    def _wait(self) -> None:
        self.num_runs += 1
        self.started.set()
        self.release.wait(60)


def raising(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


async def test_results_come_back_in_the_order_of_the_batch() -> None:
    lanes = EngineLanes(NullEngine(7), 2)
    output = await lanes.submit(BATCH)
    assert [row.shape for row in output.rows] == [(7,)] * 3
    await lanes.close()


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), KeyError("x")])
async def test_the_engines_exception_reaches_the_caller_and_the_lane_lives_on(error: Exception) -> None:
    failures = iter([error, None])

    def action() -> None:
        if (failure := next(failures)) is not None:
            raise failure

    lanes = EngineLanes(ScriptedEngine(action))
    with pytest.raises(type(error)):
        await lanes.submit(BATCH)
    assert len((await lanes.submit(BATCH)).rows) == 3
    await lanes.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
async def test_what_a_future_cannot_carry_arrives_as_an_engine_error(error: BaseException) -> None:
    lanes = EngineLanes(ScriptedEngine(raising(error)))
    with pytest.raises(EngineError, match=type(error).__name__):
        await lanes.submit(BATCH)
    await lanes.close()


async def test_as_many_batches_run_at_once_as_there_are_lanes() -> None:
    barrier = threading.Barrier(3, timeout=300)
    lanes = EngineLanes(ScriptedEngine(lambda: (barrier.wait(), None)[1]), 3)
    await asyncio.gather(*(lanes.submit(BATCH) for _ in range(3)))  # a broken barrier would raise
    await lanes.close()


async def test_close_finishes_what_runs_and_fails_what_is_queued() -> None:
    engine = HeldEngine()
    lanes = EngineLanes(engine)
    running = lanes.submit(BATCH)
    await asyncio.to_thread(engine.started.wait, 60)
    queued = [lanes.submit(BATCH) for _ in range(3)]
    closing = asyncio.create_task(lanes.close())
    for future in queued:
        with pytest.raises(LanesClosed):
            await future
    assert not running.done()
    engine.release.set()
    await closing
    assert len((await running).rows) == 3
    with pytest.raises(LanesClosed):
        lanes.submit(BATCH)
    await lanes.close()


async def test_closing_waits_for_a_batch_that_hangs_no_longer_than_asked() -> None:
    engine = HeldEngine()
    lanes = EngineLanes(engine)
    running = lanes.submit(BATCH)
    await asyncio.to_thread(engine.started.wait, 60)
    assert not await lanes.close(0.01)
    engine.release.set()
    assert await lanes.close(60)
    assert len((await running).rows) == 3


async def test_a_cancelled_batch_is_not_computed() -> None:
    engine = HeldEngine()
    lanes = EngineLanes(engine)
    first, second = lanes.submit(BATCH), lanes.submit(BATCH)
    await asyncio.to_thread(engine.started.wait, 60)
    second.cancel()
    engine.release.set()
    await first
    await lanes.close()
    assert engine.num_runs == 1


async def test_unclosed_lanes_warn_and_stop_their_threads() -> None:
    owner = {"lanes": EngineLanes(NullEngine(4), 2)}
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("engine-lane")]
    assert len(threads) == owner["lanes"].num_lanes
    with pytest.warns(ResourceWarning, match="never closed"):
        owner.clear()  # the last reference
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()


def test_zero_lanes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        EngineLanes(NullEngine(4), 0)


def test_importing_the_room_and_its_lanes_imports_no_torch() -> None:
    code = "import sys; from penstock.engine import EngineLanes, NullEngine, measure; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class Pipelined:
    """A pipelined engine whose batches end when the test says so, in the order in which they were started."""

    info = NullEngine().info

    def __init__(self, *, next_idle_s: float | None = None) -> None:
        self.started: list[PackedBatch] = []
        self.may_end = threading.Semaphore(0)
        self.two_started = threading.Event()
        self.most_underway = 0
        self.num_ended = 0
        self.underway_when_idle: list[int] = []
        self.idled = threading.Semaphore(0)
        self._next_idle_s = next_idle_s

    def run(self, batch: PackedBatch) -> BatchOutput:
        return self.start(batch).result()

    def start(self, batch: PackedBatch) -> "Pipelined.Underway":
        self.started.append(batch)
        if len(self.started) == 2:
            self.two_started.set()
        self.most_underway = max(self.most_underway, len(self.started) - self.num_ended)
        if batch.max_seqlen == 13:
            self.num_ended += 1
            raise RuntimeError("thirteen")
        return Pipelined.Underway(self)

    def idle(self) -> float | None:
        self.underway_when_idle.append(len(self.started) - self.num_ended)
        self.idled.release()
        return self._next_idle_s

    class Underway:
        def __init__(self, engine: "Pipelined") -> None:
            self._engine = engine

        def result(self) -> BatchOutput:
            self._engine.may_end.acquire()
            self._engine.num_ended += 1
            return BatchOutput(rows=[], device_s=float(self._engine.num_ended))


async def test_a_pipelined_engine_has_the_next_batch_queued_and_no_more() -> None:
    engine = Pipelined()
    lanes = EngineLanes(engine)
    futures = [lanes.submit(a_batch(length)) for length in (1, 2, 3, 4)]
    await asyncio.to_thread(engine.two_started.wait)
    engine.may_end.release(4)
    assert [output.device_s for output in await asyncio.gather(*futures)] == [1.0, 2.0, 3.0, 4.0]
    assert engine.most_underway == 2
    await lanes.close()


async def test_a_batch_that_does_not_start_fails_alone() -> None:
    engine = Pipelined()
    lanes = EngineLanes(engine)
    engine.may_end.release(2)
    futures = [lanes.submit(a_batch(length)) for length in (1, 13, 2)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["BatchOutput", "RuntimeError", "BatchOutput"]
    await lanes.close()


async def test_closing_waits_for_what_is_underway() -> None:
    engine = Pipelined()
    lanes = EngineLanes(engine)
    futures = [lanes.submit(a_batch(length)) for length in (1, 2, 3)]
    await asyncio.to_thread(engine.two_started.wait)
    closing = asyncio.create_task(lanes.close())
    with pytest.raises(LanesClosed):
        await futures[2]
    engine.may_end.release(2)
    await closing
    assert [(await future).device_s for future in futures[:2]] == [1.0, 2.0]


async def test_a_lane_that_waits_for_the_device_or_for_a_batch_uses_no_cpu() -> None:
    engine = Pipelined()
    lanes = EngineLanes(engine)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("engine-")]
    assert await asyncio.to_thread(engine.idled.acquire, timeout=300)
    before = switches_of(threads)
    await asyncio.sleep(0.1)  # without a batch
    first = lanes.submit(a_batch(1))
    await asyncio.sleep(0.1)  # with one on the device
    assert switches_of(threads) - before <= 20  # a lane that looked each 200 us would have some 1,000
    engine.may_end.release()
    await first
    await lanes.close()


def switches_of(threads: Sequence[threading.Thread]) -> int:
    """How often the threads have gone to sleep."""
    texts = [Path(f"/proc/self/task/{thread.native_id}/status").read_text(encoding="ascii") for thread in threads]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in texts)


async def test_idle_work_is_done_only_while_nothing_is_underway() -> None:
    engine = Pipelined()
    lanes = EngineLanes(engine)
    engine.may_end.release(4)
    await asyncio.gather(*(lanes.submit(a_batch(length)) for length in (1, 2, 3, 4)))
    while len(engine.started) > engine.num_ended or not engine.underway_when_idle:
        assert await asyncio.to_thread(engine.idled.acquire, timeout=300)
    await lanes.close()
    assert set(engine.underway_when_idle) == {0}


async def test_idle_work_goes_on_until_none_is_left() -> None:
    engine = Pipelined(next_idle_s=0.0)
    lanes = EngineLanes(engine)
    for _ in range(5):
        assert await asyncio.to_thread(engine.idled.acquire, timeout=300)
    engine.may_end.release()
    assert (await lanes.submit(a_batch(1))).device_s == 1.0
    await lanes.close()


async def test_a_lane_survives_idle_work_that_asks_for_time_in_the_past() -> None:
    engine = Pipelined(next_idle_s=-1.0)
    lanes = EngineLanes(engine)
    assert await asyncio.to_thread(engine.idled.acquire, timeout=300)
    engine.may_end.release()
    await asyncio.wait_for(lanes.submit(a_batch(1)), 60)
    await lanes.close()


async def test_a_lane_survives_idle_work_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Pipelined()
    monkeypatch.setattr(engine, "idle", raising(RuntimeError("no")))
    lanes = EngineLanes(engine)
    engine.may_end.release(2)
    for device_s in (1.0, 2.0):
        assert (await lanes.submit(a_batch(1))).device_s == device_s
    await lanes.close()


def test_a_pipelined_engine_has_one_lane() -> None:
    with pytest.raises(ValueError, match="one lane"):
        EngineLanes(Pipelined(), 2)


def a_batch(length: int) -> PackedBatch:
    return pack(random_sequences((length,)))
