"""Every order of answers, transactions, lost connections, crashes and takeovers, around the real transaction plan."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.worker.kafka.progress.offsets import PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import OwnerMarker
from penstock.worker.replies.outlet import OutAnswer
from penstock.worker.transactions.transaction_plan import TransactionPlan
from tests.worker.protocol_model import Violation
from tests.worker.transaction_model import KeptMarks, Member, World, explore


@pytest.mark.parametrize(
    ("num_records", "faults", "num_states"),
    [
        (2, {"crashes": 1}, 500),
        (2, {"losses": 1}, 900),
        pytest.param(1, {"losses": 2}, 1_400, marks=pytest.mark.slow),
        (1, {"revocations": 1}, 800),
        (1, {"evictions": 1}, 1_990),
        pytest.param(1, {"crashes": 1, "losses": 1}, 2_200, marks=pytest.mark.slow),
        pytest.param(1, {"crashes": 1, "revocations": 1}, 10_000, marks=pytest.mark.slow),
        pytest.param(2, {"evictions": 1}, 16_000, marks=pytest.mark.slow),
        pytest.param(1, {"crashes": 1, "evictions": 1}, 22_700, marks=pytest.mark.slow),
    ],
)
def test_no_order_of_events_answers_a_request_twice_or_commits_an_unanswered_one(
    num_records: int, faults: dict[str, Any], num_states: int, record_property: Callable[[str, int], None]
) -> None:
    """`num_states`: about as many are explored."""
    explored = explore(World.of(num_records, **faults))
    record_property("states", explored)
    assert explored >= num_states


class SendsAgain(Member):
    """Takes a transaction of unknown outcome for one that was aborted."""

    class Plan(TransactionPlan):
        def settle(self, committed: PartitionProgress) -> list[OutAnswer]:
            self._in_doubt, self._committed = None, committed.offset
            return []

    plan_class = Plan


class Trusts(Member):
    """Takes a transaction of unknown outcome for one that was committed."""

    class Plan(TransactionPlan):
        def settle(self, committed: PartitionProgress) -> list[OutAnswer]:
            return [] if self._in_doubt is None else self.finish()

    plan_class = Plan


class RunsUnmarked(Member):
    """Does not wait until its mark is committed."""

    class Plan(TransactionPlan):
        is_marked = True

    plan_class = Plan


class ReadsFirst(Member):
    """Reads what is committed before it fences the last owner."""

    reads_first = True


class Forgets(Member):
    """Loses the answers of a transaction that was not committed."""

    class Plan(TransactionPlan):
        def settle(self, committed: PartitionProgress) -> list[OutAnswer]:
            return [*super().settle(committed), *self.take_all()]

    plan_class = Plan


class TakesItselfForDead(Member):
    """Does not know its own mark again."""

    class Marks(KeptMarks):
        def own_mark(self, source: Source, found: OwnerMarker) -> OwnerMarker | None:
            return None

    marks_class = Marks


@pytest.mark.parametrize(
    ("mutant", "faults", "found"),
    [
        (SendsAgain, {"losses": 1}, "these are answered"),
        (Trusts, {"losses": 1}, "not all is committed"),
        (Forgets, {"losses": 1}, "these are answered"),
        (RunsUnmarked, {"crashes": 1}, "has left no mark"),
        (ReadsFirst, {"evictions": 1}, "these are answered"),
        (TakesItselfForDead, {"crashes": 1, "evictions": 1}, "its own mark"),
    ],
)
@pytest.mark.slow
def test_the_exploration_finds_members_that_break_the_protocol(
    mutant: type[Member], faults: dict[str, Any], found: str
) -> None:
    with pytest.raises(Violation, match=found):
        explore(World.of(1, mutant, **faults))


@pytest.mark.slow
def test_the_exploration_finds_coordinators_that_accept_former_owners() -> None:
    """The protocol rests on the epochs of the transactional id."""
    with pytest.raises(Violation, match="these are answered"):
        explore(World.of(1, is_fencing=False, evictions=1))
