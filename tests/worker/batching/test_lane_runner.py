"""Jobs in batches on real lanes over a small engine: what waits, what runs when, and what is rejected."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from unittest.mock import Mock

import pytest

from penstock.engine.types import ModelInfo
from penstock.producer.errors import Overloaded
from penstock.scheduler import Job, LaneDriver, RejectedJob
from penstock.worker.batching.batch import Sums
from penstock.worker.requests.deadline_errors import ArrivedLate, LateInQueue
from penstock.worker.requests.record import PendingRecord
from tests.worker.batching.benches import SECOND_A_TOKEN, LaneBench, records
from tests.worker.conftest import FakeRecord

MakeBench = Callable[..., LaneBench]


@pytest.fixture(params=[False, True], ids=["one by one", "blocks"])
def bench(info: ModelInfo, request: pytest.FixtureRequest) -> MakeBench:
    """Makes a bench of which the sequences of a request come in one block, or each by itself."""
    return partial(LaneBench, info, as_blocks=request.param)


@asynccontextmanager
async def busy_bench(bench: MakeBench) -> AsyncIterator[LaneBench]:
    """Of its lane a token takes a second. A batch of one token runs and another is prepared, until `may_run` is set."""
    async with bench(cost=SECOND_A_TOKEN, max_sequences=1) as b:
        b.hold()
        for ids in ([9], [8]):
            b.dispatcher.add(b.make(ids))
        yield b


async def test_a_job_whose_online_leader_has_left_keeps_no_other_request_out(bench: MakeBench) -> None:
    async with busy_bench(bench) as b:
        bulk = b.make([5] * 6, bulk=True)
        b.dispatcher.add(bulk)
        record = PendingRecord(FakeRecord(offset=77), ("elsewhere", 0), from_bulk_topic=False)
        b.dispatcher.add(b.make([5] * 6, deadline=b.clock.now + 9.0, record=record))
        b.dispatcher.take_back([record.source], bulk_only=False, begun=False)
        online = b.make([7] * 2, deadline=b.clock.now + 8.0)  # in time: 2 s of 8 are taken
        b.dispatcher.add(online)
        b.let_go()
        await b.finish(4)
        assert b.rejections == []
        assert b.ids[2:] == [[7] * 2, [5] * 6]


async def test_what_two_requests_share_is_as_urgent_as_the_one_that_is_left(bench: MakeBench) -> None:
    """The first request has another sequence beside the one that a bulk request has too."""
    async with busy_bench(bench) as b:
        record = PendingRecord(FakeRecord(offset=77), ("elsewhere", 0), from_bulk_topic=False)
        b.dispatcher.add(b.make([6], [5] * 6, deadline=b.clock.now + 9.5, record=record))
        b.dispatcher.add(b.make([5] * 6, bulk=True))
        b.dispatcher.take_back([record.source], bulk_only=False, begun=False)
        b.dispatcher.add(b.make([7] * 2, deadline=b.clock.now + 8.0))  # in time: 2 s of 8 are taken
        b.let_go()
        await b.finish(4)
        assert b.rejections == []
        assert b.ids[2:] == [[7] * 2, [5] * 6]


async def test_of_requests_that_come_together_the_first_is_admitted_also_where_it_shares_a_job(
    bench: MakeBench,
) -> None:
    async with busy_bench(bench) as b:
        b.dispatcher.add(b.make([5] * 6, bulk=True))
        first, second = (b.make([number] * 6, deadline=b.clock.now + 10.0) for number in (5, 4))
        b.dispatcher.add([*first, *second])
        assert [one.record for one in b.rejections] == records(second)


async def test_requests_that_are_due_together_are_jobs_of_bounded_length(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a job is gone through whenever a part of it is planned."""
    add, lengths = LaneDriver.add, list[int]()

    def counted(driver: LaneDriver, jobs: Sequence[Job], now: float) -> list[RejectedJob]:
        lengths.extend(len(job.ids) for job in jobs)
        return add(driver, jobs, now)

    monkeypatch.setattr(LaneDriver, "add", counted)
    async with bench() as b:
        numbers = itertools.count(1)
        requests = [b.make(*[[next(numbers)] for _ in range(40)]) for _ in range(8)]
        b.dispatcher.add(list(itertools.chain.from_iterable(requests)))
    assert lengths == [160, 160]


