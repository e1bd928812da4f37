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
from penstock.producer.errors import BackendError, Overloaded, PenstockError
from penstock.scheduler import PackedCost, Scheduler, SchedulerSettings
from penstock.worker.batching.batch import BatchStats, Sums, health_probe, pack
from penstock.worker.batching.deadline_errors import ArrivedLate, LateInQueue
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.requests.record import Row

MakeRows = Callable[..., list[Row]]
POISON = 66
FREE = PackedCost(0.0, 0.0, 0.0, 0.0)
SECOND_A_TOKEN = PackedCost(0.0, 0.0, 1.0, 0.0)


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

    def __init__(
        self, engine: SmallEngine, lanes: CountingLanes, trigger: Literal["lazy", "hungry"], cost: PackedCost = FREE
    ) -> None:
        self.engine = engine
        self.lanes = lanes
        self.clock = Clock()
        self.settled: list[tuple[Row, Float32Array]] = []
        self.failed: list[tuple[Row, PenstockError]] = []
        self.stats: list[BatchStats] = []
        self.unhealthy: list[BaseException] = []
        self._changed = asyncio.Event()
        chosen = SchedulerSettings(10.0, 4, 1000, None, trigger, num_lanes=lanes.num_lanes)
        self.scheduler = Scheduler(chosen, cost)
        self.dispatcher = Dispatcher(
            lanes,
            self.scheduler,
            cost,
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
    info: ModelInfo, trigger: Literal["lazy", "hungry"] = "hungry", num_lanes: int = 1, cost: PackedCost = FREE
) -> AsyncIterator[Bench]:
    engine = SmallEngine(info)
    lanes = CountingLanes(engine, num_lanes)
    made = Bench(engine, lanes, trigger, cost)
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


async def test_a_row_that_came_too_late_fails_at_once(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info) as b:
        b.dispatcher.add(make_rows([1], deadline=98.5))
        [(_, error)] = b.failed
        assert isinstance(error, ArrivedLate)
        assert "1,500 ms" in error.message
        assert (b.scheduler.num_queued, b.lanes.num_submitted) == (0, 0)


