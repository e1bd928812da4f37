"""The protocol of records, replies, commits and rebalances as a small world, around the worker's own bookkeeping.

The brokers, the group and the network are modelled; `RecordLedger` and `OffsetTracker` are the real ones.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import PendingRecord, RecordState

TOPIC = "requests"
COUNTS = Backpressure(1000)  # of all members: what is counted decides nothing here
Action = tuple[Any, ...]


class Violation(Exception):
    """An invariant does not hold."""


@dataclass
class Original:
    """As much of a Kafka record as the bookkeeping reads."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 0


class Member:
    """One worker: its bookkeeping, and its replies and its commit that are on their way."""

    tracker_class: type[OffsetTracker] = OffsetTracker
    ledger_class: type[RecordLedger] = RecordLedger

    def __init__(self) -> None:
        self.tracker = self.tracker_class()
        self.ledger = self.ledger_class(COUNTS, self.tracker, {"bulk"})
        self.generation: int | None = None  # None: it owns nothing
        self.positions: dict[int, int] = {}  # of the partitions that it owns: the next offset to read
        self.records: list[
            PendingRecord
        ] = []  # queued; or answered: the broker has the reply, and the member may not know
        self.commit: tuple[int | None, dict[Source, PartitionProgress]] | None = None  # on its way: generation, offsets
        self._keys: dict[int, tuple[Any, ...]] = {}  # by the generation of the group

    def clone(self) -> "Member":
        """A copy that can go its own way."""
        other = type(self)()
        other.tracker.__dict__.update(_copied(self.tracker.__dict__))
        other.generation, other.positions = self.generation, dict(self.positions)
        other.records = [_copy_of_slots(record) for record in self.records]
        other.commit = self.commit
        return other

    def acquire(self, partition: int, committed: PartitionProgress | None) -> None:
        """As `Committer.acquired`, and the consumer's seek before it."""
        self.positions[partition] = 0 if committed is None else committed.offset
        if committed is not None:
            self.tracker.restore({(TOPIC, partition): committed})

    def fetch(self, partition: int) -> None:
        records = self.ledger.receive([Original(TOPIC, partition, self.positions[partition])])
        for record in self.ledger.admit(records):
            self.ledger.queue([SimpleNamespace(record=record, num_counted=1)])  # type: ignore[list-item]
            self.records.append(record)
        self.positions[partition] += 1

    def acknowledge(self, index: int) -> None:
        self.ledger.acknowledge([self.records.pop(index)])

    def take_back(self, index: int) -> None:
        """As `Worker._on_revoked` with a record that is not finished soon, while others still are."""
        self.ledger.give_up([self.records.pop(index)])

    def give_up(self) -> None:
        """As `Worker._on_revoked`, when the drain has taken as long as it may."""
        self.ledger.give_up([record for record in self.records if record.state is RecordState.QUEUED])
        self.records = [record for record in self.records if record.state is RecordState.ANSWERED]

    def forget(self) -> None:
        self.ledger.forget({(TOPIC, partition) for partition in self.positions})
        self.generation, self.positions = None, {}

    def key(self, generation: int) -> tuple[Any, ...]:
        """Equal for members that behave alike from here on, while the group has this generation.

        Asked for once the member has taken its step: the next is a clone's.
        """
        if generation not in self._keys:
            self._keys[generation] = self._key(generation)
        return self._keys[generation]

    def _key(self, generation: int) -> tuple[Any, ...]:
        tracker = self.tracker
        records = [
            (one.original.partition, one.original.offset, one.state.value, one.epoch == tracker.epoch(one.source))
            for one in self.records
        ]
        return (
            self.generation == generation,
            tuple(sorted(self.positions.items())),
            tuple(sorted(records)),
            None if self.commit is None else (self.commit[0] == generation, _commit_key(self.commit[1])),
            tuple(sorted((source, _key(partition)) for source, partition in tracker._partitions.items())),
            tuple(sorted(tracker._changed)),
        )


