"""Rows in, results out, on real lanes over a small engine: each row settled or failed exactly once, come what may."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.engine import EngineLanes
from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch
from penstock.producer.errors import BackendError, Expired, PenstockError
from penstock.scheduler import PackedCost, Scheduler, SchedulerSettings
from penstock.worker.batch import BatchStats, health_probe, pack
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.inflight import Row

MakeRows = Callable[..., list[Row]]
POISON = 66
FREE = PackedCost(0.0, 0.0, 0.0, 0.0)


class SmallEngine:
    """Answers [length, first id, last id, sum]; fails where a sequence holds POISON, or always once it is `broken`."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.batches: list[list[list[int]]] = []  # the ids of each batch it was given, probes included
        self.broken = False
        self.may_run = threading.Event()
        self.may_run.set()

    def run(self, batch: PackedBatch) -> BatchOutput:
        assert self.may_run.wait(10)
        sequences = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
        self.batches.append([ids.tolist() for ids in sequences])
        if self.broken or POISON in batch.token_ids:
            raise ValueError("cannot compute this")
        return BatchOutput([answer(ids.tolist()) for ids in sequences], 0.001)

    @property
    def sequences_run(self) -> list[list[int]]:
        return [ids for batch in self.batches for ids in batch]


class CountingLanes(EngineLanes):
    num_submitted = 0

    def submit(self, batch: PackedBatch) -> asyncio.Future[BatchOutput]:
        self.num_submitted += 1
        return super().submit(batch)


