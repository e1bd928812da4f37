"""The protocol of transactions, fencing and takeovers as a small world, around the worker's own bookkeeping.

The broker, the group and the network are modelled; `TransactionPlan`, `PartitionMarks`, `RecordLedger` and
`OffsetTracker` are the real ones. There is one partition, as partitions share nothing but their worker.
"""

import pickle
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError

from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import OwnerMarker
from penstock.worker.kafka.progress.partition_marks import PartitionMarks
from penstock.worker.replies.outlet import OutAnswer
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import PendingRecord
from penstock.worker.transactions.transaction_plan import PartitionLost, TransactionContent, TransactionPlan
from tests.worker.protocol_model import Action, Original, Violation

TOPIC, SOURCE = "requests", ("requests", 0)
FAULTS = {"crash", "evict", "revoke", "lose", "expire"}  # steps that need not come


class KeptMarks(PartitionMarks):
    """Marks that are committed when the plan says so."""

    def _changed(self, sources: Collection[Source]) -> None: ...

    async def _commit_marks(self, sources: Collection[Source]) -> bool:
        raise NotImplementedError


class Transaction(NamedTuple):
    """A transaction on its way from a producer to its coordinator."""

    epoch: int  # of its producer
    content: TransactionContent
    is_open: bool  # whether its answers and its offset are written, so that only its end is left
    sender: int | None  # None: it has died


def done(answers: Sequence[OutAnswer], error: KafkaError | None) -> None:
    """In the place of what answers call. The model reads from the plan what has ended."""


class Member:
    """One worker, from idle over the assignment to the loss of the partition."""

    plan_class: type[TransactionPlan] = TransactionPlan
    marks_class: type[KeptMarks] = KeptMarks
    reads_first = False  # before it fences the last owner

    def __init__(self) -> None:
        self.tracker = OffsetTracker()
        self.ledger = RecordLedger(Backpressure(1000), self.tracker, {"bulk"})
        self.marks = self.marks_class()
        self.phase = "idle"  # then: fenced (the others), owns, draining, leaving
        self.plan = self.plan_class(SOURCE, self.tracker, self.marks)
        self.epoch: int | None = None  # of its producer; None: it has failed
        self.position = 0
        self.found = PartitionProgress(0)  # committed, before the last owner was fenced
        self.records: list[PendingRecord] = []  # that the engine has, also of partitions that were lost
        self.sent: Transaction | None = None

    def own(self, committed: PartitionProgress) -> None:
        """As `Consumer._open` once the earlier owner is fenced."""
        self.phase, self.position = "owns", committed.offset
        found = committed._replace(marker=committed.marker and self.taken_over(committed.marker, committed.offset))
        self.tracker.restore({SOURCE: found})
        self.marks._take_over({SOURCE: found})
        self.plan.take_over(committed)

    def taken_over(self, marker: OwnerMarker, offset: int) -> OwnerMarker:
        """As `committed_progress.take_over`. A member that finds its own mark goes on with it."""
        return self.marks.own_mark(SOURCE, marker) or marker.taken_over(offset, 99)

    def fetch(self) -> None:
        """As the stages up to the engine. The mark is committed before the engine has the record."""
        records = self.ledger.receive([Original(TOPIC, 0, self.position)])
        for record in self.ledger.admit(records):
            self.ledger.queue([SimpleNamespace(record=record, num_counted=1)])  # type: ignore[list-item]
            self.records.append(record)
        self.marks._marked.add(SOURCE)
        self.position += 1

    def answer(self, index: int) -> None:
        record = self.records.pop(index)
        self.ledger.answer([record])
        answers = [OutAnswer(b"", b"", [], done, record)]
        owns = self.phase in ("owns", "draining", "leaving")
        self.complete(self.plan.put("replies", 0, answers) if owns else answers)

    def take_back(self, index: int) -> None:
        """As `Worker._on_revoked` with a record that is not finished soon, while others still are."""
        self.ledger.give_up([self.records.pop(index)])

    def complete(self, answers: Sequence[OutAnswer]) -> None:
        self.ledger.acknowledge([answer.origin for answer in answers])

    def lose(self) -> None:
        """As the release of the partition. One record stays in a batch that runs; the others are taken back."""
        self.complete(self.plan.take_all())
        self.ledger.give_up(self.records[1:])
        self.records = self.records[:1]
        self.tracker.forget({SOURCE})
        self.marks._forget_marks()
        self.plan = self.plan_class(SOURCE, self.tracker, self.marks)
        self.phase, self.epoch, self.sent = "idle", None, None

    def key(self, epoch: int) -> tuple[Any, ...]:
        """Equal for members that behave alike from here on, while the broker has this epoch."""
        epoch = self.tracker.epoch(SOURCE)
        records = [(one.original.offset, one.epoch == epoch) for one in self.records]
        plan, partition = self.plan, self.tracker._partitions.get(SOURCE)
        waiting = [(one == epoch, tuple(sorted(answers._answers))) for one, answers in plan._waiting.items() if answers]
        return (
            (self.phase, self.position, _epoch_key(self.epoch, epoch), tuple(sorted(records))),
            (plan._committed, plan._mark, _content_key(plan._in_doubt), tuple(sorted(waiting))),
            None
            if partition is None
            else (partition.next_offset, partition.num_given_up, *partition.started, *sorted(partition.finished)),
            (bool(self.marks._marked), self.marks._markers.get(SOURCE), tuple(self.marks._given.get(SOURCE, ()))),
            _transaction_key(self.sent, epoch),
        )


