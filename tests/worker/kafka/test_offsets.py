"""The contiguous finished prefix of each partition may be committed, with what is finished beyond it, in any order."""

import tracemalloc

from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.worker.kafka.kafka_record import NO_TOPIC_ID
from penstock.worker.kafka.progress import commit_metadata, offsets
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress

A, B = TopicPartition("requests", 0), TopicPartition("requests", 1)


def started(*offsets: int, source: TopicPartition = A) -> OffsetTracker:
    tracker = OffsetTracker()
    for offset in offsets:
        tracker.start(source, [offset])
    return tracker


def beyond(offset: int, *finished: int) -> PartitionProgress:
    return PartitionProgress(offset, frozenset(finished))


def test_nothing_is_committable_before_the_first_offset_is_finished() -> None:
    tracker = started(5, 6, 7)
    tracker.finish(A, [7])
    tracker.finish(A, [6])
    assert tracker.take_committable() == {A: beyond(5, 6, 7)}
    assert tracker.num_unfinished == 1
    tracker.finish(A, [5])
    assert tracker.take_committable() == {A: PartitionProgress(8)}
    assert tracker.num_unfinished == 0


def test_what_is_kept_and_named_is_bounded_however_many_are_finished_behind_one_that_is_not() -> None:
    """A reply may wait for its partition for hours. Commits are made on the event loop, twice a second."""
    tracker, stuck, slow, end = OffsetTracker(), 0, 150_000, 300_000
    tracemalloc.start()
    for first in range(0, end, 1000):
        tracker.start(A, range(first, first + 1000))
        tracker.finish(A, [offset for offset in range(first, first + 1000) if offset not in (stuck, slow)])
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 12 * 1024 * 1024
    assert tracker.num_unfinished == 2
    progress = tracker.take_committable()[A]
    assert (progress.offset, len(progress.beyond)) == (0, 24_575)
    assert commit_metadata.of(progress) == commit_metadata.encode(NO_TOPIC_ID, 0, range(1, end))
    tracker.start(A, [end])
    tracker.finish(A, [end])
    assert tracker.take_committable() == {}  # nothing new could be said
    tracker.finish(A, [stuck])
    progress = tracker.take_committable()[A]
    assert (progress.offset, len(progress.beyond)) == (slow, 24_575)
    tracker.start(A, [end + 1])
    tracker.finish(A, [slow])
    assert tracker.take_committable() == {A: PartitionProgress(end + 1)}
    tracker.finish(A, [end + 1])
    assert (tracker.take_committable(), tracker.num_unfinished) == ({A: PartitionProgress(end + 2)}, 0)


def test_taken_offsets_are_offered_once() -> None:
    tracker = started(0)
    tracker.finish(A, [0])
    assert tracker.take_committable() == {A: PartitionProgress(1)}
    assert tracker.take_committable() == {}


def test_gaps_in_a_partition_do_not_hold_it_up() -> None:
    tracker = started(3, 9)  # as after transactions or compaction
    tracker.finish(A, [3])
    assert tracker.take_committable() == {A: PartitionProgress(4)}
    tracker.finish(A, [9])
    assert tracker.take_committable() == {A: PartitionProgress(10)}


def test_a_failed_commit_is_offered_again() -> None:
    tracker = started(0, 1)
    tracker.finish(A, [0])
    tracker.put_back(tracker.take_committable())
    assert tracker.take_committable() == {A: PartitionProgress(1)}


def test_a_failed_commit_never_hides_a_later_one() -> None:
    tracker = started(0, 1)
    tracker.finish(A, [0])
    failed = tracker.take_committable()
    tracker.finish(A, [1])
    tracker.put_back(failed)
    assert tracker.take_committable() == {A: PartitionProgress(2)}


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
    assert tracker.take_committable() == {A: beyond(1, 2)}
    tracker.forget({A})
    assert tracker.num_unfinished == 0
    tracker.start(A, [1, 2])
    assert tracker.num_unfinished == 2


def test_a_partition_may_come_back_and_be_read_again() -> None:
    tracker = started(7, 8)
    tracker.forget({A})
    tracker.start(A, [7])
    tracker.finish(A, [7])
    assert tracker.take_committable() == {A: PartitionProgress(8)}


