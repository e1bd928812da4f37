"""Sequences in, results out, on real lanes over a small engine: each ends once, whatever fails."""

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
from penstock.producer.errors import BackendError, Overloaded
from penstock.scheduler import LaneDriver, PackedCost, Scheduler, SchedulerSettings
from penstock.worker.batching.batch import BatchStats, Sums, pack
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.batching.lane_runner import LaneRunner
from penstock.worker.batching.stage import StageCallbacks
from penstock.worker.requests.deadline_errors import ArrivedLate, LateInQueue
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from tests.examples import examples
from tests.scheduler.integrity import check_scheduler
from tests.worker.conftest import FakeRecord, as_one

MakeSequences = Callable[..., list[SequenceBlock]]
Trigger = Literal["lazy", "hungry"]
Partition = Literal["fifo", "sorted"]  # sorted plans all queued jobs at once: batches wait, planned, for the lanes
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
        assert self.may_run.wait(60)
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


as_blocks = False  # whether the sequences of a request come in one block, as the preparation makes it


@pytest.fixture(autouse=True, params=[False, True], ids=["one by one", "blocks"])
def of_both_kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.as_blocks", request.param)


class Told(Dispatcher):
    """Given single sequences, of which it makes blocks if the test is of those."""

    def __init__(self, runner: LaneRunner, callbacks: StageCallbacks, clock: Callable[[], float]) -> None:
        super().__init__(runner, callbacks, clock=clock)
        self.given: dict[tuple[int, int], SequenceBlock] = {}  # by request and index

    def add(self, sequences: Sequence[SequenceBlock]) -> None:
        self.given.update({(id(one.request), one.indices[0]): one for one in sequences})
        if as_blocks:
            grouped = itertools.groupby(sequences, key=lambda one: one.request)
            sequences = [as_one(list(group)) for _, group in grouped]
        super().add(sequences)


class Bench:
    """A dispatcher and what came out of it."""

    def __init__(
        self,
        engine: SmallEngine,
        lanes: CountingLanes,
        trigger: Trigger,
        cost: PackedCost = FREE,
        partition: Partition = "fifo",
        max_sequences: int = 4,
    ) -> None:
        self.engine = engine
        self.lanes = lanes
        self.clock = Clock()
        self.results: list[tuple[SequenceBlock, Float32Array]] = []  # of requests that had not failed
        self.rejections: list[Rejection] = []
        self.stats: list[BatchStats] = []
        self.unhealthy: list[BaseException] = []
        self._changed = asyncio.Event()
        chosen = SchedulerSettings(10.0, max_sequences, 1000, None, trigger, partition, num_lanes=lanes.num_lanes)
        self.scheduler = Scheduler(chosen, cost)
        self.driver = LaneDriver(self.scheduler, lanes.num_lanes)
        self.runner = LaneRunner(lanes, self.driver, cost, self.clock)
        callbacks = StageCallbacks(self.stats.append, self._on_results, self._on_rejected, self._on_unhealthy)
        self.dispatcher = Told(self.runner, callbacks, self.clock)
        self.runner.start(self.dispatcher)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def finish(self, num_ended: int) -> None:
        """Wait for so many results and rejections."""
        await self.until(lambda: len(self.results) + len(self.rejections) >= num_ended)

    def is_done(self, sequences: list[SequenceBlock]) -> bool:
        have_results = {id(sequence) for sequence, _ in self.results}
        return sequences[0].request.is_failed or have_results.issuperset(map(id, sequences))

    @property
    def ids(self) -> list[list[int]]:
        """The token ids of the sequences that have results, in the order of their results."""
        return [sequence.token_ids.tolist() for sequence, _ in self.results]

    def _on_results(self, results: SequenceResults, stats: BatchStats) -> None:
        assert stats is self.stats[-1]
        for block, rows in results:
            if not block.request.is_failed:
                given = [self.dispatcher.given[id(block.request), index] for index in block.indices]
                assert block.token_ids.tolist() == np.concatenate([one.token_ids for one in given]).tolist()
                self.results += zip(given, rows, strict=True)
        self._changed.set()

    def _on_rejected(self, rejections: Sequence[Rejection]) -> None:
        self.rejections += rejections
        self._changed.set()

    def _on_unhealthy(self, error: BaseException) -> None:
        self.unhealthy.append(error)
        self._changed.set()