async def test_a_sequence_of_a_request_that_was_rejected_in_its_turn_is_not_run(bench: MakeBench) -> None:
    async with busy_bench(bench) as b:
        b.dispatcher.add(b.make([1] * 5, [2], deadline=b.clock.now + 10.0))
        assert b.rejections == []
        b.clock.now += 4.0  # too late for the first of them
        b.let_go()
        await b.finish(3)
        b.dispatcher.add(b.make([3]))
        await b.finish(4)
        assert [type(one.error) for one in b.rejections] == [LateInQueue]
        assert b.ran == [[9], [8], [3]]


async def test_a_prepared_batch_runs_once_though_a_more_urgent_equal_sequence_comes(bench: MakeBench) -> None:
    """A job that is planned has left the queue: the newcomer shares it instead of taking over."""
    async with bench(partition="sorted") as b:
        b.hold()
        b.dispatcher.add(b.one_each(*[[n] for n in range(1, 21)]))
        assert b.scheduler.num_queued == 0
        assert b.lanes.num_submitted < 5  # batches that the plan has
        twins = [b.make([n], deadline=1000.0) for n in range(1, 21)]
        for twin in twins:
            b.dispatcher.add(twin)
        b.let_go()
        await b.finish(40)
        assert sorted(b.ran) == [[n] for n in range(1, 21)]
        assert b.rejections == []


async def test_a_sequence_that_arrives_late_fails_at_once(bench: MakeBench) -> None:
    async with bench() as b:
        b.dispatcher.add(b.make([1], deadline=98.5))
        [rejection] = b.rejections
        assert isinstance(rejection.error, ArrivedLate)
        assert "1,500 ms" in rejection.error.message
        assert (b.scheduler.num_queued, b.lanes.num_submitted) == (0, 0)


async def test_a_sequence_that_would_be_late_is_rejected_at_once_and_never_run(bench: MakeBench) -> None:
    async with bench(cost=SECOND_A_TOKEN) as b:
        b.hold()
        b.dispatcher.add(b.make([1] * 8))  # eight seconds
        late = b.make([2, 2], deadline=105.0)
        b.dispatcher.add(late + b.make([3, 3], deadline=120.0))
        [rejection] = b.rejections
        assert ([rejection.record], type(rejection.error)) == (records(late), Overloaded)
        b.let_go()
        await b.finish(3)
        assert [2, 2] not in b.ran
        assert b.ids == [[1] * 8, [3, 3]]