def test_an_answer_that_outlived_its_partition_does_not_stand_for_a_record_not_yet_read_again() -> None:
    tracker = started(7, 8)
    tracker.forget({A})
    tracker.start(A, [7])
    tracker.finish(A, [8])  # the first epoch's answer
    assert tracker.num_unfinished == 1
    tracker.finish(A, [7])
    assert tracker.take_committable() == {A: PartitionProgress(8)}


def test_a_partition_that_starts_over_is_tracked_from_its_new_start() -> None:
    tracker = started(4, 5, 6)
    tracker.finish(A, [4])
    tracker.start(A, [0])  # the topic was created again
    assert tracker.take_committable() == {}
    assert tracker.num_unfinished == 1
    tracker.finish(A, [0])
    assert tracker.take_committable() == {A: PartitionProgress(1)}


def test_what_the_last_owner_finished_is_not_started_again() -> None:
    tracker = OffsetTracker()
    tracker.restore({A: beyond(3, 4, 6, 9)})
    assert tracker.start(A, [3, 4, 5]) == [4]
    assert tracker.num_unfinished == 2
    tracker.finish(A, [3])
    assert tracker.take_committable() == {A: beyond(5, 6, 9)}  # those not read yet stay in the next commit
    assert tracker.start(A, [6, 7, 8]) == [6]
    tracker.finish(A, [5, 7, 8])
    assert tracker.start(A, [9]) == [9]
    assert (tracker.take_committable(), tracker.num_unfinished) == ({A: PartitionProgress(10)}, 0)


def test_a_partition_of_which_the_rest_is_finished_is_committed_to_its_end() -> None:
    tracker = OffsetTracker()
    tracker.restore({A: beyond(0, 0, 1)})
    assert tracker.start(A, [0, 1]) == [0, 1]
    assert (tracker.take_committable(), tracker.num_unfinished) == ({A: PartitionProgress(2)}, 0)


def test_what_was_finished_of_another_life_of_the_topic_means_nothing() -> None:
    tracker = OffsetTracker()
    tracker.restore({A: beyond(3, 4, 5)})
    assert tracker.start(A, [0, 1]) == []
    assert tracker.start(A, [2, 3, 4]) == []
    assert tracker.num_unfinished == 5


def test_the_answered_prefix_ends_before_the_first_record_without_an_answer() -> None:
    tracker = OffsetTracker()
    tracker.restore({A: beyond(2, 4, 9)})
    tracker.start(A, [2, 3, 4, 6, 8])
    tracker.finish(A, [8])
    assert tracker.prefix(A, {2, 3, 8}.__contains__) == ([2, 3], beyond(5, 8, 9))
    assert tracker.prefix(A, {3}.__contains__) == ([], beyond(2, 4, 8, 9))
    assert tracker.prefix(A, {2, 3, 6}.__contains__) == ([2, 3, 6], PartitionProgress(9, frozenset({9})))


@given(st.permutations(range(12)), st.integers(0, 12))
def test_any_order_of_finishing_gives_the_same_prefix(order: list[int], num_finished: int) -> None:
    tracker = started(*range(12))
    finished = set(order[:num_finished])
    for offset in order[:num_finished]:
        tracker.finish(A, [offset])
    prefix = next(offset for offset in range(13) if offset not in finished)
    progress = PartitionProgress(prefix, frozenset(finished - set(range(prefix))))
    assert tracker.take_committable() == ({A: progress} if finished else {})
    assert tracker.num_unfinished == 12 - num_finished