@asynccontextmanager
async def bench(
    info: ModelInfo,
    trigger: Trigger = "hungry",
    num_lanes: int = 1,
    cost: PackedCost = FREE,
    partition: Partition = "fifo",
    max_sequences: int = 4,
    engine: SmallEngine | None = None,
) -> AsyncIterator[Bench]:
    engine = engine or SmallEngine(info)
    lanes = CountingLanes(engine, num_lanes)
    made = Bench(engine, lanes, trigger, cost, partition, max_sequences)
    try:
        yield made
    finally:
        engine.may_run.set()
        made.dispatcher.close()
        await lanes.close()


def one_each(make_sequences: MakeSequences, *sequences: Sequence[int]) -> list[SequenceBlock]:
    """A request for each sequence."""
    return [sequence for ids in sequences for sequence in make_sequences(ids)]


def records(*requests: list[SequenceBlock]) -> list[PendingRecord]:
    """The records of these requests."""
    return [sequences[0].request.record for sequences in requests]


async def test_each_sequence_gets_its_own_result(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info, num_lanes=2) as b:
        sequences = make_sequences([1, 2, 3], [4]) + make_sequences([5, 6])
        b.dispatcher.add(sequences)
        await b.finish(3)
        assert {id(sequence): result.tolist() for sequence, result in b.results} == {
            id(sequence): answer(sequence.token_ids.tolist()).tolist() for sequence in sequences
        }