async def test_with_one_rejected_sequence_the_others_of_its_request_leave_the_queue(bench: MakeBench) -> None:
    async with bench(cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(b.make([9]))
        twin = b.make([1])
        b.dispatcher.add(b.make([1], [2], [3] * 50, deadline=110.0) + twin)
        assert [type(rejection.error) for rejection in b.rejections] == [Overloaded]
        assert b.scheduler.queued_tokens == 2  # the first, and the twin's, which was not refused
        b.dispatcher.drain()
        await b.finish(3)
        assert sorted(b.ran) == [[1], [9]]
        assert twin[0] in [sequence for sequence, _ in b.results]


@pytest.mark.parametrize("small", [[[7] * 4], [[7] * 2, [8] * 2]])
async def test_a_request_that_would_be_late_as_a_whole_keeps_no_other_out(
    bench: MakeBench, small: list[list[int]]
) -> None:
    async with bench(cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(b.make([9]))
        large, fitting = (
            b.make([1] * 8, [2] * 8, [3] * 50, deadline=120.0),
            b.make(*small, deadline=120.0),
        )
        b.dispatcher.add(large + fitting)
        [rejection] = b.rejections
        assert ([rejection.record], type(rejection.error)) == (records(large), Overloaded)
        assert rejection.error.rows == {}  # it is the whole record's: the client sends it again whole, or not at all
        b.dispatcher.drain()
        await b.finish(2 + len(small))
        assert sorted(b.ran) == sorted([[9], *small])


async def test_an_idle_worker_runs_a_request_predicted_to_be_late_now_and_then(bench: MakeBench) -> None:
    """Otherwise predictions that are far too high would never be corrected."""
    async with bench(cost=SECOND_A_TOKEN) as b:
        tried = b.make([1] * 8, [2] * 8, deadline=102.0)
        b.dispatcher.add(tried + b.make([3] * 8, deadline=102.0))
        await b.finish(3)
        assert [sequence for sequence, _ in b.results] == tried
        assert [type(rejection.error) for rejection in b.rejections] == [Overloaded]
        b.dispatcher.add(b.make([4] * 8, deadline=102.0))  # too soon for another
        await b.finish(4)
        b.clock.now += 1
        b.dispatcher.add(again := b.make([5] * 8, deadline=102.0))
        await b.finish(5)
        assert b.results[-1][0] is again[0]
        b.clock.now += 1
        b.dispatcher.add(b.make([6] * 8, deadline=102.0))  # an expired request is not tried
        await b.finish(6)
        assert isinstance(b.rejections[-1].error, ArrivedLate)


async def test_an_equal_sequence_with_more_time_runs_when_the_first_is_rejected(bench: MakeBench) -> None:
    async with bench(cost=SECOND_A_TOKEN, trigger="lazy") as b:
        b.dispatcher.add(b.make([9]))
        hasty, patient = b.make([1] * 8, deadline=103.0), b.make([1] * 8, deadline=150.0)
        b.dispatcher.add(hasty + (hurried := b.make([1] * 8, deadline=104.0)) + patient)
        assert [rejection.record for rejection in b.rejections] == records(hasty, hurried)
        b.dispatcher.drain()
        await b.finish(4)
        assert patient[0] in [sequence for sequence, _ in b.results]
        assert sorted(b.ran) == [[1] * 8, [9]]


async def test_an_online_sequence_equal_to_a_bulk_one_does_not_wait_as_bulk(bench: MakeBench) -> None:
    async with bench(cost=SECOND_A_TOKEN) as b:
        b.hold()
        b.dispatcher.add(b.make([9]))  # keeps the lane busy
        bulk = [b.make([n, n], bulk=True) for n in range(1, 9)]
        for sequences in bulk:
            b.dispatcher.add(sequences)
        online = b.make([8, 8])
        b.dispatcher.add(online)
        b.let_go()
        await b.finish(10)
        assert b.ran[1] == [8, 8]
        assert b.ran.count([8, 8]) == 1
        in_order = [sequence for sequence, _ in b.results]
        assert in_order.index(online[0]) < in_order.index(bulk[0][0])


async def test_what_has_expired_by_the_time_a_lane_is_free_is_not_run(bench: MakeBench) -> None:
    async with bench() as b:
        b.hold()
        first, last = (
            b.make(*[[n] for n in range(1, 9)], deadline=105.0),
            b.make([9], [10], deadline=110.0),
        )
        b.dispatcher.add(first + last)  # a batch runs, the next is prepared
        b.clock.now = 120.0
        b.let_go()
        await b.finish(6)
        assert [type(rejection.error) for rejection in b.rejections] == [LateInQueue] * 2
        assert [rejection.record for rejection in b.rejections] == records(first, last)
        assert [sequence for sequence, _ in b.results] == first[:4]
        assert b.ran == [[n] for n in range(1, 9)]  # the prepared batch ran in vain


async def test_a_sequence_that_shares_a_computation_fails_if_it_began_too_late(bench: MakeBench) -> None:
    async with bench() as b:
        b.hold()
        b.dispatcher.add(b.make([9]))  # keeps the lane busy
        leader, follower = b.make([1]), b.make([1], [2], deadline=101.0, bulk=True)
        b.dispatcher.add(leader + follower)
        b.clock.now = 103.5
        b.let_go()
        await b.finish(3)
        [rejection] = b.rejections
        assert ([rejection.record], type(rejection.error)) == (records(follower), LateInQueue)
        assert "2,500 ms" in rejection.error.message
        assert b.ids == [[9], [1]]


async def test_a_computation_that_began_in_time_is_answered_though_it_ends_late(bench: MakeBench) -> None:
    async with bench() as b:
        b.hold()
        sequences = b.make([1]) + b.make([1], deadline=101.0, bulk=True)
        b.dispatcher.add(sequences)
        b.clock.now = 102.0
        b.let_go()
        await b.finish(2)
        assert [sequence for sequence, _ in b.results] == sequences


async def test_the_driver_knows_how_long_the_lanes_are_busy(bench: MakeBench) -> None:
    async with bench(num_lanes=2, cost=SECOND_A_TOKEN) as b:
        b.hold()
        assert b.driver.busy_s(b.clock()) == 0
        b.dispatcher.add(b.make([1] * 6))
        b.dispatcher.add(b.make([2] * 2))
        assert b.driver.busy_s(b.clock()) == 4  # (6 + 2) / 2
        b.clock.now += 3
        assert b.driver.busy_s(b.clock()) == 1.5  # the second is overdue, the first has three seconds left
        b.let_go()
        await b.finish(2)
        assert b.driver.busy_s(b.clock()) == 0


async def test_the_statistics_of_a_batch_hold_its_prediction(bench: MakeBench) -> None:
    async with bench(cost=SECOND_A_TOKEN) as b:
        b.dispatcher.add(b.make([1, 2, 3], [4]))
        await b.finish(2)
        [stats] = b.stats
        assert (stats.predicted_s, stats.device_s, stats.sums) == (4.0, 0.001, Sums(4, 10, 3, 2))
        assert (stats.trigger, stats.partition, stats.dp_gain) == ("hungry", "fifo", 0.0)


async def test_lazy_waits_until_the_batch_is_full(bench: MakeBench) -> None:
    async with bench(trigger="lazy") as b:
        b.dispatcher.add(b.one_each([1], [2], [3]))
        assert b.scheduler.num_queued == 3
        b.dispatcher.add(b.make([4]))
        await b.finish(4)
        assert b.engine.batches == [[[1], [2], [3], [4]]]
        assert (b.stats[0].trigger, b.stats[0].sums.count, b.stats[0].sums.tokens) == ("max_batch", 4, 4)


async def test_after_a_drain_the_triggers_apply_again(bench: MakeBench) -> None:
    async with bench(trigger="lazy") as b:
        b.dispatcher.add(b.make([1]))
        b.dispatcher.drain()
        await b.finish(1)
        assert b.stats[0].trigger == "drain"
        b.dispatcher.resume()
        b.dispatcher.add(b.make([2]))
        assert b.scheduler.num_queued == 1


async def test_at_most_one_batch_is_prepared_beyond_the_lanes(bench: MakeBench) -> None:
    async with bench() as b:
        b.hold()
        b.dispatcher.add(b.one_each(*[[n] for n in range(1, 21)]))
        assert b.lanes.num_submitted == 2  # of five batches
        b.let_go()
        await b.finish(20)


async def test_closing_the_lanes_under_a_closed_dispatcher_raises_nowhere(bench: MakeBench) -> None:
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with bench() as b:
        b.hold()
        b.dispatcher.add(b.one_each(*[[n] for n in range(1, 21)]))
    assert problems == []


async def test_a_batch_that_lost_sequences_before_it_runs_is_predicted_anew(bench: MakeBench) -> None:
    async with bench(cost=SECOND_A_TOKEN, partition="sorted", max_sequences=2) as b:
        b.hold()
        lost = PendingRecord(FakeRecord(offset=77), ("elsewhere", 0), from_bulk_topic=False)
        b.dispatcher.add(b.one_each([1], [2], [3], [4], [5]) + b.make([6], record=lost))
        assert b.lanes.num_submitted == 2  # of three batches, all planned
        b.dispatcher.take_back([lost.source], bulk_only=False, begun=True)
        b.let_go()
        await b.finish(5)
        assert [(stats.sums.count, stats.predicted_s) for stats in b.stats] == [(2, 2.0), (2, 2.0), (1, 1.0)]


async def test_a_wake_up_that_a_full_batch_has_overtaken_does_not_come(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, passed_s = asyncio.get_running_loop(), 0.0
    began = loop.time()
    monkeypatch.setattr(loop, "time", lambda: began + passed_s)
    async with bench(trigger="lazy") as b:
        b.dispatcher.add(b.make([1]))  # waits for 10 s at most
        b.dispatcher.add(b.one_each([2], [3], [4]))
        await b.finish(4)
        dispatch = Mock(wraps=b.driver.dispatch)
        monkeypatch.setattr(b.driver, "dispatch", dispatch)
        passed_s = 20.0
        for _ in range(3):
            await asyncio.sleep(0)
        dispatch.assert_not_called()


async def test_nothing_is_cancelled_by_its_sender(bench: MakeBench) -> None:
    async with bench(trigger="lazy") as b:
        sequences = b.make([1])
        b.dispatcher.add(sequences)
        b.dispatcher.cancel([sequences[0].request.address])
        b.dispatcher.drain()
        await b.finish(1)
        assert (b.ids, b.rejections) == ([[1]], [])
