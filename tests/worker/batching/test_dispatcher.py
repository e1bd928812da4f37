"""The promises of every dispatcher, of batches on lanes or of steps: each sequence ends once, whatever fails."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.engine.types import ModelInfo
from penstock.producer.errors import BackendError
from penstock.producer.wire.messages import Options
from penstock.scheduler import PackedCost
from penstock.worker.requests.sequence_block import SequenceBlock
from tests.examples import examples
from tests.scheduler.integrity import check_scheduler
from tests.worker.batching.benches import Bench, LaneBench, Partition, StepBench, records
from tests.worker.batching.small_engine import POISON, answer


@pytest.fixture(params=["lanes", "lanes, blocks", "steps"])
async def bench(request: pytest.FixtureRequest, info: ModelInfo) -> AsyncIterator[Bench]:
    """Room for four sequences. In steps a sequence takes as many as its first id says."""
    blocks = request.param == "lanes, blocks"
    async with StepBench(max_rows=4) if request.param == "steps" else LaneBench(info, as_blocks=blocks) as made:
        yield made


async def test_each_sequence_gets_its_own_result(bench: Bench) -> None:
    sequences = bench.make([1, 2, 3], [4]) + bench.make([5, 6])
    bench.dispatcher.add(sequences)
    await bench.finish(3)
    assert {id(sequence): result.tolist() for sequence, result in bench.results} == {
        id(sequence): answer(sequence.token_ids.tolist()).tolist() for sequence in sequences
    }


async def test_taken_back_requests_are_not_run_and_their_equals_are(bench: Bench) -> None:
    bench.hold()
    running, lost = bench.make([5], bulk=True), bench.make([2], [3], bulk=True)
    online, same = bench.make([4]), bench.make([2])
    bench.dispatcher.add(running)
    bench.begin()
    bench.dispatcher.add([*lost, *online])
    bench.dispatcher.add(same)
    source = running[0].request.record.source
    assert bench.dispatcher.take_back([("elsewhere", 0)], bulk_only=True, begun=False) == []
    assert bench.dispatcher.take_back([source], bulk_only=True, begun=False) == records(lost)
    assert bench.dispatcher.take_back([source], bulk_only=True, begun=False) == []
    bench.let_go()
    await bench.finish(3)
    assert sorted(bench.ids) == [[2], [4], [5]]
    assert [3] not in bench.ran
    assert bench.rejections == []


async def test_a_request_of_a_lost_partition_may_be_read_again_while_it_runs(bench: Bench) -> None:
    bench.hold()
    lost = bench.make([5])
    bench.dispatcher.add([*lost, *bench.make([2])])
    bench.begin()
    assert len(bench.dispatcher.take_back([lost[0].request.record.source], bulk_only=False, begun=True)) == 2
    again = bench.make([5])
    bench.dispatcher.add(again)
    bench.let_go()
    await bench.finish(1)
    assert [sequence for sequence, _ in bench.results] == again
    assert bench.dispatcher.flights.num_queued == 0


async def test_equal_sequences_are_computed_once_and_all_answered(bench: Bench) -> None:
    bench.hold()
    first = bench.make([5, 2], [5, 2])
    bench.dispatcher.add(first)
    bench.begin()
    later = bench.make([5, 2]) + bench.make([3])
    bench.dispatcher.add(later)
    bench.let_go()
    await bench.finish(4)
    assert sorted(bench.ran) == [[3], [5, 2]]
    assert {id(sequence) for sequence, _ in bench.results} == set(map(id, first + later))
    bench.dispatcher.add(bench.make([5, 2]))  # the flight has ended: this is a new one
    await bench.finish(5)
    assert bench.ran.count([5, 2]) == 2


async def test_requests_share_some_of_their_sequences_and_have_others_of_their_own(bench: Bench) -> None:
    bench.hold()
    requests = [bench.make([1], [2], [3]), bench.make([4], [2], [5], [4]), bench.make([6], [5], [3])]
    for sequences in requests:
        bench.dispatcher.add(sequences)
    bench.let_go()
    await bench.finish(10)
    assert sorted(bench.ran) == [[1], [2], [3], [4], [5], [6]]
    assert {id(sequence) for sequence, _ in bench.results} == {id(one) for sequences in requests for one in sequences}
    assert bench.rejections == []


async def test_of_what_runs_together_the_culprit_fails_alone(bench: Bench) -> None:
    sequences = bench.one_each([1], [2], [POISON, 3], [4])
    bench.dispatcher.add(sequences)
    with capture_logs() as logs:
        await bench.finish(4)
    [rejection] = bench.rejections
    assert rejection.record is sequences[2].request.record
    assert type(rejection.error) is BackendError
    assert list(rejection.error.rows) == [0]
    assert "cannot compute this" in rejection.error.message
    assert "cannot compute this" in str(rejection.error.__cause__)
    assert [event["tokens"] for event in logs if event["event"] == "sequence_failed"] == [2]
    assert sorted(bench.ids) == [[1], [2], [4]]
    assert bench.unhealthy == []


async def test_a_pair_that_fails_is_named_by_its_text(bench: Bench) -> None:
    """Of a text with labels each label is a sequence."""
    sequences = bench.make([1], [2], [3], [POISON], options=Options(labels=("a", "b")))
    bench.dispatcher.add(sequences)
    await bench.until(lambda: bool(bench.rejections))
    [rejection] = bench.rejections
    assert list(rejection.error.rows) == [1]


async def test_sequences_that_share_a_culprits_computation_fail_with_it(bench: Bench) -> None:
    bench.hold()
    bench.dispatcher.add(bench.one_each([POISON], [POISON], [5]))
    assert len(bench.dispatcher.flights) == 2
    bench.let_go()
    await bench.finish(3)
    assert len(bench.rejections) == 2
    bench.dispatcher.add(bench.make([POISON]))  # the flight has ended: this is a new one
    await bench.finish(4)
    assert len(bench.rejections) == 3


async def test_an_engine_that_fails_on_anything_is_unhealthy_and_given_nothing_more(bench: Bench) -> None:
    bench.fail(True)
    bench.dispatcher.add(bench.one_each([1], [2], [3], [4], [5]))
    await bench.until(lambda: bool(bench.unhealthy))
    assert isinstance(bench.unhealthy[0], ValueError)
    bench.fail(False)  # as if by chance
    bench.dispatcher.drain()  # what a worker does on its way out
    bench.dispatcher.add(bench.make([6]))
    bench.dispatcher.give_up(ValueError("again"))
    await bench.close()
    assert (bench.results, bench.rejections, len(bench.unhealthy)) == ([], [], 1)
    assert [6] not in bench.ran


async def test_a_sequence_past_its_deadline_is_not_run(bench: Bench) -> None:
    bench.hold()
    bench.dispatcher.add(bench.make([9]))
    bench.begin()
    late = bench.make([1], deadline=101.0)
    bench.dispatcher.add(late + bench.make([2], deadline=200.0))
    bench.clock.now = 101.5
    bench.let_go()
    await bench.finish(3)
    [rejection] = bench.rejections
    assert ([rejection.record], rejection.error.code) == (records(late), "expired")
    assert "500 ms" in rejection.error.message
    assert bench.ran == [[9], [2]]


async def test_an_equal_sequence_runs_in_place_of_an_expired_one(bench: Bench) -> None:
    bench.hold()
    bench.dispatcher.add(bench.make([9]))
    bench.begin()
    bench.dispatcher.add(bench.make([1], deadline=101.0) + bench.make([1]) + bench.make([1], deadline=101.0))
    bench.clock.now = 102.0
    bench.let_go()
    await bench.finish(4)
    assert [sequence.request.deadline for sequence, _ in bench.results] == [None, None]
    assert [rejection.error.code for rejection in bench.rejections] == ["expired", "expired"]
    assert bench.ran == [[9], [1]]


async def test_the_queued_sequences_of_a_failed_request_run_only_for_another(bench: Bench) -> None:
    bench.hold()
    shared = bench.make([5])
    bench.dispatcher.add(bench.make([POISON], [1], [2], [3], [4], [5]) + shared)
    bench.let_go()
    await bench.until(lambda: bool(bench.rejections) and bench.is_done(shared))
    assert bench.rejections[0].error.rows.keys() == {0}
    assert [4] not in bench.ran
    again = bench.make([4])  # the flight has ended: this is a new one
    bench.dispatcher.add(again)
    await bench.until(lambda: bench.is_done(again))
    assert len(bench.rejections) == 1


@pytest.mark.parametrize("kind", ["lanes", "lanes, blocks", "steps"])
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
    num_lanes=st.sampled_from([1, 3]),
    token_s=st.sampled_from([0.0, 0.3, 1.0]),
    partition=st.sampled_from(["fifo", "sorted"]),
)
def test_every_sequence_has_one_result_or_its_request_is_rejected_once(
    info: ModelInfo,
    kind: str,
    drawn: list[tuple[list[int], float | None, bool]],
    steps: list[tuple[int, float]],
    num_lanes: int,
    token_s: float,
    partition: Partition,
) -> None:
    """Requests come in a few calls, between which time passes."""

    async def run() -> None:
        cost = PackedCost(0.0, 0.0, token_s, 0.0)
        made_bench = (
            StepBench()
            if kind == "steps"
            else LaneBench(info, num_lanes=num_lanes, cost=cost, partition=partition, as_blocks=kind != "lanes")
        )
        async with made_bench as b:
            made = [b.make(*[[n] for n in ids], deadline=deadline, bulk=bulk) for ids, deadline, bulk in drawn]
            steps.sort()
            edges = [0, *[edge for edge, _ in steps], len(made)]
            for (start, stop), (_, passes_s) in zip(itertools.pairwise(edges), [*steps, (0, 0.0)], strict=True):
                b.dispatcher.add([sequence for sequences in made[start:stop] for sequence in sequences])
                b.begin()
                await asyncio.sleep(0)
                b.clock.now += passes_s
            b.dispatcher.drain()
            await b.until(lambda: all(b.is_done(sequences) for sequences in made))
            check_outcome(b, made)
            again = b.make([1], [2], [3], [4], [5])
            b.dispatcher.add(again)  # no flight was left behind: these are computed
            await b.until(lambda: b.is_done(again))
            check_nothing_is_left(b)

    asyncio.run(run())


def check_outcome(b: Bench, made: list[list[SequenceBlock]]) -> None:
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


def check_nothing_is_left(b: Bench) -> None:
    flights = b.dispatcher.flights
    if isinstance(b, LaneBench):
        check_scheduler(b.scheduler)
        assert b.scheduler.num_queued == 0
        if b.driver.num_unfinished:
            return  # a batch still runs of which all requests have failed: nobody is told of its end
        assert b.driver.busy_s(b.clock()) == 0
        assert not b.runner._num_runs
    assert (len(flights), flights.num_queued, flights.queued_tokens) == (0, 0, 0)
    assert not any([flights._by_key, flights._by_number, flights._queued])
