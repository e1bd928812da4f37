"""Sequences of many steps join and leave a runner between its turns."""

import numpy as np
import pytest

from penstock.engine.errors import EngineError, InvalidOption
from penstock.producer.errors import Cancelled, Expired, InvalidRequest
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Options
from penstock.worker.batching.job_runner import JobEvents
from tests.worker.batching.benches import StepBench, records
from tests.worker.stepping.manual import stats_of


@pytest.fixture
def bench() -> StepBench:
    return StepBench()


def test_a_short_sequence_leaves_before_a_long_one_and_another_joins(bench: StepBench) -> None:
    bench.dispatcher.add(bench.make([4, 1]) + bench.make([1, 2]) + bench.make([2, 3]))
    assert (bench.load.num_queued, bench.load.queued_tokens) == (3, 6)
    bench.turn()
    assert bench.ids == [[1, 2]]
    assert bench.load.num_queued == 1
    bench.turn(2)
    assert bench.ids == [[1, 2], [2, 3]]
    bench.turn()
    assert bench.ids == [[1, 2], [2, 3], [4, 1]]
    assert bench.runner.batches == [[0, 1], [0, 2], [0, 2], [0]]
    assert bench.runner.is_idle
    assert not bench.rejections


def test_a_result_tells_how_long_its_sequence_waited_and_ran(bench: StepBench) -> None:
    bench.dispatcher.add(bench.make([3, 1]))
    bench.turn(3)
    ((sequence, _),) = bench.results
    assert sequence.request.times.queued == 100.0
    assert [stats.device_s for stats in bench.stats] == [2.0]  # from the first step to the last
    assert [one.number for one in bench.steps] == list(range(1, len(bench.steps) + 1))
    assert bench.stats[-1].number == len(bench.steps)
    assert [(one.trigger, one.partition, one.sums.tokens, one.num_ended) for one in bench.steps] == [
        ("step", "count", 1, ended) for ended in (0, 0, 1)
    ]
    assert bench.load.errors() == (0.5, 0.5)
    assert bench.load.backlog_s(bench.clock.now) == 0.0


def test_a_queued_flight_takes_the_class_and_the_deadline_of_a_more_urgent_sequence() -> None:
    bench = StepBench(max_rows=1)
    bench.dispatcher.add(bench.make([9, 1]) + bench.make([2, 3], bulk=True))
    bench.turn()
    bench.clock.now += 0.5
    bench.dispatcher.add(bench.make([2, 3], deadline=150.0))
    assert bench.runner.cancelled == [1]
    (job,) = bench.runner.waiting.values()
    assert (job.deadline, job.bulk, job.arrival) == (150.0, False, 100.0)
    bench.dispatcher.add(bench.make([2, 3], deadline=140.0))
    assert [job.deadline for job in bench.runner.waiting.values()] == [140.0]
    assert bench.load.num_queued == 1
    bench.turn(10)
    assert bench.ids == [[9, 1], [2, 3], [2, 3], [2, 3]]


def test_a_sequence_whose_deadline_passes_leaves_a_flight_that_goes_on(bench: StepBench) -> None:
    patient, late = bench.make([5, 1]), bench.make([5, 1], deadline=103.0)
    bench.dispatcher.add(patient)
    bench.turn()
    bench.dispatcher.add(late)
    bench.turn(2)
    assert [rejection.record for rejection in bench.rejections] == [late[0].request.record]
    assert issubclass(bench.errors()[0], Expired)
    bench.turn(2)
    assert [sequence for sequence, _ in bench.results] == patient
    assert {job for batch in bench.runner.batches for job in batch} == {0}


def test_what_the_model_does_not_allow_is_an_invalid_request(bench: StepBench) -> None:
    bench.dispatcher.add(bench.make([2, 1]))
    bench.take(JobEvents(failed={0: InvalidOption("num_beams must be less")}))
    assert bench.errors() == [InvalidRequest]
    assert "num_beams must be less" in bench.rejections[0].error.message