def _epoch_key(epoch: int | None, present: int) -> bool | None:
    return None if epoch is None else epoch == present


def _content_key(content: TransactionContent | None) -> Any:
    return None if content is None else (tuple(content.offsets), content.offset, content.mark)


def _transaction_key(transaction: Transaction | None, epoch: int) -> Any:
    if transaction is None:
        return None
    return transaction.epoch == epoch, _content_key(transaction.content), transaction.is_open, transaction.sender


@dataclass
class World:
    """A coordinator, a log, a group and its members. `actions` are the steps that may come next."""

    num_records: int
    member_class: type[Member] = Member
    is_fencing: bool = True  # whether the coordinator rejects producers of earlier epochs
    crashes: int = 0  # how many may still happen
    evictions: int = 0  # of a member that lives
    revocations: int = 0  # orderly ones
    losses: int = 0  # of connections, in a transaction
    epoch: int = 0  # of the transactional id
    opened: Transaction | None = None  # at the coordinator
    committed: PartitionProgress = field(default_factory=lambda: PartitionProgress(0))
    committer: int | None = None  # that made the last commit, if it has not died since
    answered: Counter[int] = field(default_factory=Counter)  # visible to readers with read_committed
    owner: int | None = None  # in the eyes of the group
    members: list[Member] = field(default_factory=list)
    delayed: list[Transaction] = field(default_factory=list)  # requests whose sender waits no more

    @classmethod
    def of(cls, num_records: int, member_class: type[Member] = Member, **rest: Any) -> "World":
        return cls(num_records, member_class, members=[member_class(), member_class()], **rest)

    def after(self, action: Action) -> "World":
        """The world after a step; this one stays as it is. Raises Violation."""
        other = replace(self, members=list(self.members), answered=Counter(self.answered), delayed=list(self.delayed))
        name, *arguments = action
        if name not in ("expire", "arrive"):
            other.members[arguments[0]] = pickle.loads(pickle.dumps(self.members[arguments[0]], -1))
        getattr(other, f"_{name}")(*arguments)
        other._check(self.committed)
        return other

    def actions(self) -> Iterator[Action]:
        for number, member in enumerate(self.members):
            yield from self._actions_of(number, member)
        if self.opened is not None and self.losses:
            yield ("expire",)
        for index in range(len(self.delayed)):
            yield ("arrive", index)

    def _actions_of(self, number: int, member: Member) -> Iterator[Action]:
        is_owner = self.owner == number
        if member.phase == "idle":
            if self.owner is None:
                yield ("assign", number)
        elif member.phase == "fenced":
            yield ("read", number)
        else:
            yield from self._actions_of_owner(number, member)
        for index, record in enumerate(member.records):
            is_stale = record.epoch != member.tracker.epoch(SOURCE)
            has_run = member.phase in ("owns", "draining") and member.plan.is_marked
            if is_stale or has_run:
                yield ("answer", number, index)
            if member.phase == "draining" and not is_stale:
                yield ("take_back", number, index)
        if member.phase != "idle" and is_owner:
            if self.crashes:
                yield ("crash", number)
            if self.evictions:
                yield ("evict", number)

    def _actions_of_owner(self, number: int, member: Member) -> Iterator[Action]:
        if member.phase == "owns":
            if member.position < self.num_records:
                yield ("fetch", number)
            if self.owner != number:
                yield ("notice", number)
            elif self.revocations:
                yield ("revoke", number)
        elif member.phase == "draining":
            yield ("hand_over", number)
        else:
            yield ("leave", number)
        if member.sent is not None:
            yield ("deliver", number)
            if self.losses:
                yield ("lose", number)
        elif member.epoch is None:
            yield ("recover", number)
        elif member.plan.next() is not None:
            yield ("send", number)

    def check_end(self) -> None:
        """Nothing can happen any more. Raises Violation if something is left."""
        if self.committed.offset != self.num_records:
            raise Violation(f"not all is committed: {self.committed}")
        if any(member.ledger.num_unfinished or member.plan.num_answered for member in self.members):
            raise Violation("a member still holds records")

    def key(self) -> tuple[Any, ...]:
        members = tuple([member.key(self.epoch) for member in self.members])
        budgets = self.crashes, self.evictions, self.revocations, self.losses
        opened = _transaction_key(self.opened, self.epoch)
        delayed = tuple(sorted([_transaction_key(one, self.epoch) for one in self.delayed], key=repr))
        return members, budgets, opened, delayed, self.committed, self.committer, frozenset(self.answered), self.owner

    def _check(self, before: PartitionProgress | None) -> None:
        offset = self.committed.offset
        if self.answered != Counter(range(offset)):
            raise Violation(f"{offset} is committed, and these are answered: {dict(self.answered)}")
        if before is not None and offset < before.offset:
            raise Violation(f"the committed offset went back to {offset}")

    # Steps of the group

    def _assign(self, number: int) -> None:
        """The member starts a producer at once, which ends what the last one has left open."""
        member = self.members[number]
        member.phase, member.found, self.owner = "fenced", self.committed, number
        if not member.reads_first:
            self._fence(member)

    def _fence(self, member: Member) -> None:
        self.epoch += 1
        self.opened, member.epoch = None, self.epoch

    def _read(self, number: int) -> None:
        member = self.members[number]
        if member.reads_first:
            self._fence(member)
        member.own(member.found if member.reads_first else self.committed)
        mark = None if self.committer != number else self.committed.marker
        if mark is not None and 0 < mark.deaths < member.marks.marker(SOURCE).deaths:
            raise Violation("a member that lives takes its own mark for that of one that died")

    def _crash(self, number: int) -> None:
        self.crashes -= 1
        member, self.owner = self.members[number], None
        epoch, has_marks = member.tracker.epoch(SOURCE), member.phase in ("owns", "draining")
        has_run = has_marks and any(record.epoch == epoch for record in member.records)
        is_mark_there = self.committed.marker is not None
        if has_run and member.plan.is_marked and member.epoch == self.epoch and not is_mark_there:
            raise Violation("a member died with records that ran, and has left no mark")
        if member.sent is not None:
            self.delayed.append(member.sent)
        self.delayed = [one._replace(sender=None) if one.sender == number else one for one in self.delayed]
        self.committer = None if self.committer == number else self.committer
        self.members[number] = self.member_class()

    def _evict(self, number: int) -> None:
        self.evictions -= 1
        self.owner = None

    def _revoke(self, number: int) -> None:
        """The group takes the partition back."""
        self.revocations -= 1
        self._notice(number)

    def _notice(self, number: int) -> None:
        """The member hears that it has lost the partition, by a heartbeat after its eviction at the latest."""
        self.members[number].phase = "draining"

    def _hand_over(self, number: int) -> None:
        """The drain is over. What runs still leaves no mark, as it may only be slow."""
        self.members[number].phase = "leaving"
        self.members[number].marks.hand_over()

    def _leave(self, number: int) -> None:
        member = self.members[number]
        if member.sent is not None:
            self.delayed.append(member.sent)
        if self.opened is not None and self.opened.epoch == member.epoch:
            self.opened = None  # aborted
        self.owner = None if self.owner == number else self.owner
        member.lose()

    # Steps of a member

    def _fetch(self, number: int) -> None:
        self.members[number].fetch()

    def _answer(self, number: int, index: int) -> None:
        self.members[number].answer(index)

    def _take_back(self, number: int, index: int) -> None:
        self.members[number].take_back(index)

    def _send(self, number: int) -> None:
        member = self.members[number]
        content = member.plan.next()
        assert content is not None
        assert member.epoch is not None
        member.plan.begin(content)
        member.sent = Transaction(member.epoch, content, is_open=False, sender=number)

    def _deliver(self, number: int) -> None:
        """A request reaches the coordinator, and its answer the member."""
        member = self.members[number]
        assert member.sent is not None
        if not self._accepts(member.sent):
            member.lose()
            self.owner = None if self.owner == number else self.owner  # it joins again
        elif member.sent.is_open:
            self._end(member.sent)
            member.sent = None
            member.complete(member.plan.finish())
        else:
            member.sent = self.opened = member.sent._replace(is_open=True)

    def _lose(self, number: int) -> None:
        """The member waits no longer. Its request may still arrive."""
        self.losses -= 1
        member = self.members[number]
        assert member.sent is not None
        self.delayed.append(member.sent)
        member.sent = member.epoch = None

    def _recover(self, number: int) -> None:
        member = self.members[number]
        self._fence(member)
        try:
            member.complete(member.plan.settle(self.committed))
        except PartitionLost:
            member.lose()
            self.owner = None if self.owner == number else self.owner

    # Steps of the coordinator

    def _accepts(self, transaction: Transaction) -> bool:
        if self.is_fencing and transaction.epoch != self.epoch:
            return False
        return not transaction.is_open or self.opened is not None

    def _end(self, transaction: Transaction) -> None:
        content = transaction.content
        self.answered.update(content.offsets)
        marker = OwnerMarker.parse(content.mark) if content.mark else None
        self.committed, self.opened = PartitionProgress(content.offset, marker=marker), None
        self.committer = transaction.sender

    def _arrive(self, index: int) -> None:
        """A request whose sender waits no more. That it opens a transaction makes no difference: it is never ended."""
        transaction = self.delayed.pop(index)
        if transaction.is_open and self._accepts(transaction):
            self._end(transaction)

    def _expire(self) -> None:
        """The coordinator aborts what has been open for too long, and fences its producer."""
        self.losses -= 1
        self.epoch += 1
        self.opened = None


