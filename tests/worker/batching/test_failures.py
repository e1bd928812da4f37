"""Batches that fail: how often they run again, in what parts, and which sequences are blamed."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from penstock.engine.errors import DeviceFailed, NotFinite, is_out_of_memory, is_transient
from penstock.engine.types import BatchOutput, ModelInfo, PackedBatch
from penstock.worker.batching import failure_rules, token_budget
from tests.worker.batching.benches import LaneBench
from tests.worker.batching.small_engine import POISON, SmallEngine

PROBE = [[0]]


class FailingEngine(SmallEngine):
    """Raises `errors`, one a run, from then on nothing; or MemoryError for more than `max_tokens`."""

    def __init__(self, info: ModelInfo) -> None:
        super().__init__(info)
        self.errors: list[Exception] = []
        self.max_tokens = 1 << 30

    def run(self, batch: PackedBatch) -> BatchOutput:
        output = super().run(batch)
        if len(batch.token_ids) > self.max_tokens:
            raise MemoryError
        if self.errors:
            raise self.errors.pop(0)
        return output


class OverflowingEngine(SmallEngine):
    """Answers `value` in place of the last number of each sequence that holds OVERFLOW; of every one once `broken`."""

    OVERFLOW = 99
    value = math.nan

    def run(self, batch: PackedBatch) -> BatchOutput:
        broken, self.broken = self.broken, False
        rows = super().run(batch).rows
        self.broken = broken
        for ids, row in zip(self.batches[-1], rows, strict=True):
            if broken or self.OVERFLOW in ids:
                row[-1] = self.value
        return BatchOutput(rows, 0.001)


@pytest.fixture
def engine(info: ModelInfo, monkeypatch: pytest.MonkeyPatch) -> FailingEngine:
    monkeypatch.setattr(failure_rules, "_FIRST_PAUSE_S", 0.001)
    return FailingEngine(info)


@pytest.mark.parametrize("culprits", [(0,), (255,), (7, 100), (0, 64, 128, 192), (1, 2, 3, 250)], ids=str)
async def test_culprits_are_found_in_logarithmically_many_runs(info: ModelInfo, culprits: tuple[int, ...]) -> None:
    num_sequences, k = 256, len(culprits)
    async with LaneBench(info, trigger="lazy", max_sequences=num_sequences) as b:
        ids = [[1000 + n, POISON] if n in culprits else [1000 + n] for n in range(num_sequences)]
        b.dispatcher.add(b.one_each(*ids))
        await b.finish(num_sequences)
        assert len(b.results) == num_sequences - k
        runs = [batch for batch in b.engine.batches if batch != PROBE]
        assert len(runs) <= 1 + 2 * k * math.log2(num_sequences)
        assert len(b.engine.batches) - len(runs) == k
        assert {rejection.record.num_attempts for rejection in b.rejections} <= set(range(1, 10))
        assert not b.runner._num_runs


async def test_a_failure_that_passes_fails_no_request(info: ModelInfo, engine: FailingEngine) -> None:
    engine.errors = [OSError("no buffer space"), RuntimeError("CUDA error: unspecified launch failure")]
    async with LaneBench(info, trigger="lazy", engine=engine) as b:
        b.dispatcher.add(b.one_each([1], [2], [3], [4]))
        with capture_logs() as logs:
            await b.finish(4)
        assert (len(b.results), b.rejections) == (4, [])
        assert engine.batches == [[[1], [2], [3], [4]]] * 3
        retried = [entry for entry in logs if entry["event"] == "batch_retried"]
        assert [entry["batch"] for entry in retried] == [1, 1]
        assert [stats.number for stats in b.stats] == [1]
        assert [entry["pause_s"] <= 0.001 * 2**n for n, entry in enumerate(retried)] == [True, True]


async def test_a_failure_that_does_not_pass_is_blamed_after_bounded_retries(
    info: ModelInfo, engine: FailingEngine
) -> None:
    engine.errors = [OSError("broken")] * (failure_rules.MAX_RETRIES + 1)
    async with LaneBench(info, trigger="lazy", engine=engine) as b:
        b.dispatcher.add(b.one_each([1]))
        b.dispatcher.drain()
        await b.finish(1)
        [rejection] = b.rejections
        assert isinstance(rejection.error.__cause__, OSError)
        assert rejection.record.num_attempts == failure_rules.MAX_RETRIES + 1
        assert engine.batches == [[[1]]] * (failure_rules.MAX_RETRIES + 1) + [PROBE]


async def test_a_batch_that_is_retried_when_the_dispatcher_closes_does_not_run(
    info: ModelInfo, engine: FailingEngine
) -> None:
    engine.errors = [OSError("broken")]
    async with LaneBench(info, engine=engine) as b:
        b.dispatcher.add(b.one_each([1]))
        async with asyncio.timeout(300):
            while b.driver.running:  # noqa: ASYNC110 — a failed batch calls nothing back
                await asyncio.sleep(0)
        b.dispatcher.close()
        await asyncio.sleep(0.01)
        assert engine.batches == [[[1]]]


async def test_a_lane_whose_batch_is_not_wanted_any_more_takes_what_is_queued(
    info: ModelInfo, engine: FailingEngine
) -> None:
    engine.max_tokens = 2
    engine.may_run.clear()
    async with LaneBench(info, trigger="lazy", engine=engine) as b:
        b.dispatcher.add(b.make([1], [2], [3], [4], deadline=105.0))
        b.dispatcher.add(b.make([9]))
        b.clock.now = 120.0  # the halves are late, and the other has waited long enough
        engine.may_run.set()
        await b.until(lambda: bool(b.rejections))
        assert b.lanes.num_submitted == 2  # in the turn in which the four are rejected, and not run again
        await b.finish(2)
        assert engine.batches == [[[1], [2], [3], [4]], [[9]]]
        assert not b.runner._num_runs  # of sequences that have ended


async def test_a_failed_device_ends_the_work_at_once(info: ModelInfo, engine: FailingEngine) -> None:
    engine.errors = [DeviceFailed("gone")]
    async with LaneBench(info, trigger="lazy", engine=engine) as b:
        b.dispatcher.add(b.one_each([1], [2], [3], [4]))
        await b.until(lambda: bool(b.unhealthy))
        assert (len(engine.batches), b.results, b.rejections) == (1, [], [])


async def test_a_lack_of_memory_halves_the_batches_and_a_quiet_time_doubles_them(
    info: ModelInfo, engine: FailingEngine
) -> None:
    engine.max_tokens = 20
    async with LaneBench(info, trigger="lazy", max_sequences=8, engine=engine) as b:

        async def run(first_id: int) -> list[int]:
            """The tokens of the batches that eight sequences of ten tokens take."""
            engine.batches.clear()
            b.dispatcher.add(b.one_each(*[[first_id + n] * 10 for n in range(8)]))
            await b.finish(first_id + 8)
            return [10 * len(batch) for batch in engine.batches]

        with capture_logs() as logs:
            assert await run(0) == [80, 40, 40, 20, 20, 20, 20]
            assert {entry["batch"] for entry in logs if entry["event"] == "batch_failed"} == {1}
            assert [stats.number for stats in b.stats] == [1] * 4
            assert b.runner.token_budget.tokens == 20
            assert await run(8) == [20] * 4
            engine.max_tokens = 1 << 30
            b.clock.now += token_budget.QUIET_S
            assert await run(16) == [40] * 2
            b.clock.now += 10 * token_budget.QUIET_S
            assert await run(24) == [80]
        assert b.rejections == []
        changes = [(entry["event"], entry["tokens"]) for entry in logs if entry["event"].startswith("token_budget")]
        assert changes[:2] == [("token_budget_halved", 40), ("token_budget_halved", 20)]
        assert changes[-1] == ("token_budget_doubled", 1000)


@pytest.mark.parametrize(
    ("error", "lacks_memory", "may_pass"),
    [
        (MemoryError(), True, True),
        (RuntimeError("CUDA error: out of memory"), True, True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True, True),
        (RuntimeError("CUDA error: unspecified launch failure"), False, True),
        (TimeoutError(), False, True),
        (RuntimeError("The size of tensor a must match"), False, False),
        (ValueError("CUDA is only a word here"), False, False),
    ],
    ids=repr,
)
def test_errors_are_sorted_by_what_may_help(error: Any, lacks_memory: bool, may_pass: bool) -> None:
    assert (is_out_of_memory(error), is_transient(error)) == (lacks_memory, may_pass)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_a_result_that_is_not_finite_fails_its_sequence_alone_and_nothing_runs_again(
    info: ModelInfo, value: float
) -> None:
    engine = OverflowingEngine(info)
    engine.value = value
    async with LaneBench(info, trigger="lazy", engine=engine) as b:
        good, bad = b.make([1], [2]), b.make([3], [4, OverflowingEngine.OVERFLOW])
        b.dispatcher.add([*good, *bad])
        await b.finish(4)
        assert b.ids == [[1], [2], [3]]
        assert all(np.isfinite(row).all() for _, row in b.results)
        (rejection,) = b.rejections
        assert rejection.record is bad[0].request.record
        assert rejection.record.num_attempts == 1
        error = rejection.error
        assert error.code == "backend"
        assert list(error.rows) == [1]  # the second of its request
        assert "NaN or infinity: numbers overflow in float32. No --dtype" in error.message
        assert engine.batches == [[[1], [2], [3], [4, OverflowingEngine.OVERFLOW]]]
        assert not b.unhealthy
        assert b.stats[0].sums.count == 4


async def test_a_batch_without_a_finite_result_is_blamed_by_one_probe(info: ModelInfo) -> None:
    engine = OverflowingEngine(info)
    async with LaneBench(info, trigger="lazy", engine=engine) as b:
        b.dispatcher.add(b.one_each(*[[n, OverflowingEngine.OVERFLOW] for n in range(4)]))
        await b.finish(4)
        assert len(b.rejections) == 4
        assert not b.results
        assert engine.batches[1:] == [PROBE]
        assert not b.unhealthy
        b.dispatcher.add(b.one_each([1], [2], [3], [4]))
        await b.finish(8)
        assert b.ids == [[1], [2], [3], [4]]


async def test_an_engine_whose_probe_is_not_finite_is_unhealthy_and_answers_nothing(info: ModelInfo) -> None:
    engine = OverflowingEngine(info)
    engine.broken = True
    async with LaneBench(info, engine=engine) as b:
        b.dispatcher.add(b.one_each([1]))
        await b.until(lambda: bool(b.unhealthy))
        assert isinstance(b.unhealthy[0], NotFinite)
        assert not b.results
        assert not b.rejections
