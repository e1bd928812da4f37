"""The contiguous finished prefix of each partition may be committed, whatever the order of finishing."""

from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.worker.kafka.offsets import OffsetTracker

A, B = TopicPartition("requests", 0), TopicPartition("requests", 1)


def started(*offsets: int, source: TopicPartition = A) -> OffsetTracker:
    tracker = OffsetTracker()
    for offset in offsets:
        tracker.start(source, [offset])
    return tracker


def test_nothing_is_committable_before_the_first_offset_is_finished() -> None:
    tracker = started(5, 6, 7)
    tracker.finish(A, [7])
    tracker.finish(A, [6])
    assert tracker.take_committable() == {}
    assert tracker.num_unfinished == 1
    tracker.finish(A, [5])
    assert tracker.take_committable() == {A: 8}
    assert tracker.num_unfinished == 0


def test_taken_offsets_are_offered_once() -> None:
    tracker = started(0)
    tracker.finish(A, [0])
    assert tracker.take_committable() == {A: 1}
    assert tracker.take_committable() == {}


def test_gaps_in_a_partition_do_not_hold_it_up() -> None:
    tracker = started(3, 9)  # as after transactions or compaction
    tracker.finish(A, [3])
    assert tracker.take_committable() == {A: 4}
    tracker.finish(A, [9])
    assert tracker.take_committable() == {A: 10}


def test_a_failed_commit_is_offered_again() -> None:
    tracker = started(0, 1)
    tracker.finish(A, [0])
    tracker.put_back(tracker.take_committable())
    assert tracker.take_committable() == {A: 1}


def test_a_failed_commit_never_hides_a_later_one() -> None:
    tracker = started(0, 1)
    tracker.finish(A, [0])
    failed = tracker.take_committable()
    tracker.finish(A, [1])
    tracker.put_back(failed)
    assert tracker.take_committable() == {A: 2}


def test_a_partition_that_is_gone_is_neither_committed_nor_counted() -> None:
    tracker = started(0, 1)
    tracker.start(B, [4])
    tracker.finish(A, [0])
    failed = tracker.take_committable()
    tracker.forget({A})
    tracker.put_back(failed)
    tracker.finish(A, [1])  # finished after it was lost
    assert tracker.take_committable() == {}
    assert tracker.num_unfinished == 1


def test_records_given_up_are_not_waited_for_and_nothing_beyond_them_is_committed() -> None:
    tracker = started(0, 1, 2)
    tracker.give_up(A, 1)
    tracker.finish(A, [0, 2])
    assert tracker.num_unfinished == 0
    assert tracker.take_committable() == {A: 1}
    tracker.forget({A})
    assert tracker.num_unfinished == 0
    tracker.start(A, [1, 2])
    assert tracker.num_unfinished == 2


def test_a_partition_may_come_back_and_be_read_again() -> None:
    tracker = started(7, 8)
    tracker.forget({A})
    tracker.start(A, [7])
    tracker.finish(A, [7])
    assert tracker.take_committable() == {A: 8}


def test_an_answer_that_outlived_its_partition_does_not_stand_for_a_record_not_yet_read_again() -> None:
    tracker = started(7, 8)
    tracker.forget({A})
    tracker.start(A, [7])
    tracker.finish(A, [8])  # the first reading's answer
    assert tracker.num_unfinished == 1
    tracker.finish(A, [7])
    assert tracker.take_committable() == {A: 8}


def test_a_partition_that_starts_over_is_tracked_from_its_new_start() -> None:
    tracker = started(4, 5, 6)
    tracker.finish(A, [4])
    tracker.start(A, [0])  # the topic was created again
    assert tracker.take_committable() == {}
    assert tracker.num_unfinished == 1
    tracker.finish(A, [0])
    assert tracker.take_committable() == {A: 1}


@given(st.permutations(range(12)), st.integers(0, 12))
def test_any_order_of_finishing_gives_the_same_prefix(order: list[int], num_finished: int) -> None:
    tracker = started(*range(12))
    finished = set(order[:num_finished])
    for offset in order[:num_finished]:
        tracker.finish(A, [offset])
    prefix = next(offset for offset in range(13) if offset not in finished)
    assert tracker.take_committable() == ({A: prefix} if prefix else {})
    assert tracker.num_unfinished == 12 - num_finished


class TwoPartitions(RuleBasedStateMachine):
    """A model with sets beside the tracker: reads, answers, commits that succeed or fail, partitions lost and read
    again from what was committed, and answers that come after their partition was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.next = {A: 0, B: 0}
        self.committed = {A: 0, B: 0}
        self.answered: dict[TopicPartition, set[int]] = {A: set(), B: set()}
        self.in_flight: list[tuple[TopicPartition, int]] = []

    @rule(source=st.sampled_from([A, B]))
    def read(self, source: TopicPartition) -> None:
        offset = self.next[source]
        if offset % 4 == 2:  # no record has this offset, as after compaction: it is as good as answered
            self.answered[source].add(offset)
            offset += 1
        self.tracker.start(source, [offset])
        self.in_flight.append((source, offset))
        self.next[source] = offset + 1

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        source, offset = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        self.answered[source].add(offset)
        self.tracker.finish(source, [offset])

    @rule(succeeds=st.booleans())
    def commit(self, succeeds: bool) -> None:
        offsets = self.tracker.take_committable()
        if succeeds:
            self.committed.update(offsets)
        else:
            self.tracker.put_back(offsets)

    @rule(source=st.sampled_from([A, B]))
    def lose_and_read_again(self, source: TopicPartition) -> None:
        self.tracker.forget({source})
        self.next[source] = self.committed[source]

    @invariant()
    def everything_committed_was_answered(self) -> None:
        for source, committed in self.committed.items():
            assert self.answered[source].issuperset(range(committed))

    def teardown(self) -> None:
        """Once everything in flight is answered, everything read is committed."""
        for source, offset in self.in_flight:
            self.tracker.finish(source, [offset])
        self.committed.update(self.tracker.take_committable())
        assert self.tracker.num_unfinished == 0
        assert self.committed == self.next


TestTwoPartitions = TwoPartitions.TestCase