def test_a_request_whose_deadline_passes_leaves_and_the_others_go_on(bench: StepBench) -> None:
    bench.dispatcher.add(bench.make([5, 1], deadline=102.5) + bench.make([4, 2]))
    bench.turn(2)
    assert not bench.rejections
    bench.turn()
    (error,) = bench.errors()
    assert issubclass(error, Expired)
    bench.turn()
    assert bench.ids == [[4, 2]]
    assert bench.runner.is_idle


def test_partial_results_reach_the_sequences_that_stream_and_not_too_often(bench: StepBench) -> None:
    streaming = bench.make([9, 1], options=Options(stream=True), task="generate")
    bench.dispatcher.add(streaming + bench.make([9, 1], task="generate"))
    rows = [np.array([number], np.float32) for number in range(4)]
    for row in rows[:2]:  # the second comes too soon
        bench.take(JobEvents(emitted=[(0, row), (7, row)]))
    bench.clock.now += 1.0
    bench.take(JobEvents(emitted=[(0, rows[2])]))
    assert bench.partials == [(streaming, rows[0]), (streaming, rows[2])]
    assert bench.load.num_queued == 2  # the other, which does not stream, has a job of its own
    bench.dispatcher.take_back({streaming[0].request.record.source}, bulk_only=False, begun=True)
    bench.clock.now += 1.0
    bench.take(JobEvents(emitted=[(0, rows[3])]))
    assert len(bench.partials) == 2


def test_what_has_begun_leaves_the_runner_when_its_partition_is_lost(bench: StepBench) -> None:
    requests = [bench.make([5, number]) for number in range(3)]
    for sequences in requests:
        bench.dispatcher.add(sequences)
    bench.turn()
    sources = {requests[0][0].request.record.source}
    assert bench.dispatcher.take_back(sources, bulk_only=False, begun=False) == records(requests[2])
    assert bench.runner.cancelled == [2]
    begun = bench.dispatcher.take_back(sources, bulk_only=False, begun=True)
    assert {id(record) for record in begun} == {id(record) for record in records(*requests[:2])}
    assert bench.runner.is_idle
    bench.turn()
    assert not bench.results
    assert not bench.rejections


def test_a_request_that_its_sender_takes_back_leaves_before_the_next_step(bench: StepBench) -> None:
    """An equal request of another sender goes on; so does one without a correlation id, which none can name."""
    requests = [bench.make([5, number], [6, number]) for number in (1, 1, 2, 3)]
    for name, sequences in zip((b"a", b"b", b"c", None), requests, strict=True):
        sequences[0].request.address.correlation_id = name
        bench.dispatcher.add(sequences)
    bench.turn()
    addresses = [ReplyAddress("penstock.replies", 0, name, None) for name in (b"a", b"c", b"unknown", None)]
    addresses.append(ReplyAddress("another", 0, b"b", None))
    bench.dispatcher.cancel(addresses)
    assert sorted(bench.runner.cancelled) == sorted(requests[2][0].request.flights)
    bench.turn(30)
    assert {rejection.address.correlation_id for rejection in bench.rejections if rejection.address} == {b"a", b"c"}
    assert set(bench.errors()) == {Cancelled}
    assert sorted(bench.ids) == [[5, 1], [5, 3], [6, 1], [6, 3]]
    bench.dispatcher.cancel(addresses)  # all have ended
    assert len(bench.rejections) == 2


def test_events_of_jobs_that_have_left_are_ignored(bench: StepBench) -> None:
    sequences = bench.make([5, 1])
    bench.dispatcher.add(sequences)
    bench.dispatcher.take_back({sequences[0].request.record.source}, bulk_only=False, begun=True)
    row = np.zeros(1, np.float32)
    stats = stats_of(1, 1, 1)
    bench.take(JobEvents(started=[0], finished=[(0, row)], failed={0: EngineError("late")}, stats=stats))
    assert not bench.results
    assert not bench.rejections