def explore(world: World) -> int:
    """Take every possible step in every state, by breadth-first search. Returns the number of states.

    Raises Violation with the shortest way to it, also for a state from which the end cannot be reached.
    """
    ways: dict[Any, tuple[Action, ...]] = {world.key(): ()}
    before: dict[Any, list[Any]] = {}  # the states from which a state is reached
    ends: list[Any] = []
    waiting = deque([(world, world.key())])
    while waiting:
        world, key = waiting.popleft()
        actions = list(world.actions())
        try:
            if all(name in FAULTS for name, *_ in actions):
                world.check_end()
                ends.append(key)
            for action in actions:
                following = world.after(action)
                reached = following.key()
                before.setdefault(reached, []).append(key)
                if reached not in ways:
                    ways[reached] = (*ways[key], action)
                    waiting.append((following, reached))
        except Violation as violation:
            raise Violation(f"{violation}, after {ways[key]} and one more step") from violation
    stuck = ways.keys() - _leading_to(ends, before)
    if stuck:
        raise Violation(f"nothing leads to the end after {min([ways[key] for key in stuck], key=len)}")
    return len(ways)


def _leading_to(ends: Sequence[Any], before: dict[Any, list[Any]]) -> set[Any]:
    found, waiting = set(ends), deque(ends)
    while waiting:
        for key in before.get(waiting.popleft(), []):
            if key not in found:
                found.add(key)
                waiting.append(key)
    return found