def _copied(value: Any) -> Any:
    """A deep copy of the tracker's state, in a fraction of the time that `deepcopy` or `pickle` takes."""
    kind = type(value)
    if value is None or kind is int or kind is bytes:
        return value
    if kind is dict:
        return {key: _copied(one) for key, one in value.items()}
    return value.copy() if kind is set or kind is deque else _copy_of_slots(value, _copied)


def _copy_of_slots(value: Any, copied: Callable[[Any], Any] | None = None) -> Any:
    other = object.__new__(type(value))
    for name in value.__slots__:
        one = getattr(value, name)
        setattr(other, name, one if copied is None else copied(one))
    return other


def _commit_key(offsets: dict[Source, PartitionProgress]) -> tuple[Any, ...]:
    return tuple(sorted((source, one.offset, tuple(sorted(one.beyond))) for source, one in offsets.items()))


def _key(partition: Any) -> tuple[Any, ...]:
    fields = partition.next_offset, tuple(partition.started), partition.num_given_up
    return (*fields, tuple(sorted(partition.finished)), tuple(sorted(partition.restored)))


@dataclass
class World:
    """Brokers, a consumer group and its members. `actions` are the steps that may come next; `do` takes one."""

    num_records: list[int]  # of each partition
    member_class: type[Member] = Member
    is_fencing: bool = True  # whether the broker rejects commits of earlier generations
    crashes: int = 1  # how many may still happen
    evictions: int = 1  # of a member that lives: it does not know that the group goes on without it
    answered: set[tuple[int, int]] = field(default_factory=set)  # partition, offset
    committed: dict[Source, PartitionProgress] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    group: dict[int, bool] = field(default_factory=dict)  # member -> whether it waits for a new assignment
    is_rebalancing: bool = True
    generation: int = 0

    @classmethod
    def of(cls, num_records: list[int], num_members: int, member_class: type[Member] = Member, **rest: Any) -> "World":
        world = cls(num_records, member_class, **rest)
        world.members = [member_class() for _ in range(num_members)]
        world.group = {0: True}  # the others join later
        return world

    def after(self, action: Action) -> "World":
        """The world after a step; this one stays as it is. Raises Violation."""
        members, group = list(self.members), dict(self.group)
        other = replace(self, answered=set(self.answered), committed=dict(self.committed), members=members, group=group)
        other.do(action)
        return other

    def actions(self) -> Iterator[Action]:
        for number, member in enumerate(self.members):
            yield from self._actions_of(number, member)
        if self.is_rebalancing and self.group and all(self.group.values()):
            yield ("assign",)

    def _actions_of(self, number: int, member: Member) -> Iterator[Action]:
        for partition, position in member.positions.items():
            if position < self.num_records[partition]:
                yield ("fetch", number, partition)
        is_draining = self.is_rebalancing and number in self.group and member.generation is not None
        for index, record in enumerate(member.records):
            is_queued = record.state is RecordState.QUEUED
            yield ("reply" if is_queued else "acknowledge", number, index)
            if is_queued and is_draining:
                yield ("take_back", number, index)
        if member.commit is not None:
            yield ("commit", number)
        elif member.tracker._changed:
            yield ("offer", number)
        if number not in self.group:
            if member.commit is None:  # the committer's lock
                yield ("join", number)
        elif member.generation is not None:
            if self.is_rebalancing and member.commit is None:
                yield ("revoke", number, True)
                yield ("revoke", number, False)
            if self.evictions:
                yield ("evict", number)
        if self.crashes and number in self.group:
            yield ("crash", number)

    def do(self, action: Action) -> None:
        """Take one step. Raises Violation."""
        name, *arguments = action
        for number in arguments[:1] or self.group:
            self.members[number] = self.members[number].clone()
        getattr(self, f"_{name}")(*arguments)
        for (_, partition), (offset, beyond, *_) in self.committed.items():
            passed = {(partition, before) for before in (*range(offset), *beyond)}
            if not passed <= self.answered:
                raise Violation(f"{sorted(passed)} are committed; answered: {sorted(self.answered)}")

    def check_end(self) -> None:
        """Nothing can happen any more. Raises Violation if something is left."""
        wanted = {(p, offset) for p, count in enumerate(self.num_records) for offset in range(count)}
        if self.answered != wanted:
            raise Violation(f"never answered: {sorted(wanted - self.answered)}")
        if self.committed != {(TOPIC, p): PartitionProgress(count) for p, count in enumerate(self.num_records)}:
            raise Violation(f"not all committed: {self.committed}")
        if any(member.ledger.num_unfinished for member in self.members):
            raise Violation("a member still counts unfinished records")

    def key(self) -> tuple[Any, ...]:
        members = tuple([member.key(self.generation) for member in self.members])
        broker = (frozenset(self.answered), _commit_key(self.committed))
        return (*broker, tuple(sorted(self.group.items())), self.is_rebalancing, self.crashes, self.evictions, members)

    def _fetch(self, number: int, partition: int) -> None:
        self.members[number].fetch(partition)

    def _reply(self, number: int, index: int) -> None:
        """The broker stores a reply. One that is lost on its way is as one that was not sent."""
        record = self.members[number].records[index]
        self.members[number].ledger.answer([record])
        self.answered.add((record.original.partition, record.original.offset))

    def _acknowledge(self, number: int, index: int) -> None:
        self.members[number].acknowledge(index)

    def _take_back(self, number: int, index: int) -> None:
        self.members[number].take_back(index)

    def _offer(self, number: int) -> None:
        member = self.members[number]
        member.commit = member.generation, member.tracker.take_committable()

    def _commit(self, number: int) -> None:
        member = self.members[number]
        assert member.commit is not None
        (generation, offsets), member.commit = member.commit, None
        if self._accepts(number, generation):
            self._store_commit(offsets)
        else:
            member.tracker.put_back(offsets)
            if member.generation is not None and number not in self.group:
                member.give_up()  # it learns here that the group went on
                member.forget()

    def _accepts(self, number: int, generation: int | None) -> bool:
        return not self.is_fencing or (number in self.group and generation == self.generation)

    def _store_commit(self, offsets: dict[Source, PartitionProgress]) -> None:
        for source, progress in offsets.items():
            if source in self.committed and progress.offset < self.committed[source].offset:
                raise Violation(f"a commit of {source} went back to {progress.offset}")
            self.committed[source] = progress

    def _revoke(self, number: int, can_commit: bool) -> None:
        member = self.members[number]
        member.give_up()
        if can_commit:
            self._store_commit(member.tracker.take_committable())
        member.forget()
        self.group[number] = True

    def _assign(self) -> None:
        self.generation += 1
        self.is_rebalancing = False
        numbers = sorted(self.group)
        for number in numbers:
            self.group[number] = False
            self.members[number].generation = self.generation
        for partition in range(len(self.num_records)):
            owner = self.members[numbers[partition % len(numbers)]]
            owner.acquire(partition, self.committed.get((TOPIC, partition)))

    def _join(self, number: int) -> None:
        member = self.members[number]
        if member.generation is not None:  # evicted without its knowledge
            member.give_up()
            member.forget()
        self.group[number] = True
        self.is_rebalancing = True

    def _evict(self, number: int) -> None:
        self.evictions -= 1
        del self.group[number]
        self.is_rebalancing = True

    def _crash(self, number: int) -> None:
        self.crashes -= 1
        del self.group[number]
        self.members[number] = self.member_class()
        self.is_rebalancing = True


def explore(world: World) -> int:
    """Take every possible step in every state, by breadth-first search. Returns the number of states.

    Raises Violation with the shortest way to it.
    """
    seen = {world.key()}
    waiting: deque[tuple[World, tuple[Action, ...]]] = deque([(world, ())])
    while waiting:
        world, way = waiting.popleft()
        actions = list(world.actions())
        try:
            if not actions:
                world.check_end()
            for action in actions:
                following = world.after(action)
                if (key := following.key()) not in seen:
                    seen.add(key)
                    waiting.append((following, (*way, action)))
        except Violation as violation:
            raise Violation(f"{violation}, after {way} and one more step") from violation
    return len(seen)
