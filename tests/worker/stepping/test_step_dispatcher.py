"""Sequences join and leave a runner between its turns; each ends once, whatever fails, expires or is taken back."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from structlog.testing import capture_logs

from penstock.engine.errors import EngineError, InvalidOption
from penstock.engine.types import Float32Array
from penstock.producer.errors import BackendError, Cancelled, Expired, InvalidRequest, Overloaded
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Options
from penstock.scheduler.types import Cause, RejectedJob
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.batching.stage import StageCallbacks
from penstock.worker.requests.request import Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from penstock.worker.stepping.step_model import StepLoad
from tests.worker.stepping.manual import CountingRunner, ManualThread, stats_of

MakeSequences = Callable[..., list[SequenceBlock]]


class Bench:
    """A dispatcher over a runner that counts steps, and what came out of it."""

    def __init__(self, max_rows: int = 2) -> None:
        self.now = 100.0
        self.runner = CountingRunner(max_rows)
        self.thread = ManualThread(self.runner)
        self.results: list[tuple[SequenceBlock, Float32Array]] = []
        self.stats: list[BatchStats] = []  # of the results
        self.ran: list[BatchStats] = []
        self.rejections: list[Rejection] = []
        self.unhealthy: list[BaseException] = []
        self.partials: list[tuple[Sequence[SequenceBlock], Float32Array]] = []
        callbacks = StageCallbacks(
            self._on_ran,
            self._on_results,
            self._on_rejected,
            self.unhealthy.append,
            lambda sequences, result: self.partials.append((sequences, result)),
        )
        self.dispatcher = Dispatcher(self.thread, callbacks, clock=lambda: self.now)
        self.load = StepLoad(self.dispatcher.flights, 10)

    def turn(self, num_turns: int = 1) -> None:
        for _ in range(num_turns):
            self.now += 1.0
            self.take(self.thread.turn(self.now))

    def take(self, events: JobEvents) -> None:
        self.dispatcher.on_events(events)

    def answered(self) -> list[list[int]]:
        """The ids of the sequences that have results, each of which is checked."""
        for sequence, row in self.results:
            assert row.tolist() == [sum(sequence.token_ids.tolist())]
        return [sequence.token_ids.tolist() for sequence, _ in self.results]

    def errors(self) -> list[type[Exception]]:
        return [type(rejection.error) for rejection in self.rejections]

    def _on_ran(self, stats: BatchStats) -> None:
        self.ran.append(stats)
        self.load.observe(stats)

    def _on_results(self, results: SequenceResults, stats: BatchStats) -> None:
        self.results += [(block, row) for block, [row] in results]
        self.stats.append(stats)

    def _on_rejected(self, rejections: Sequence[Rejection]) -> None:
        self.rejections += rejections


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_short_sequence_leaves_before_a_long_one_and_another_joins(
    bench: Bench, make_sequences: MakeSequences
) -> None:
    bench.dispatcher.add(make_sequences([4, 1]) + make_sequences([1, 2]) + make_sequences([2, 3]))
    assert (bench.load.num_queued, bench.load.queued_tokens) == (3, 6)
    bench.turn()
    assert bench.answered() == [[1, 2]]
    assert bench.load.num_queued == 1
    bench.turn(2)
    assert bench.answered() == [[1, 2], [2, 3]]
    bench.turn()
    assert bench.answered() == [[1, 2], [2, 3], [4, 1]]
    assert bench.runner.batches == [[0, 1], [0, 2], [0, 2], [0]]
    assert bench.runner.is_idle
    assert not bench.rejections


def test_a_result_tells_how_long_its_sequence_waited_and_ran(bench: Bench, make_sequences: MakeSequences) -> None:
    bench.dispatcher.add(make_sequences([3, 1]))
    bench.turn(3)
    ((sequence, _),) = bench.results
    assert sequence.request.times.queued == 100.0
    assert [stats.device_s for stats in bench.stats] == [2.0]  # from the first step to the last
    assert [one.number for one in bench.ran] == list(range(1, len(bench.ran) + 1))
    assert bench.stats[-1].number == len(bench.ran)
    assert [(one.trigger, one.partition, one.sums.tokens, one.num_ended) for one in bench.ran] == [
        ("step", "count", 1, ended) for ended in (0, 0, 1)
    ]
    assert bench.load.errors() == (0.5, 0.5)
    assert bench.load.backlog_s(bench.now) == 0.0


def test_a_queued_flight_takes_the_class_and_the_deadline_of_a_more_urgent_sequence(
    make_sequences: MakeSequences,
) -> None:
    bench = Bench(max_rows=1)
    bench.dispatcher.add(make_sequences([9, 1]) + make_sequences([2, 3], bulk=True))
    bench.turn()
    bench.now += 0.5
    bench.dispatcher.add(make_sequences([2, 3], deadline=150.0))
    assert bench.runner.cancelled == [1]
    (job,) = bench.runner.waiting.values()
    assert (job.deadline, job.bulk, job.arrival) == (150.0, False, 100.0)
    bench.dispatcher.add(make_sequences([2, 3], deadline=140.0))
    assert [job.deadline for job in bench.runner.waiting.values()] == [140.0]
    assert bench.load.num_queued == 1
    bench.turn(10)
    assert bench.answered() == [[9, 1], [2, 3], [2, 3], [2, 3]]


def test_a_sequence_whose_deadline_passes_leaves_a_flight_that_goes_on(
    bench: Bench, make_sequences: MakeSequences
) -> None:
    patient, late = make_sequences([5, 1]), make_sequences([5, 1], deadline=103.0)
    bench.dispatcher.add(patient)
    bench.turn()
    bench.dispatcher.add(late)
    bench.turn(2)
    assert [rejection.record for rejection in bench.rejections] == [late[0].request.record]
    assert issubclass(bench.errors()[0], Expired)
    bench.turn(2)
    assert [sequence for sequence, _ in bench.results] == patient
    assert {job for batch in bench.runner.batches for job in batch} == {0}


def test_one_that_the_runner_does_not_admit_is_overloaded_and_patient_ones_run(
    bench: Bench, make_sequences: MakeSequences
) -> None:
    hasty, patient = make_sequences([5, 1], deadline=102.0), make_sequences([5, 1], deadline=200.0)
    bench.dispatcher.add(hasty + patient)
    bench.runner.waiting.clear()
    bench.take(JobEvents(expired=[RejectedJob(0, Cause.OVERLOADED, 4.0)]))
    assert bench.errors() == [Overloaded]
    bench.turn(5)
    assert [sequence for sequence, _ in bench.results] == patient


def test_a_failed_sequence_tells_how_often_it_ran(bench: Bench, make_sequences: MakeSequences) -> None:
    sequences = make_sequences([2, 1])
    bench.dispatcher.add(sequences)
    bench.take(JobEvents(failed={0: EngineError("no")}, runs={0: 5}))
    assert bench.rejections[0].record.num_attempts == 5


def test_one_that_fails_fails_alone(bench: Bench, make_sequences: MakeSequences) -> None:
    good, bad = make_sequences([2, 1]), make_sequences([0, 7])
    bench.dispatcher.add(good + bad)
    with capture_logs() as logs:
        bench.turn(2)
    assert bench.answered() == [[2, 1]]
    (rejection,) = bench.rejections
    assert rejection.record is bad[0].request.record
    assert isinstance(rejection.error, BackendError)
    assert list(rejection.error.rows) == [0]
    assert "cannot compute this" in rejection.error.message
    assert isinstance(rejection.error.__cause__, EngineError)
    assert [event["event"] for event in logs] == ["sequence_failed"]
    assert not bench.unhealthy


def test_what_the_model_does_not_allow_is_an_invalid_request(bench: Bench, make_sequences: MakeSequences) -> None:
    bench.dispatcher.add(make_sequences([2, 1]))
    bench.take(JobEvents(failed={0: InvalidOption("num_beams must be less")}))
    assert bench.errors() == [InvalidRequest]
    assert "num_beams must be less" in bench.rejections[0].error.message


def test_the_other_sequences_of_a_failed_request_leave_at_the_next_step(
    bench: Bench, make_sequences: MakeSequences
) -> None:
    alone, shared = [9, 1], [9, 2]
    bench.dispatcher.add(make_sequences(alone, [0, 7], shared) + make_sequences(shared))
    bench.turn()
    assert bench.errors() == [BackendError]
    assert bench.runner.cancelled == [0]
    bench.turn(9)
    assert bench.answered() == [shared]  # another request waits for it


def test_a_request_whose_deadline_passes_leaves_and_the_others_go_on(
    bench: Bench, make_sequences: MakeSequences
) -> None:
    bench.dispatcher.add(make_sequences([5, 1], deadline=102.5) + make_sequences([4, 2]))
    bench.turn(2)
    assert not bench.rejections
    bench.turn()
    (error,) = bench.errors()
    assert issubclass(error, Expired)
    bench.turn()
    assert bench.answered() == [[4, 2]]
    assert bench.runner.is_idle


def test_equal_sequences_with_time_left_run_anew(bench: Bench, make_sequences: MakeSequences) -> None:
    late, patient = make_sequences([3, 1], deadline=101.5), make_sequences([3, 1])
    bench.dispatcher.add(late + patient)
    bench.turn(2)
    assert [rejection.record for rejection in bench.rejections] == [late[0].request.record]
    bench.turn(3)
    assert [sequence for sequence, _ in bench.results] == patient


def test_partial_results_reach_the_sequences_that_stream_and_not_too_often(
    bench: Bench, make_sequences: MakeSequences
) -> None:
    streaming = make_sequences([9, 1], options=Options(stream=True), task="generate")
    bench.dispatcher.add(streaming + make_sequences([9, 1], task="generate"))
    rows = [np.array([number], np.float32) for number in range(4)]
    for row in rows[:2]:  # the second comes too soon
        bench.take(JobEvents(emitted=[(0, row), (7, row)]))
    bench.now += 1.0
    bench.take(JobEvents(emitted=[(0, rows[2])]))
    assert bench.partials == [(streaming, rows[0]), (streaming, rows[2])]
    assert bench.load.num_queued == 2  # the other, which does not stream, has a job of its own
    bench.dispatcher.take_back({streaming[0].request.record.source}, bulk_only=False, begun=True)
    bench.now += 1.0
    bench.take(JobEvents(emitted=[(0, rows[3])]))
    assert len(bench.partials) == 2


def test_a_rebalance_takes_back_what_has_not_begun_then_the_rest(bench: Bench, make_sequences: MakeSequences) -> None:
    requests = [make_sequences([5, number]) for number in range(3)]
    for sequences in requests:
        bench.dispatcher.add(sequences)
    bench.turn()
    sources = {requests[0][0].request.record.source}
    assert bench.dispatcher.take_back(set(), bulk_only=False, begun=True) == []
    assert bench.dispatcher.take_back(sources, bulk_only=True, begun=True) == []
    waiting = bench.dispatcher.take_back(sources, bulk_only=False, begun=False)
    assert waiting == [requests[2][0].request.record]
    assert bench.runner.cancelled == [2]
    begun = bench.dispatcher.take_back(sources, bulk_only=False, begun=True)
    assert {id(record) for record in begun} == {id(one[0].request.record) for one in requests[:2]}
    bench.turn()
    assert bench.runner.is_idle
    assert not bench.results
    assert not bench.rejections


def test_a_request_that_its_sender_takes_back_leaves_before_the_next_step(
    bench: Bench, make_sequences: MakeSequences
) -> None:
    """An equal request of another sender goes on; so does one without a correlation id, which none can name."""
    requests = [make_sequences([5, number], [6, number]) for number in (1, 1, 2, 3)]
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
    assert sorted(bench.answered()) == [[5, 1], [5, 3], [6, 1], [6, 3]]
    bench.dispatcher.cancel(addresses)  # all have ended
    assert len(bench.rejections) == 2


def test_events_of_jobs_that_have_left_are_ignored(bench: Bench, make_sequences: MakeSequences) -> None:
    sequences = make_sequences([5, 1])
    bench.dispatcher.add(sequences)
    bench.dispatcher.take_back({sequences[0].request.record.source}, bulk_only=False, begun=True)
    row = np.zeros(1, np.float32)
    stats = stats_of(1, 1, 1)
    bench.take(JobEvents(started=[0], finished=[(0, row)], failed={0: EngineError("late")}, stats=stats))
    assert not bench.results
    assert not bench.rejections


def test_draining_changes_nothing_since_no_step_waits(bench: Bench, make_sequences: MakeSequences) -> None:
    bench.dispatcher.drain()
    bench.dispatcher.add(make_sequences([1, 2]))
    bench.turn()
    bench.dispatcher.resume()
    assert bench.answered() == [[1, 2]]


def test_a_runner_that_raises_makes_the_worker_unhealthy_once(bench: Bench, make_sequences: MakeSequences) -> None:
    bench.dispatcher.add(make_sequences([1, 2]))
    error = ValueError("a bug of the runner")
    bench.dispatcher.give_up(error)
    bench.dispatcher.give_up(error)
    bench.turn()
    bench.dispatcher.add(make_sequences([1, 2]))
    assert bench.unhealthy == [error]
    assert not bench.results
    assert bench.runner.is_idle