class TwoPartitions(RuleBasedStateMachine):
    """A model with sets beside the tracker: reads, answers, commits that succeed or fail, partitions lost and read
    again from what was committed, restarts, and answers that come after their partition was lost.

    Commits travel as the text that the broker stores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.next = {A: 0, B: 0}
        self.committed: dict[TopicPartition, tuple[int, str]] = {A: (0, ""), B: (0, "")}
        self.answered: dict[TopicPartition, set[int]] = {A: set(), B: set()}
        self.in_flight: list[tuple[OffsetTracker, TopicPartition, int]] = []

    @rule(source=st.sampled_from([A, B]), count=st.integers(1, 3))
    def read(self, source: TopicPartition, count: int) -> None:
        first = self.next[source]
        offsets = [offset for offset in range(first, first + count) if offset % 4 != 2]
        # No record has an offset that is left out, as after compaction: it is as good as answered.
        self.answered[source] |= set(range(first, first + count)) - set(offsets)
        self.next[source] = first + count
        if offsets:
            skipped = self.tracker.start(source, offsets)
            _, restored = commit_metadata.decode(*self.committed_before[source])
            assert set(skipped) == restored.intersection(offsets)
            self.in_flight += [(self.tracker, source, offset) for offset in offsets if offset not in skipped]

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        reader, source, offset = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        self.answered[source].add(offset)
        reader.finish(source, [offset])

    @rule(succeeds=st.booleans())
    def commit(self, succeeds: bool) -> None:
        progress = self.tracker.take_committable()
        if succeeds:
            self._commit(progress)
        else:
            self.tracker.put_back(progress)

    def _commit(self, progress: dict[TopicPartition, PartitionProgress]) -> None:
        for source, one in progress.items():
            self.committed[source] = one.offset, commit_metadata.of(one)

    @initialize()
    def begin(self) -> None:
        self._assign({A, B})

    @rule(sources=st.sets(st.sampled_from([A, B]), min_size=1))
    def lose_and_read_again(self, sources: set[TopicPartition]) -> None:
        self.tracker.forget(sources)
        self._assign(sources)

    @rule()
    def restart(self) -> None:
        """Killed: another process reads on. Answers of the first may still reach the broker."""
        self.tracker = OffsetTracker()
        self._assign({A, B})

    def _assign(self, sources: set[TopicPartition]) -> None:
        if not hasattr(self, "committed_before"):
            self.committed_before: dict[TopicPartition, tuple[int, str]] = {}
        for source in sources:
            offset, metadata = self.committed_before[source] = self.committed[source]
            self.tracker.restore({source: PartitionProgress(offset, commit_metadata.decode(offset, metadata)[1])})
            self.next[source] = offset

    @invariant()
    def everything_committed_was_answered(self) -> None:
        """So no record is lost, be it before the offset or beyond it."""
        for source, (offset, metadata) in self.committed.items():
            assert self.answered[source].issuperset(range(offset))
            assert self.answered[source].issuperset(commit_metadata.decode(offset, metadata)[1])

    def teardown(self) -> None:
        """Once everything in flight is answered, everything read is committed, and nothing is left beyond."""
        for reader, source, offset in self.in_flight:
            reader.finish(source, [offset])
        self._commit(self.tracker.take_committable())
        assert self.tracker.num_unfinished == 0
        for source, (offset, _) in self.committed.items():
            assert self.answered[source].issuperset(range(offset, self.next[source]))


class WithFewKept(TwoPartitions):
    """The same, where few finished offsets are kept behind one that is not finished."""

    def __init__(self) -> None:
        super().__init__()
        self._bounds = offsets._MOST_NAMED, offsets._MOST_KEPT
        offsets._MOST_NAMED, offsets._MOST_KEPT = 2, 4

    def teardown(self) -> None:
        offsets._MOST_NAMED, offsets._MOST_KEPT = self._bounds
        super().teardown()


TestTwoPartitions = TwoPartitions.TestCase
TestWithFewKept = WithFewKept.TestCase


def test_a_gap_is_skipped_once_all_before_it_is_finished() -> None:
    """Not before: the record at its end then ends it."""
    tracker = OffsetTracker()
    tracker.restore({A: PartitionProgress(3, frozenset({5}), topic_id=b"an id")})
    assert not tracker.skip(B, 0, 90)
    tracker.start(A, [3])
    assert not tracker.skip(A, 4, 90)
    tracker.finish(A, [3])
    assert tracker.skip(A, 4, 90)
    tracker.put_back([A])
    assert tracker.take_committable() == {A: PartitionProgress(90, topic_id=b"an id")}
    tracker.start(A, [90])
    tracker.finish(A, [90])
    assert tracker.take_committable() == {A: PartitionProgress(91, topic_id=b"an id")}
    tracker.start(A, [92])
    assert not tracker.skip(A, 93, 99)
    tracker.start(A, [99])
    tracker.finish(A, [92, 99])
    assert tracker.take_committable() == {A: PartitionProgress(100, topic_id=b"an id")}