async def test_a_row_that_cannot_be_in_time_is_refused_at_once_and_never_run(
    info: ModelInfo, make_rows: MakeRows
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(make_rows([1] * 8))  # eight seconds
        b.dispatcher.add(make_rows([2, 2], deadline=105.0) + make_rows([3, 3], deadline=120.0))
        [(late, error)] = b.failed
        assert (late.token_ids.tolist(), type(error)) == ([2, 2], Overloaded)
        b.engine.may_run.set()
        await b.finish(3)
        assert [2, 2] not in b.engine.sequences_run
        assert [row.token_ids.tolist() for row, _ in b.settled] == [[1] * 8, [3, 3]]


async def test_with_one_row_of_a_record_the_others_are_taken_back(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(make_rows([9]))
        twin = make_rows([1])
        b.dispatcher.add(make_rows([1], [2], [3] * 50, deadline=110.0) + twin)
        assert [type(error) for _, error in b.failed] == [Overloaded]
        assert b.scheduler.queued_tokens == 2  # the first, and the twin's, which nobody refused
        b.dispatcher.drain()
        await b.finish(3)
        assert sorted(b.engine.sequences_run) == [[1], [9]]
        assert twin[0] in [row for row, _ in b.settled]


@pytest.mark.parametrize("small", [[[7] * 4], [[7] * 2, [8] * 2]])
async def test_a_record_that_cannot_be_in_time_as_a_whole_keeps_nobody_out(
    info: ModelInfo, make_rows: MakeRows, small: list[list[int]]
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(make_rows([9]))
        large, fitting = make_rows([1] * 8, [2] * 8, [3] * 50, deadline=120.0), make_rows(*small, deadline=120.0)
        b.dispatcher.add(large + fitting)
        assert [(row.owner, type(error)) for row, error in b.failed] == [(large[0].owner, Overloaded)]
        b.dispatcher.drain()
        await b.finish(2 + len(small))
        assert sorted(b.engine.sequences_run) == sorted([[9], *small])


async def test_an_idle_worker_tries_now_and_then_what_it_predicts_to_be_late(
    info: ModelInfo, make_rows: MakeRows
) -> None:
    """Or a prediction that is far too high would never be put right."""
    async with bench(info, cost=SECOND_A_TOKEN) as b:
        tried = make_rows([1] * 8, [2] * 8, deadline=102.0)
        b.dispatcher.add(tried + make_rows([3] * 8, deadline=102.0))
        await b.finish(3)
        assert [row for row, _ in b.settled] == tried
        assert [type(error) for _, error in b.failed] == [Overloaded]
        b.dispatcher.add(make_rows([4] * 8, deadline=102.0))  # too soon for another
        await b.finish(4)
        b.clock.now += 1
        b.dispatcher.add(again := make_rows([5] * 8, deadline=102.0))
        await b.finish(5)
        assert b.settled[-1][0] is again[0]
        b.clock.now += 1
        b.dispatcher.add(make_rows([6] * 8, deadline=102.0))  # for what has expired there is no trial
        await b.finish(6)
        assert isinstance(b.failed[-1][1], ArrivedLate)


async def test_a_row_alike_with_more_time_goes_on_when_the_first_is_refused(
    info: ModelInfo, make_rows: MakeRows
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(make_rows([9]))
        hasty, patient = make_rows([1] * 8, deadline=103.0), make_rows([1] * 8, deadline=150.0)
        b.dispatcher.add(hasty + make_rows([1] * 8, deadline=104.0) + patient)
        assert [row.owner.deadline for row, _ in b.failed] == [103.0, 104.0]
        b.dispatcher.drain()
        await b.finish(4)
        assert patient[0] in [row for row, _ in b.settled]
        assert sorted(b.engine.sequences_run) == [[1] * 8, [9]]


async def test_an_online_row_that_meets_its_like_in_bulk_does_not_wait_as_bulk(
    info: ModelInfo, make_rows: MakeRows
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(make_rows([9]))  # keeps the lane busy
        bulk = [make_rows([n, n], bulk=True) for n in range(1, 9)]
        for rows in bulk:
            b.dispatcher.add(rows)
        online = make_rows([8, 8])
        b.dispatcher.add(online)
        b.engine.may_run.set()
        await b.finish(10)
        assert b.engine.sequences_run[1] == [8, 8]
        assert b.engine.sequences_run.count([8, 8]) == 1
        settled = [row for row, _ in b.settled]
        assert settled.index(online[0]) < settled.index(bulk[0][0])


async def test_what_is_late_by_the_time_a_lane_is_free_is_not_run(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        first, last = make_rows(*[[n] for n in range(1, 9)], deadline=105.0), make_rows([9], [10], deadline=110.0)
        b.dispatcher.add(first + last)  # a batch runs, the next is prepared
        b.clock.now = 120.0
        b.engine.may_run.set()
        await b.finish(6)
        assert [type(error) for _, error in b.failed] == [LateInQueue] * 2
        assert [row.owner for row, _ in b.failed] == [first[0].owner, last[0].owner]
        assert [row for row, _ in b.settled] == first[:4]
        assert b.engine.sequences_run == [[n] for n in range(1, 9)]  # what was prepared ran, in vain


async def test_who_waits_for_anothers_computation_is_told_when_it_began_too_late(
    info: ModelInfo, make_rows: MakeRows
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(make_rows([9]))  # keeps the lane busy
        leader, follower = make_rows([1]), make_rows([1], [2], deadline=101.0, bulk=True)
        b.dispatcher.add(leader + follower)
        b.clock.now = 103.5
        b.engine.may_run.set()
        await b.finish(3)
        [(row, error)] = b.failed
        assert (row.owner, type(error)) == (follower[0].owner, LateInQueue)
        assert "2,500 ms" in error.message
        assert [row.token_ids.tolist() for row, _ in b.settled] == [[9], [1]]


async def test_what_began_in_time_is_answered_though_it_ends_late(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        rows = make_rows([1]) + make_rows([1], deadline=101.0, bulk=True)
        b.dispatcher.add(rows)
        b.clock.now = 102.0
        b.engine.may_run.set()
        await b.finish(2)
        assert [row for row, _ in b.settled] == rows


async def test_how_long_the_lanes_are_busy(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, num_lanes=2, cost=SECOND_A_TOKEN) as b:
        b.engine.may_run.clear()
        assert b.dispatcher.busy_s() == 0
        b.dispatcher.add(make_rows([1] * 6))
        b.dispatcher.add(make_rows([2] * 2))
        assert b.dispatcher.busy_s() == 4  # (6 + 2) / 2
        b.clock.now += 3
        assert b.dispatcher.busy_s() == 1.5  # the second is overdue, the first has three seconds left
        b.engine.may_run.set()
        await b.finish(2)
        assert b.dispatcher.busy_s() == 0


async def test_a_batch_is_told_with_what_was_predicted_of_it(info: ModelInfo, make_rows: MakeRows) -> None:
    async with bench(info, cost=SECOND_A_TOKEN) as b:
        b.dispatcher.add(make_rows([1, 2, 3], [4]))
        await b.finish(2)
        [stats] = b.stats
        assert (stats.predicted_s, stats.device_s, stats.sums) == (4.0, 0.001, Sums(4, 10, 3, 2))


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
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(
        st.tuples(
            st.lists(st.sampled_from([1, 2, 3, 4, 5, POISON]), min_size=1, max_size=4),  # a sequence of one id each
            st.sampled_from([None, 99.0, 101.0, 104.0, 1000.0]),  # deadline; the clock begins at 100
            st.booleans(),  # bulk
        ),
        min_size=1,
        max_size=20,
    ),
    steps=st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0.0, 0.5, 3.0])), max_size=3),
    token_s=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_every_row_is_settled_or_failed_once_or_its_record_was_refused(
    info: ModelInfo,
    make_rows: MakeRows,
    num_lanes: int,
    records: list[tuple[list[int], float | None, bool]],
    steps: list[tuple[int, float]],
    token_s: float,
) -> None:
    """Records come in a few calls, between which time passes."""

    async def run() -> None:
        async with bench(info, num_lanes=num_lanes, cost=PackedCost(0.0, 0.0, token_s, 0.0)) as b:
            made = [make_rows(*[[n] for n in ids], deadline=deadline, bulk=bulk) for ids, deadline, bulk in records]
            steps.sort()
            edges = [0, *[edge for edge, _ in steps], len(made)]
            for (start, stop), (_, passes_s) in zip(itertools.pairwise(edges), [*steps, (0, 0.0)], strict=True):
                b.dispatcher.add([row for rows in made[start:stop] for row in rows])
                await asyncio.sleep(0)
                b.clock.now += passes_s
            b.dispatcher.drain()
            await b.until(lambda: all(b.is_done(rows) for rows in made))
            everything = {id(row) for rows in made for row in rows}
            seen = [id(row) for row, _ in [*b.settled, *b.failed]]
            assert len(seen) == len(set(seen))
            assert set(seen) <= everything
            assert len({id(row.owner) for row, _ in b.failed}) == len(b.failed)  # once a record
            for row, result in b.settled:
                assert result.tolist() == answer(row.token_ids.tolist()).tolist()
            for row, error in b.failed:
                if error.code != "backend":
                    assert row.owner.deadline is not None
                    assert row.owner.deadline < 1000.0
            again = make_rows([1], [2], [3], [4], [5])
            b.dispatcher.add(again)  # no flight was left behind: these are computed
            await b.until(lambda: b.is_done(again))
            b.scheduler.check_integrity()
            assert (b.scheduler.num_queued, b.dispatcher.busy_s()) == (0, 0.0)

    asyncio.run(run())