async def test_taken_back_requests_are_not_run_and_their_equals_are(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        running, lost = make_sequences([1], bulk=True), make_sequences([2], [3], bulk=True)
        online, same = make_sequences([4]), make_sequences([2])
        b.dispatcher.add(running)
        b.dispatcher.add([*lost, *online])
        b.dispatcher.add(same)
        source = running[0].request.record.source
        assert b.dispatcher.take_back([("elsewhere", 0)], bulk_only=True, begun=False) == []
        assert b.dispatcher.take_back([source], bulk_only=True, begun=False) == records(lost)
        assert b.dispatcher.take_back([source], bulk_only=True, begun=False) == []
        b.engine.may_run.set()
        await b.finish(3)
        assert sorted(b.ids) == [[1], [2], [4]]
        assert [3] not in b.engine.sequences_run
        assert b.rejections == []


async def test_a_request_of_a_lost_partition_may_be_read_again_while_its_batch_runs(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        lost = make_sequences([1])
        b.dispatcher.add([*lost, *make_sequences([2])])
        assert len(b.dispatcher.take_back([lost[0].request.record.source], bulk_only=False, begun=True)) == 2
        again = make_sequences([1])
        b.dispatcher.add(again)
        b.engine.may_run.set()
        await b.finish(1)
        assert [sequence for sequence, _ in b.results] == again
        assert b.scheduler.num_queued == 0


async def test_equal_sequences_are_computed_once_and_all_answered(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        first = make_sequences([1, 2], [1, 2])
        b.dispatcher.add(first)
        later = make_sequences([1, 2]) + make_sequences([3])
        b.dispatcher.add(later)
        b.engine.may_run.set()
        await b.finish(4)
        assert sorted(b.engine.sequences_run) == [[1, 2], [3]]
        assert {id(sequence) for sequence, _ in b.results} == set(map(id, first + later))
        b.dispatcher.add(make_sequences([1, 2]))  # the flight has ended: this is a new one
        await b.finish(5)
        assert b.engine.sequences_run.count([1, 2]) == 2


async def test_requests_share_some_of_their_sequences_and_have_others_of_their_own(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        requests = [make_sequences([1], [2], [3]), make_sequences([4], [2], [5], [4]), make_sequences([6], [5], [3])]
        for sequences in requests:
            b.dispatcher.add(sequences)
        b.engine.may_run.set()
        await b.finish(10)
        assert sorted(b.engine.sequences_run) == [[1], [2], [3], [4], [5], [6]]
        assert {id(sequence) for sequence, _ in b.results} == {id(one) for sequences in requests for one in sequences}
        assert b.rejections == []


@asynccontextmanager
async def busy_bench(info: ModelInfo, make_sequences: MakeSequences) -> AsyncIterator[Bench]:
    """Of its lane a token takes a second. A batch of one token runs and another is prepared, until `may_run` is set."""
    async with bench(info, cost=SECOND_A_TOKEN, max_sequences=1) as b:
        b.engine.may_run.clear()
        for ids in ([9], [8]):
            b.dispatcher.add(make_sequences(ids))
        yield b


async def test_a_job_whose_online_leader_has_left_keeps_no_other_request_out(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with busy_bench(info, make_sequences) as b:
        bulk = make_sequences([5] * 6, bulk=True)
        b.dispatcher.add(bulk)
        record = PendingRecord(FakeRecord(offset=77), ("elsewhere", 0), from_bulk_topic=False)
        b.dispatcher.add(make_sequences([5] * 6, deadline=b.clock.now + 9.0, record=record))
        b.dispatcher.take_back([record.source], bulk_only=False, begun=False)
        online = make_sequences([7] * 2, deadline=b.clock.now + 8.0)  # in time: 2 s of 8 are taken
        b.dispatcher.add(online)
        b.engine.may_run.set()
        await b.finish(4)
        assert b.rejections == []
        assert b.ids[2:] == [[7] * 2, [5] * 6]


async def test_what_two_requests_share_is_as_urgent_as_the_one_that_is_left(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    """The first request has another sequence beside the one that a bulk request has too."""
    async with busy_bench(info, make_sequences) as b:
        record = PendingRecord(FakeRecord(offset=77), ("elsewhere", 0), from_bulk_topic=False)
        b.dispatcher.add(make_sequences([6], [5] * 6, deadline=b.clock.now + 9.5, record=record))
        b.dispatcher.add(make_sequences([5] * 6, bulk=True))
        b.dispatcher.take_back([record.source], bulk_only=False, begun=False)
        b.dispatcher.add(make_sequences([7] * 2, deadline=b.clock.now + 8.0))  # in time: 2 s of 8 are taken
        b.engine.may_run.set()
        await b.finish(4)
        assert b.rejections == []
        assert b.ids[2:] == [[7] * 2, [5] * 6]


async def test_of_requests_that_come_together_the_first_is_admitted_also_where_it_shares_a_job(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with busy_bench(info, make_sequences) as b:
        b.dispatcher.add(make_sequences([5] * 6, bulk=True))
        first, second = (make_sequences([number] * 6, deadline=b.clock.now + 10.0) for number in (5, 4))
        b.dispatcher.add([*first, *second])
        assert [one.record for one in b.rejections] == records(second)


async def test_a_sequence_of_a_request_that_was_rejected_in_its_turn_is_not_run(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with busy_bench(info, make_sequences) as b:
        b.dispatcher.add(make_sequences([1] * 5, [2], deadline=b.clock.now + 10.0))
        assert b.rejections == []
        b.clock.now += 4.0  # too late for the first of them
        b.engine.may_run.set()
        await b.finish(3)
        b.dispatcher.add(make_sequences([3]))
        await b.finish(4)
        assert [type(one.error) for one in b.rejections] == [LateInQueue]
        assert b.engine.sequences_run == [[9], [8], [3]]


async def test_a_failed_batch_is_halved_until_the_culprit_is_alone(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info, trigger="lazy") as b:
        sequences = one_each(make_sequences, [1], [2], [POISON, 3], [4])
        b.dispatcher.add(sequences)
        await b.finish(4)
        [rejection] = b.rejections
        assert rejection.record is sequences[2].request.record
        assert type(rejection.error) is BackendError
        assert "cannot compute this" in rejection.error.message
        assert sorted(b.ids) == [[1], [2], [4]]
        assert b.engine.batches[0] == [[1], [2], [POISON, 3], [4]]
        assert b.unhealthy == []


async def test_sequences_that_share_a_culprits_computation_fail_with_it(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(one_each(make_sequences, [POISON], [POISON], [5]))
        b.engine.may_run.set()
        await b.finish(3)
        assert len(b.rejections) == 2
        assert [[POISON]] not in b.engine.batches[b.engine.batches.index([[POISON]]) + 1 :]
        b.dispatcher.add(make_sequences([POISON]))  # the flight has ended: this is a new one
        await b.finish(4)


async def test_an_engine_that_fails_on_a_clean_token_is_unhealthy_and_answers_nothing(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.broken = True
        b.dispatcher.add(one_each(make_sequences, [1], [2], [3]))
        await b.until(lambda: bool(b.unhealthy))
        assert isinstance(b.unhealthy[0], ValueError)
        assert (b.results, b.rejections) == ([], [])


async def test_an_unhealthy_engine_is_given_nothing_more(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info) as b:
        b.engine.broken = True
        b.dispatcher.add(one_each(make_sequences, [1], [2], [3], [4], [5]))
        await b.until(lambda: bool(b.unhealthy))
        b.engine.broken = False  # as if by chance
        submitted = b.lanes.num_submitted
        b.dispatcher.drain()  # what a worker does on its way out
        b.dispatcher.add(make_sequences([6]))
        assert b.lanes.num_submitted == submitted
        await b.lanes.close()
        await asyncio.sleep(0)  # callbacks of what was still running
        assert (b.results, b.rejections, len(b.unhealthy)) == ([], [], 1)


async def test_a_sequence_past_its_deadline_is_not_run(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info, trigger="lazy") as b:
        late = make_sequences([1], deadline=101.0)
        b.dispatcher.add(late + make_sequences([2], deadline=200.0))
        b.clock.now = 101.5
        b.dispatcher.drain()
        await b.finish(2)
        [rejection] = b.rejections
        assert ([rejection.record], rejection.error.code) == (records(late), "expired")
        assert "500 ms" in rejection.error.message
        assert b.engine.sequences_run == [[2]]


async def test_an_equal_sequence_runs_in_place_of_an_expired_one(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info, trigger="lazy") as b:
        b.dispatcher.add(
            make_sequences([1], deadline=101.0) + make_sequences([1]) + make_sequences([1], deadline=101.0)
        )
        b.clock.now = 102.0
        b.dispatcher.drain()
        await b.finish(3)
        assert [sequence.request.deadline for sequence, _ in b.results] == [None]
        assert [rejection.error.code for rejection in b.rejections] == ["expired", "expired"]
        assert b.engine.sequences_run == [[1]]


async def test_the_queued_sequences_of_a_failed_request_are_not_run(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info, trigger="lazy") as b:
        b.dispatcher.add(make_sequences([POISON], [1], [2], [3], [4], [5]))  # a full batch runs, two stay queued
        await b.until(lambda: len(b.rejections) == 1)
        assert b.rejections[0].error.rows.keys() == {0}
        assert b.scheduler.num_queued == 0
        again = make_sequences([4])  # the flight has ended: this is a new one
        b.dispatcher.add(again)
        b.dispatcher.drain()
        await b.until(lambda: b.is_done(again))
        assert [5] not in b.engine.sequences_run


async def test_a_prepared_batch_runs_once_though_a_more_urgent_equal_sequence_comes(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    """A job that is planned has left the queue: the newcomer shares it instead of taking over."""
    async with bench(info, partition="sorted") as b:
        b.engine.may_run.clear()
        b.dispatcher.add(one_each(make_sequences, *[[n] for n in range(1, 21)]))
        assert b.scheduler.num_queued == 0
        assert b.lanes.num_submitted < 5  # batches that the plan has
        twins = [make_sequences([n], deadline=1000.0) for n in range(1, 21)]
        for twin in twins:
            b.dispatcher.add(twin)
        b.engine.may_run.set()
        await b.finish(40)
        assert sorted(b.engine.sequences_run) == [[n] for n in range(1, 21)]
        assert b.rejections == []


async def test_a_sequence_that_arrives_late_fails_at_once(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info) as b:
        b.dispatcher.add(make_sequences([1], deadline=98.5))
        [rejection] = b.rejections
        assert isinstance(rejection.error, ArrivedLate)
        assert "1,500 ms" in rejection.error.message
        assert (b.scheduler.num_queued, b.lanes.num_submitted) == (0, 0)


async def test_a_sequence_that_would_be_late_is_rejected_at_once_and_never_run(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(make_sequences([1] * 8))  # eight seconds
        late = make_sequences([2, 2], deadline=105.0)
        b.dispatcher.add(late + make_sequences([3, 3], deadline=120.0))
        [rejection] = b.rejections
        assert ([rejection.record], type(rejection.error)) == (records(late), Overloaded)
        b.engine.may_run.set()
        await b.finish(3)
        assert [2, 2] not in b.engine.sequences_run
        assert b.ids == [[1] * 8, [3, 3]]


async def test_with_one_rejected_sequence_the_others_of_its_request_leave_the_queue(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(make_sequences([9]))
        twin = make_sequences([1])
        b.dispatcher.add(make_sequences([1], [2], [3] * 50, deadline=110.0) + twin)
        assert [type(rejection.error) for rejection in b.rejections] == [Overloaded]
        assert b.scheduler.queued_tokens == 2  # the first, and the twin's, which was not refused
        b.dispatcher.drain()
        await b.finish(3)
        assert sorted(b.engine.sequences_run) == [[1], [9]]
        assert twin[0] in [sequence for sequence, _ in b.results]


@pytest.mark.parametrize("small", [[[7] * 4], [[7] * 2, [8] * 2]])
async def test_a_request_that_would_be_late_as_a_whole_keeps_no_other_out(
    info: ModelInfo, make_sequences: MakeSequences, small: list[list[int]]
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(make_sequences([9]))
        large, fitting = (
            make_sequences([1] * 8, [2] * 8, [3] * 50, deadline=120.0),
            make_sequences(*small, deadline=120.0),
        )
        b.dispatcher.add(large + fitting)
        [rejection] = b.rejections
        assert ([rejection.record], type(rejection.error)) == (records(large), Overloaded)
        assert rejection.error.rows == {}  # it is the whole record's: the client sends it again whole, or not at all
        b.dispatcher.drain()
        await b.finish(2 + len(small))
        assert sorted(b.engine.sequences_run) == sorted([[9], *small])


async def test_an_idle_worker_runs_a_request_predicted_to_be_late_now_and_then(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    """Otherwise predictions that are far too high would never be corrected."""
    async with bench(info, cost=SECOND_A_TOKEN) as b:
        tried = make_sequences([1] * 8, [2] * 8, deadline=102.0)
        b.dispatcher.add(tried + make_sequences([3] * 8, deadline=102.0))
        await b.finish(3)
        assert [sequence for sequence, _ in b.results] == tried
        assert [type(rejection.error) for rejection in b.rejections] == [Overloaded]
        b.dispatcher.add(make_sequences([4] * 8, deadline=102.0))  # too soon for another
        await b.finish(4)
        b.clock.now += 1
        b.dispatcher.add(again := make_sequences([5] * 8, deadline=102.0))
        await b.finish(5)
        assert b.results[-1][0] is again[0]
        b.clock.now += 1
        b.dispatcher.add(make_sequences([6] * 8, deadline=102.0))  # an expired request is not tried
        await b.finish(6)
        assert isinstance(b.rejections[-1].error, ArrivedLate)


async def test_an_equal_sequence_with_more_time_runs_when_the_first_is_rejected(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(make_sequences([9]))
        hasty, patient = make_sequences([1] * 8, deadline=103.0), make_sequences([1] * 8, deadline=150.0)
        b.dispatcher.add(hasty + (hurried := make_sequences([1] * 8, deadline=104.0)) + patient)
        assert [rejection.record for rejection in b.rejections] == records(hasty, hurried)
        b.dispatcher.drain()
        await b.finish(4)
        assert patient[0] in [sequence for sequence, _ in b.results]
        assert sorted(b.engine.sequences_run) == [[1] * 8, [9]]


async def test_an_online_sequence_equal_to_a_bulk_one_does_not_wait_as_bulk(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info, cost=SECOND_A_TOKEN) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(make_sequences([9]))  # keeps the lane busy
        bulk = [make_sequences([n, n], bulk=True) for n in range(1, 9)]
        for sequences in bulk:
            b.dispatcher.add(sequences)
        online = make_sequences([8, 8])
        b.dispatcher.add(online)
        b.engine.may_run.set()
        await b.finish(10)
        assert b.engine.sequences_run[1] == [8, 8]
        assert b.engine.sequences_run.count([8, 8]) == 1
        in_order = [sequence for sequence, _ in b.results]
        assert in_order.index(online[0]) < in_order.index(bulk[0][0])


async def test_what_has_expired_by_the_time_a_lane_is_free_is_not_run(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        first, last = (
            make_sequences(*[[n] for n in range(1, 9)], deadline=105.0),
            make_sequences([9], [10], deadline=110.0),
        )
        b.dispatcher.add(first + last)  # a batch runs, the next is prepared
        b.clock.now = 120.0
        b.engine.may_run.set()
        await b.finish(6)
        assert [type(rejection.error) for rejection in b.rejections] == [LateInQueue] * 2
        assert [rejection.record for rejection in b.rejections] == records(first, last)
        assert [sequence for sequence, _ in b.results] == first[:4]
        assert b.engine.sequences_run == [[n] for n in range(1, 9)]  # the prepared batch ran in vain


async def test_a_sequence_that_shares_a_computation_fails_if_it_began_too_late(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(make_sequences([9]))  # keeps the lane busy
        leader, follower = make_sequences([1]), make_sequences([1], [2], deadline=101.0, bulk=True)
        b.dispatcher.add(leader + follower)
        b.clock.now = 103.5
        b.engine.may_run.set()
        await b.finish(3)
        [rejection] = b.rejections
        assert ([rejection.record], type(rejection.error)) == (records(follower), LateInQueue)
        assert "2,500 ms" in rejection.error.message
        assert b.ids == [[9], [1]]


async def test_a_computation_that_began_in_time_is_answered_though_it_ends_late(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        sequences = make_sequences([1]) + make_sequences([1], deadline=101.0, bulk=True)
        b.dispatcher.add(sequences)
        b.clock.now = 102.0
        b.engine.may_run.set()
        await b.finish(2)
        assert [sequence for sequence, _ in b.results] == sequences


async def test_the_driver_knows_how_long_the_lanes_are_busy(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info, num_lanes=2, cost=SECOND_A_TOKEN) as b:
        b.engine.may_run.clear()
        assert b.driver.busy_s(b.clock()) == 0
        b.dispatcher.add(make_sequences([1] * 6))
        b.dispatcher.add(make_sequences([2] * 2))
        assert b.driver.busy_s(b.clock()) == 4  # (6 + 2) / 2
        b.clock.now += 3
        assert b.driver.busy_s(b.clock()) == 1.5  # the second is overdue, the first has three seconds left
        b.engine.may_run.set()
        await b.finish(2)
        assert b.driver.busy_s(b.clock()) == 0


async def test_the_statistics_of_a_batch_hold_its_prediction(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info, cost=SECOND_A_TOKEN) as b:
        b.dispatcher.add(make_sequences([1, 2, 3], [4]))
        await b.finish(2)
        [stats] = b.stats
        assert (stats.predicted_s, stats.device_s, stats.sums) == (4.0, 0.001, Sums(4, 10, 3, 2))
        assert (stats.trigger, stats.partition, stats.dp_gain) == ("hungry", "fifo", 0.0)


async def test_lazy_waits_until_the_batch_is_full(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info, trigger="lazy") as b:
        b.dispatcher.add(one_each(make_sequences, [1], [2], [3]))
        assert b.scheduler.num_queued == 3
        b.dispatcher.add(make_sequences([4]))
        await b.finish(4)
        assert b.engine.batches == [[[1], [2], [3], [4]]]
        assert (b.stats[0].trigger, b.stats[0].sums.count, b.stats[0].sums.tokens) == ("max_batch", 4, 4)


async def test_after_a_drain_the_triggers_apply_again(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info, trigger="lazy") as b:
        b.dispatcher.add(make_sequences([1]))
        b.dispatcher.drain()
        await b.finish(1)
        assert b.stats[0].trigger == "drain"
        b.dispatcher.resume()
        b.dispatcher.add(make_sequences([2]))
        assert b.scheduler.num_queued == 1


async def test_at_most_one_batch_is_prepared_beyond_the_lanes(info: ModelInfo, make_sequences: MakeSequences) -> None:
    async with bench(info) as b:
        b.engine.may_run.clear()
        b.dispatcher.add(one_each(make_sequences, *[[n] for n in range(1, 21)]))
        assert b.lanes.num_submitted == 2  # of five batches
        b.engine.may_run.set()
        await b.finish(20)


async def test_closing_the_lanes_under_a_closed_dispatcher_raises_nowhere(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    engine = SmallEngine(info)
    lanes = CountingLanes(engine, 1)
    b = Bench(engine, lanes, "hungry")
    engine.may_run.clear()
    b.dispatcher.add(one_each(make_sequences, *[[n] for n in range(1, 21)]))
    b.dispatcher.close()
    engine.may_run.set()
    await lanes.close()
    await asyncio.sleep(0)  # callbacks of the futures that closing completed
    await asyncio.sleep(0)
    assert problems == []


def test_packing_lays_sequences_end_to_end(make_sequences: MakeSequences) -> None:
    batch = pack(make_sequences([1, 2, 3], [4], [5, 6]))
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert (batch.max_seqlen, batch.token_type_ids, len(batch.options)) == (3, None, 3)


def test_packing_fills_in_token_types_where_only_some_have_them(make_sequences: MakeSequences) -> None:
    sequences = make_sequences([1, 2], [3, 4])
    sequences[1].token_type_ids = np.array([0, 1], np.int32)
    types = pack(sequences).token_type_ids
    assert types is not None
    assert types.tolist() == [0, 0, 0, 1]


def test_the_probe_is_one_token(make_sequences: MakeSequences) -> None:
    probe = PackedBatch.probe(make_sequences([1])[0].options)
    assert (probe.token_ids.tolist(), probe.cu_seqlens.tolist(), probe.max_seqlen) == ([0], [0, 1], 1)


@pytest.mark.parametrize("num_lanes", [1, 3])
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(
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
    partition=st.sampled_from(["fifo", "sorted"]),
)
def test_every_sequence_has_one_result_or_its_request_is_rejected_once(
    info: ModelInfo,
    make_sequences: MakeSequences,
    num_lanes: int,
    drawn: list[tuple[list[int], float | None, bool]],
    steps: list[tuple[int, float]],
    token_s: float,
    partition: Partition,
) -> None:
    """Requests come in a few calls, between which time passes."""

    async def run() -> None:
        cost = PackedCost(0.0, 0.0, token_s, 0.0)
        async with bench(info, num_lanes=num_lanes, cost=cost, partition=partition) as b:
            made = [make_sequences(*[[n] for n in ids], deadline=deadline, bulk=bulk) for ids, deadline, bulk in drawn]
            steps.sort()
            edges = [0, *[edge for edge, _ in steps], len(made)]
            for (start, stop), (_, passes_s) in zip(itertools.pairwise(edges), [*steps, (0, 0.0)], strict=True):
                b.dispatcher.add([sequence for sequences in made[start:stop] for sequence in sequences])
                await asyncio.sleep(0)
                b.clock.now += passes_s
            b.dispatcher.drain()
            await b.until(lambda: all(b.is_done(sequences) for sequences in made))
            everything = {id(sequence) for sequences in made for sequence in sequences}
            with_results = [id(sequence) for sequence, _ in b.results]
            assert len(with_results) == len(set(with_results))
            assert set(with_results) <= everything
            by_record = {id(sequences[0].request.record): sequences[0].request for sequences in made}
            rejected = [by_record[id(rejection.record)] for rejection in b.rejections]
            assert len(rejected) == len(set(rejected))  # once
            assert set(rejected) == {request for request in by_record.values() if request.is_failed}
            for sequence, result in b.results:
                assert result.tolist() == answer(sequence.token_ids.tolist()).tolist()
            for request, rejection in zip(rejected, b.rejections, strict=True):
                if rejection.error.code != "backend":
                    assert request.deadline is not None
                    assert request.deadline < 1000.0
            again = make_sequences([1], [2], [3], [4], [5])
            b.dispatcher.add(again)  # no flight was left behind: these are computed
            await b.until(lambda: b.is_done(again))
            check_scheduler(b.scheduler)
            assert b.scheduler.num_queued == 0
            if b.driver.num_unfinished:
                return  # a batch still runs of which all requests have failed: nobody is told of its end
            flights = b.dispatcher.flights
            assert (b.driver.busy_s(b.clock()), len(flights), flights.num_queued, flights.queued_tokens) == (0, 0, 0, 0)
            assert not any([flights._by_key, flights._by_number, flights._queued])

    asyncio.run(run())
