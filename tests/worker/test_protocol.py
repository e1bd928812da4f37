"""Every order of records, replies, commits, crashes and rebalances, around the real ledger and offset tracker."""

from collections.abc import Collection, Iterable

import pytest

from penstock.worker.kafka.offsets import OffsetTracker, Source
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import PendingRecord
from tests.worker.protocol_model import Member, Violation, World, explore


@pytest.mark.parametrize(
    ("num_records", "crashes", "evictions"),
    [
        pytest.param([3], 0, 0),
        pytest.param([2, 1], 0, 0),
        pytest.param([2], 0, 1, marks=pytest.mark.slow),
        pytest.param([3], 1, 0, marks=pytest.mark.slow),
        pytest.param([2], 1, 1, marks=pytest.mark.slow),
    ],
)
def test_no_order_of_events_loses_a_record_or_commits_an_unanswered_one(
    num_records: list[int], crashes: int, evictions: int
) -> None:
    world = World.of(num_records, 2, crashes=crashes, evictions=evictions)
    assert explore(world) > 1000


class CommitsFirst(Member):
    """Finishes records when they are read, as Kafka's auto-commit does."""

    class Tracker(OffsetTracker):
        def start(self, source: Source, offsets: Collection[int]) -> None:
            super().start(source, list(offsets))
            self.finish(source, offsets)

    tracker_class = Tracker


class CommitsTheLatest(Member):
    """Commits the highest finished offset, whatever lies before it."""

    class Tracker(OffsetTracker):
        def finish(self, source: Source, offsets: Iterable[int]) -> None:
            offsets = list(offsets)
            super().finish(source, offsets)
            if source in self._started:
                self._committable[source] = max(*offsets, *self._finished[source], 0) + 1

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
        (CommitsFirst, "is committed; answered"),
        (CommitsTheLatest, "is committed; answered"),
        (FinishesWhatItGivesUp, "is committed; answered"),
        (NeverFinishes, "not all committed"),
    ],
)
def test_the_exploration_finds_members_that_break_the_protocol(mutant: type[Member], found: str) -> None:
    with pytest.raises(Violation, match=found):
        explore(World.of([2], 2, mutant, crashes=0, evictions=0))


def test_the_exploration_finds_brokers_that_accept_commits_of_former_owners() -> None:
    """The protocol rests on the group's generations."""
    with pytest.raises(Violation, match="went back"):
        explore(World.of([2], 2, is_fencing=False, crashes=0, evictions=1))