def answer(ids: Sequence[int]) -> Float32Array:
    return np.array([len(ids), ids[0], ids[-1], sum(ids)], np.float32)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A dispatcher and what came out of it."""

    def __init__(self, engine: SmallEngine, lanes: CountingLanes, trigger: Literal["lazy", "hungry"]) -> None:
        self.engine = engine
        self.lanes = lanes
        self.clock = Clock()
        self.settled: list[tuple[Row, Float32Array]] = []
        self.failed: list[tuple[Row, PenstockError]] = []
        self.stats: list[BatchStats] = []
        self.unhealthy: list[BaseException] = []
        self._changed = asyncio.Event()
        self.scheduler = Scheduler(SchedulerSettings(10.0, 4, 1000, None, trigger), FREE)
        self.dispatcher = Dispatcher(
            lanes,
            self.scheduler,
            FREE,
            clock=self.clock,
            settled=self._on_settled,
            failed=self._on_failed,
            batch_done=lambda results, stats: self.stats.append(stats),
            unhealthy=self._on_unhealthy,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def finish(self, num_rows: int) -> None:
        await self.until(lambda: len(self.settled) + len(self.failed) >= num_rows)

    def is_done(self, rows: list[Row]) -> bool:
        settled = {id(row) for row, _ in self.settled}
        return rows[0].owner.failed or settled.issuperset(map(id, rows))

    def _on_settled(self, row: Row, result: Float32Array) -> None:
        self.settled.append((row, result))
        self._changed.set()

    def _on_failed(self, row: Row, error: PenstockError) -> None:
        row.owner.failed = True
        self.failed.append((row, error))
        self._changed.set()

    def _on_unhealthy(self, error: BaseException) -> None:
        self.unhealthy.append(error)
        self._changed.set()


@asynccontextmanager
async def bench(
    info: ModelInfo, trigger: Literal["lazy", "hungry"] = "hungry", num_lanes: int = 1
) -> AsyncIterator[Bench]:
    engine = SmallEngine(info)
    lanes = CountingLanes(engine, num_lanes)
    made = Bench(engine, lanes, trigger)
    try:
        yield made
    finally:
        engine.may_run.set()
        made.dispatcher.close()
        await lanes.close()


def rows_each(make_rows: MakeRows, *sequences: Sequence[int]) -> list[Row]:
    """One record a sequence."""
    return [row for ids in sequences for row in make_rows(ids)]


async def test_each_row_gets_its_own_result(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, num_lanes=2) as b:
        rows = make_rows([1, 2, 3], [4]) + make_rows([5, 6])
        b.dispatcher.add(rows)
        await b.finish(3)
        assert {id(row): result.tolist() for row, result in b.settled} == {
            id(row): answer(row.token_ids.tolist()).tolist() for row in rows
        }


async def test_rows_alike_are_computed_once_and_all_answered(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        first = make_rows([1, 2], [1, 2])
        b.dispatcher.add(first)
        later = make_rows([1, 2]) + make_rows([3])
        b.dispatcher.add(later)
        b.engine.may_run.set()
        await b.finish(4)
        assert sorted(b.engine.sequences_run) == [[1, 2], [3]]
        assert {id(row) for row, _ in b.settled} == {id(row) for row in first + later}
        b.dispatcher.add(make_rows([1, 2]))  # the flight has ended: this is a new one
        await b.finish(5)
        assert b.engine.sequences_run.count([1, 2]) == 2


async def test_a_failed_batch_is_halved_until_the_culprit_is_alone(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, trigger="lazy") as b:
        rows = rows_each(make_rows, [1], [2], [POISON, 3], [4])
        b.dispatcher.add(rows)
        await b.finish(4)
        assert [row.token_ids.tolist() for row, _ in b.failed] == [[POISON, 3]]
        assert type(b.failed[0][1]) is BackendError
        assert "cannot compute this" in b.failed[0][1].message
        assert sorted(row.token_ids.tolist() for row, _ in b.settled) == [[1], [2], [4]]
        assert b.engine.batches[0] == [[1], [2], [POISON, 3], [4]]
        assert b.unhealthy == []


async def test_rows_that_wait_for_a_culprit_fail_with_it_and_do_not_run_again(
    info: ModelInfo, make_rows: MakeRows
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(rows_each(make_rows, [POISON], [POISON], [5]))
        b.engine.may_run.set()
        await b.finish(3)
        assert len(b.failed) == 2
        assert [[POISON]] not in b.engine.batches[b.engine.batches.index([[POISON]]) + 1 :]
        b.dispatcher.add(make_rows([POISON]))  # the flight has ended: this is a new one
        await b.finish(4)


async def test_an_engine_that_fails_on_a_clean_token_is_unhealthy_and_nothing_is_answered(
    info: ModelInfo, make_rows: MakeRows
) -> None:
    async with bench(info) as b:
        b.engine.broken = True
        b.dispatcher.add(rows_each(make_rows, [1], [2], [3]))
        await b.until(lambda: bool(b.unhealthy))
        assert isinstance(b.unhealthy[0], ValueError)
        assert (b.settled, b.failed) == ([], [])


async def test_an_unhealthy_engine_is_given_nothing_more(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info) as b:
        b.engine.broken = True
        b.dispatcher.add(rows_each(make_rows, [1], [2], [3], [4], [5]))
        await b.until(lambda: bool(b.unhealthy))
        b.engine.broken = False  # as if by chance
        submitted = b.lanes.num_submitted
        b.dispatcher.drain()  # what a worker does on its way out
        b.dispatcher.add(make_rows([6]))
        assert b.lanes.num_submitted == submitted
        await b.lanes.close()
        await asyncio.sleep(0)  # callbacks of what was still running
        assert (b.settled, b.failed, len(b.unhealthy)) == ([], [], 1)


async def test_a_row_past_its_deadline_is_not_run(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, trigger="lazy") as b:
        b.dispatcher.add(make_rows([1], deadline=101.0) + make_rows([2], deadline=200.0))
        b.clock.now = 101.5
        b.dispatcher.drain()
        await b.finish(2)
        [(late, error)] = b.failed
        assert (late.token_ids.tolist(), error.code) == ([1], "expired")
        assert "500 ms" in error.message
        assert b.engine.sequences_run == [[2]]


async def test_a_row_that_waits_for_a_late_one_runs_in_its_place(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, trigger="lazy") as b:
        b.dispatcher.add(make_rows([1], deadline=101.0) + make_rows([1]) + make_rows([1], deadline=101.0))
        b.clock.now = 102.0
        b.dispatcher.drain()
        await b.finish(3)
        assert [row.owner.deadline for row, _ in b.settled] == [None]
        assert [error.code for _, error in b.failed] == ["expired", "expired"]
        assert b.engine.sequences_run == [[1]]


async def test_rows_of_a_refused_record_are_not_run(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, trigger="lazy") as b:
        rows = make_rows([1], [2])
        b.dispatcher.add(rows + make_rows([3]))
        rows[0].owner.failed = True
        b.dispatcher.drain()
        await b.finish(1)
        assert b.engine.sequences_run == [[3]]
        b.dispatcher.add(make_rows([1]))  # the flight has ended: this is a new one
        await b.finish(2)


async def test_lazy_waits_for_mates_until_the_batch_is_full(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, trigger="lazy") as b:
        b.dispatcher.add(rows_each(make_rows, [1], [2], [3]))
        assert b.scheduler.num_queued == 3
        b.dispatcher.add(make_rows([4]))
        await b.finish(4)
        assert b.engine.batches == [[[1], [2], [3], [4]]]
        assert (b.stats[0].trigger, b.stats[0].sums.count, b.stats[0].sums.tokens) == ("max_batch", 4, 4)


async def test_after_a_drain_the_triggers_count_again(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, trigger="lazy") as b:
        b.dispatcher.add(make_rows([1]))
        b.dispatcher.drain()
        await b.finish(1)
        assert b.stats[0].trigger == "drain"
        b.dispatcher.resume()
        b.dispatcher.add(make_rows([2]))
        assert b.scheduler.num_queued == 1


async def test_at_most_one_batch_is_prepared_beyond_the_lanes(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(rows_each(make_rows, *[[n] for n in range(1, 21)]))
        assert b.lanes.num_submitted == 2  # of five batches
        b.engine.may_run.set()
        await b.finish(20)


async def test_closing_the_lanes_under_a_closed_dispatcher_raises_nowhere(info: ModelInfo, make_rows: MakeRows) -> None:
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    engine = SmallEngine(info)
    lanes = CountingLanes(engine, 1)
    b = Bench(engine, lanes, "hungry")
    engine.may_run.clear()
    b.dispatcher.add(rows_each(make_rows, *[[n] for n in range(1, 21)]))
    b.dispatcher.close()
    engine.may_run.set()
    await lanes.close()
    await asyncio.sleep(0)  # callbacks of the futures that closing completed
    await asyncio.sleep(0)
    assert problems == []


def test_packing_lays_sequences_end_to_end(make_rows: MakeRows) -> None:
    batch = pack(make_rows([1, 2, 3], [4], [5, 6]))
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert (batch.max_seqlen, batch.token_type_ids, len(batch.options)) == (3, None, 3)


def test_packing_fills_in_token_types_where_only_some_have_them(make_rows: MakeRows) -> None:
    rows = make_rows([1, 2], [3, 4])
    rows[1].token_type_ids = np.array([0, 1], np.int32)
    types = pack(rows).token_type_ids
    assert types is not None
    assert types.tolist() == [0, 0, 0, 1]


def test_the_probe_is_one_token(make_rows: MakeRows) -> None:
    probe = health_probe(make_rows([1])[0].options)
    assert (probe.token_ids.tolist(), probe.cu_seqlens.tolist(), probe.max_seqlen) == ([0], [0, 1], 1)


@pytest.mark.parametrize("num_lanes", [1, 3])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(
        st.tuples(
            st.lists(st.sampled_from([1, 2, 3, 4, 5, POISON]), min_size=1, max_size=4),  # a sequence of one id each
            st.sampled_from([None, 99.0, 1000.0]),  # deadline; the clock stands at 100
        ),
        min_size=1,
        max_size=20,
    ),
    cuts=st.lists(st.integers(0, 20), max_size=3),
)
def test_every_row_is_settled_or_failed_once_or_its_record_was_refused(
    info: ModelInfo,
    make_rows: MakeRows,
    num_lanes: int,
    records: list[tuple[list[int], float | None]],
    cuts: list[int],
) -> None:
    async def run() -> None:
        async with bench(info, num_lanes=num_lanes) as b:
            made = [make_rows(*[[n] for n in ids], deadline=deadline) for ids, deadline in records]
            edges = [0, *sorted(cuts), len(made)]
            for start, stop in itertools.pairwise(edges):
                b.dispatcher.add([row for rows in made[start:stop] for row in rows])
                await asyncio.sleep(0)
            b.dispatcher.drain()
            everything = [row for rows in made for row in rows]
            await b.until(lambda: all(b.is_done(rows) for rows in made))
            seen = [id(row) for row, _ in [*b.settled, *b.failed]]
            assert len(seen) == len(set(seen))
            assert set(seen) <= {id(row) for row in everything}
            for row, result in b.settled:
                assert result.tolist() == answer(row.token_ids.tolist()).tolist()
            for row, error in b.failed:
                late = row.owner.deadline == 99.0
                assert isinstance(error, (Expired, BackendError) if late else BackendError)
            again = make_rows([1], [2], [3], [4], [5])
            b.dispatcher.add(again)  # no flight was left behind: these are computed
            await b.until(lambda: b.is_done(again))
            b.scheduler.check_integrity()

    asyncio.run(run())
