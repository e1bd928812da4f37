"""Every order of records, replies, commits, crashes and rebalances, around the real ledger and offset tracker."""

from collections.abc import Callable, Collection, Sequence

import pytest

from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import PendingRecord
from tests.worker.protocol_model import Member, Violation, World, explore


@pytest.mark.parametrize(
    ("num_records", "crashes", "evictions", "num_states"),
    [
        pytest.param([3], 0, 0, 2_800),
        pytest.param([2, 1], 0, 0, 3_200),
        pytest.param([3], 1, 0, 51_000, marks=pytest.mark.slow),
        pytest.param([2], 1, 1, 55_000, marks=pytest.mark.slow),
    ],
)
def test_no_order_of_events_loses_a_record_or_commits_an_unanswered_one(
    num_records: list[int],
    crashes: int,
    evictions: int,
    num_states: int,
    record_property: Callable[[str, int], None],
) -> None:
    """`num_states`: about as many are explored. With a crash and an eviction, histories without one are among them."""
    explored = explore(World.of(num_records, 2, crashes=crashes, evictions=evictions))
    record_property("states", explored)
    assert explored >= num_states


class CommitsFirst(Member):
    """Finishes records when they are read, as Kafka's auto-commit does."""

    class Tracker(OffsetTracker):
        def start(self, source: Source, offsets: Sequence[int]) -> list[int]:
            already = super().start(source, offsets)
            self.finish(source, offsets)
            return already

    tracker_class = Tracker


class CommitsTheLatest(Member):
    """Commits the highest finished offset, whatever lies before it."""

    class Tracker(OffsetTracker):
        def take_committable(self) -> dict[Source, PartitionProgress]:
            committable = super().take_committable().items()
            return {source: PartitionProgress(max(one.offset - 1, *one.beyond, 0) + 1) for source, one in committable}

    tracker_class = Tracker


class ClaimsTooMuch(Member):
    """Says of every record that it has read that it is finished."""

    class Tracker(OffsetTracker):
        def take_committable(self) -> dict[Source, PartitionProgress]:
            committable = super().take_committable().items()
            return {
                source: PartitionProgress(one.offset, frozenset(self._partitions[source].started))
                for source, one in committable
            }

    tracker_class = Tracker


class FinishesWhatItGivesUp(Member):
    """Takes records that it gives up in a rebalance for finished."""

    class Ledger(RecordLedger):
        def give_up(self, records: Collection[PendingRecord]) -> None:
            for record in records:
                self._offsets.finish(record.source, [record.original.offset])
            super().give_up(records)

    ledger_class = Ledger


class NeverFinishes(Member):
    """Does not hear of acknowledgements."""

    def acknowledge(self, index: int) -> None:
        self.records.pop(index)


@pytest.mark.parametrize(
    ("mutant", "found"),
    [
        (CommitsFirst, "are committed; answered"),
        (CommitsTheLatest, "are committed; answered"),
        (ClaimsTooMuch, "are committed; answered"),
        (FinishesWhatItGivesUp, "are committed; answered"),
        (NeverFinishes, "not all committed"),
    ],
)
@pytest.mark.slow
def test_the_exploration_finds_members_that_break_the_protocol(mutant: type[Member], found: str) -> None:
    with pytest.raises(Violation, match=found):
        explore(World.of([2], 2, mutant, crashes=0, evictions=0))


@pytest.mark.slow
def test_the_exploration_finds_brokers_that_accept_commits_of_former_owners() -> None:
    """The protocol rests on the group's generations."""
    with pytest.raises(Violation, match="went back"):
        explore(World.of([2], 2, is_fencing=False, crashes=0, evictions=1))
