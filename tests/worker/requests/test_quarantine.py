"""Which records run together, under which marks, and which no more: real bookkeeping, and commits kept in memory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.batching.watchdog import EngineHung
from penstock.worker.kafka import commits
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.commits import Committer
from penstock.worker.kafka.progress import committed_progress
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import MAX_CHARS, OwnerMarker
from penstock.worker.requests import quarantine as quarantine_module
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.quarantine import Quarantine
from penstock.worker.requests.record import PendingRecord
from penstock.worker.stop_signal import StopSignal

A, B = ("penstock.requests.tiny", 0), ("penstock.requests.tiny", 1)
MakeRecord = Callable[..., Any]


class Died(Exception):
    """Stands for the end of the process."""


class Broker:
    """The group's commits, as the next owner finds it."""

    def __init__(self) -> None:
        self.stored: dict[Source, PartitionProgress] = {}
        self.refusals = 0  # commits that fail from now on
        self.num_commits = 0
        self.was_overtaken = False  # whether the group has gone on without this member

    def serve(self, owner: Any) -> None: ...

    def on_refusal(self) -> None: ...

    async def commit(self, offsets: Mapping[Source, PartitionProgress]) -> bool:
        if self.refusals:
            self.refusals -= 1
            self.on_refusal()
            return False
        self.num_commits += 1
        self.stored |= offsets
        return True


class Owner:
    """A worker's bookkeeping, from the assignment of both partitions to its death."""

    def __init__(self, broker: Broker, ends: Mapping[Source, int], killers: set[tuple[Source, int]]) -> None:
        self.offsets = OffsetTracker()
        self.backpressure = Backpressure(100)
        self.ledger = RecordLedger(self.backpressure, self.offsets, {"penstock.requests.tiny.bulk"})
        self.committer = Committer(self.offsets, broker)  # type: ignore[arg-type]  # it uses only `commit` of a Consumer
        self.stop = StopSignal()
        self.is_assigned = True
        self.num_aside = 0
        self.quarantine = Quarantine(
            self.committer, self.ledger, self.stop, lambda: self.is_assigned, lambda: self.num_aside
        )
        self.runs: list[list[tuple[int, int]]] = []  # partitions and offsets of each group
        self.poison: list[tuple[int, int]] = []
        self._killers = killers
        self._broker = broker
        self._ends = ends
        self.acquire()

    def acquire(self) -> None:
        """Get both partitions, with what is committed of them."""
        found = {source: self._taken_over(source, one) for source, one in self._broker.stored.items()}
        self.committer.acquired(set(found), found)

    def _taken_over(self, source: Source, found: PartitionProgress) -> PartitionProgress:
        return committed_progress._taken_over(
            TopicPartition(*source), found, self._ends[source], self.committer.own_mark
        )

    def admit(self, make_record: MakeRecord, *positions: tuple[Source, int]) -> list[PendingRecord]:
        records: list[PendingRecord] = []
        for source, offset in positions:
            records += self.ledger.receive([make_record(partition=source[1], offset=offset)])
        return list(self.ledger.admit(records))

    async def run(self, records: Sequence[PendingRecord]) -> None:
        if self.quarantine.trusts(records):
            await self._process(records)
        else:
            await self.quarantine.run(records, self._process)

    async def _process(self, records: Sequence[PendingRecord]) -> None:
        self.runs.append([(record.source[1], record.original.offset) for record in records])
        self.poison += [(r.source[1], r.original.offset) for r in records if r.is_poison]
        if any((r.source, r.original.offset) in self._killers and not r.is_poison for r in records):
            raise Died
        self.ledger.answer(records)
        self.ledger.acknowledge(records)


@pytest.fixture
def broker() -> Broker:
    return Broker()


async def test_a_killer_is_run_three_times_and_costs_no_other_record_its_answer(
    broker: Broker, make_record: MakeRecord
) -> None:
    killers, ends = {(A, 2)}, {A: 5, B: 3}
    everything = [*((A, offset) for offset in range(5)), *((B, offset) for offset in range(3))]
    runs = []
    for death in range(3):
        owner = Owner(broker, ends, killers)
        with pytest.raises(Died):
            await owner.run(owner.admit(make_record, *everything))
        runs.append(owner.runs)
        assert (len(runs), owner.poison) == (death + 1, [])
    all_of_a, all_of_b = [(0, offset) for offset in range(5)], [(1, offset) for offset in range(3)]
    assert runs[0] == [all_of_a + all_of_b]  # nothing was redelivered
    assert runs[1] == [all_of_a + all_of_b]  # its marks named them
    assert runs[2] == [[(0, 0)], [(0, 1)], [(0, 2)]]
    last = Owner(broker, ends, killers)
    left = [(source, offset) for source, offset in everything if offset >= broker.stored[source].offset]
    await last.run(last.admit(make_record, *left))
    assert last.poison == [(0, 2)]
    assert sorted(position for run in last.runs for position in run)[-1] == (1, 2)
    last.quarantine.hand_over()
    await last.committer.commit_last()
    assert {source: (one.offset, one.marker) for source, one in broker.stored.items()} == {A: (5, None), B: (3, None)}


async def test_an_owner_that_is_fenced_beside_a_suspect_and_lives_does_not_make_it_poison(
    broker: Broker, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "LAST_COMMIT_S", 0.05)
    for _ in range(2):
        one = Owner(broker, {A: 1}, {(A, 0)})
        with pytest.raises(Died):
            await one.run(one.admit(make_record, (A, 0)))
    fenced = Owner(broker, {A: 1}, set())

    async def never_ends(records: Sequence[PendingRecord]) -> None:
        fenced.stop.ask()

    records = fenced.admit(make_record, (A, 0))
    await fenced.quarantine.run(records, never_ends)
    mark = broker.stored[A].marker
    assert mark is not None
    assert (mark.deaths, mark.alone, mark.running) == (2, True, (0, 1))
    broker.refusals = 99  # another producer has its transactional id, or the group another generation
    fenced.quarantine.hand_over()
    await fenced.committer.commit_last()
    await fenced.committer.release({A})
    fenced.ledger.forget({A})
    broker.refusals = 0
    assert broker.stored[A].marker == mark
    fenced.acquire()
    marker = fenced.committer.marker(A)
    assert (marker.deaths, marker.poison, marker.is_suspect(0)) == (2, -1, True)
    other = Owner(broker, {A: 1}, set())
    assert (other.committer.marker(A).deaths, other.committer.marker(A).poison) == (3, 0)


async def test_a_suspect_does_not_wait_for_records_that_were_set_aside(broker: Broker, make_record: MakeRecord) -> None:
    for _ in range(2):
        one = Owner(broker, {A: 1}, {(A, 0)})
        with pytest.raises(Died):
            await one.run(one.admit(make_record, (A, 0)))
    owner = Owner(broker, {A: 1}, set())
    owner.admit(make_record, (A, 1))  # it waits for a schema
    owner.num_aside = 1
    await owner.run(owner.admit(make_record, (A, 0)))
    assert owner.runs == [[(0, 0)]]


async def test_a_partition_that_was_handed_over_has_no_redelivered_records(
    broker: Broker, make_record: MakeRecord
) -> None:
    first = Owner(broker, {}, set())
    first.admit(make_record, (A, 0))  # and never answered
    await first.quarantine.run(first.admit(make_record, (A, 1)), first._process)
    assert broker.stored[A].marker == OwnerMarker()
    first.quarantine.hand_over()
    await first.committer.commit_last()
    second = Owner(broker, {A: 2}, set())
    assert not second.committer.has_redelivered


async def test_an_owner_whose_engine_failed_leaves_its_marks(broker: Broker, make_record: MakeRecord) -> None:
    first = Owner(broker, {}, {(A, 0)})
    with pytest.raises(Died):
        await first.run(first.admit(make_record, (A, 0)))
    first.stop.fail(Died())
    first.quarantine.hand_over()
    await first.committer.commit_last()
    second = Owner(broker, {A: 1}, set())
    assert second.committer.marker(A).deaths == 1


async def test_an_owner_that_hangs_on_a_batch_leaves_its_marks_to_the_next(
    broker: Broker, make_record: MakeRecord
) -> None:
    first = Owner(broker, {}, set())
    await first.run(first.admit(make_record, (A, 0)))
    first.admit(make_record, (A, 1))
    first.stop.fail(EngineHung())
    first.quarantine.hand_over()
    await first.committer.commit_last()
    assert Owner(broker, {A: 2}, set()).committer.marker(A).deaths == 1


async def test_an_owner_whose_batch_outlasts_the_drain_takes_its_marks_back(
    broker: Broker, make_record: MakeRecord
) -> None:
    """Three slow drains in turn, as of a roll, set no record aside."""
    for _ in range(4):
        owner = Owner(broker, {A: 1}, set())
        assert owner.committer.marker(A).deaths == 0
        [record] = owner.admit(make_record, (A, 0))

        async def never_ends(records: Sequence[PendingRecord]) -> None: ...

        await owner.quarantine.run([record], never_ends)
        assert broker.stored[A].marker == OwnerMarker()  # it would be redelivered if its owner died now
        owner.stop.ask()
        owner.quarantine.hand_over()
        await owner.committer.commit_last()


@pytest.mark.slow
async def test_a_killer_far_behind_a_slow_record_is_run_three_times(broker: Broker, make_record: MakeRecord) -> None:
    """Records finished behind the slow one are no longer in memory, so an owner reads on and on."""
    far = 9000
    broker.stored[A] = PartitionProgress(0, frozenset(range(1, far)), OwnerMarker())  # by the first owner that died
    runs = []
    for _ in range(2):
        owner = Owner(broker, {A: far + 1}, {(A, far)})
        with pytest.raises(Died):
            await owner.run(owner.admit(make_record, *[(A, offset) for offset in range(far + 1)]))
        runs.append(owner.runs)
    assert runs == [[[(0, 0), (0, far)]], [[(0, 0)], [(0, far)]]]
    last = Owner(broker, {A: far + 1}, {(A, far)})
    await last.run(last.admit(make_record, *[(A, offset) for offset in range(broker.stored[A].offset, far + 1)]))
    assert last.poison == [(0, far)]


async def test_a_redelivered_record_that_waits_for_its_acknowledgement_holds_up_nothing(
    broker: Broker, make_record: MakeRecord
) -> None:
    broker.stored[A] = PartitionProgress(0, marker=OwnerMarker())
    owner = Owner(broker, {A: 1}, set())

    async def answer_only(records: Sequence[PendingRecord]) -> None:
        owner.ledger.answer(records)

    async with asyncio.timeout(300):
        await owner.quarantine.run(owner.admit(make_record, (A, 0)), answer_only)
        await owner.run(owner.admit(make_record, (B, 0)))
    assert owner.runs == [[(1, 0)]]


async def test_nothing_begins_beside_a_suspect_that_runs_alone(broker: Broker, make_record: MakeRecord) -> None:
    broker.stored[A] = PartitionProgress(0, marker=OwnerMarker(1, 1, (0, 1)))
    owner = Owner(broker, {A: 1}, set())
    running: list[int] = []
    most = 0

    async def process(records: Sequence[PendingRecord]) -> None:
        nonlocal most
        running.append(0)
        most = max(most, len(running))
        await asyncio.sleep(0.01)  # longer than a commit
        running.pop()
        owner.ledger.answer(records)
        owner.ledger.acknowledge(records)

    commit = broker.commit

    async def slowly(offsets: Mapping[Source, PartitionProgress]) -> bool:
        await asyncio.sleep(0.001)
        return await commit(offsets)

    broker.commit = slowly  # type: ignore[method-assign]
    taken = [owner.admit(make_record, (B, 0)), owner.admit(make_record, (A, 0))]
    await asyncio.gather(*(owner.quarantine.run(one, process) for one in taken))
    assert most == 1


async def test_the_quarantine_ends_when_the_redelivered_records_are_answered(
    broker: Broker, make_record: MakeRecord
) -> None:
    broker.stored[A] = PartitionProgress(0, marker=OwnerMarker())
    owner = Owner(broker, {A: 2}, set())
    assert owner.committer.has_redelivered
    await owner.run(owner.admit(make_record, (A, 0), (A, 1)))
    await owner.committer.commit_last()
    assert not owner.committer.has_redelivered
    assert broker.stored[A] == PartitionProgress(2, marker=OwnerMarker())
    num_commits = broker.num_commits
    await owner.run(owner.admit(make_record, (A, 2)))
    assert broker.num_commits == num_commits


async def test_a_suspect_waits_until_nothing_else_runs_and_nothing_begins_beside_it(
    broker: Broker, make_record: MakeRecord
) -> None:
    broker.stored[A] = PartitionProgress(0, marker=OwnerMarker(1, 1, (0, 1)))
    owner = Owner(broker, {A: 1}, set())
    other = owner.admit(make_record, (B, 0))
    running = asyncio.create_task(owner.run(owner.admit(make_record, (A, 0))))
    gate = None
    for _ in range(10):
        await asyncio.sleep(0)
        gate = gate or asyncio.create_task(owner.quarantine.wait())
    assert owner.runs == []
    assert gate is not None
    assert not gate.done()
    owner.ledger.answer(other)
    owner.ledger.acknowledge(other)
    await asyncio.wait_for(asyncio.gather(running, gate), 60)
    assert owner.runs == [[(0, 0)]]
    marker = broker.stored[A].marker
    assert marker is None or marker.running == (0, 0)  # at once: another record may end the worker from now on


async def test_records_whose_marks_cannot_be_committed_do_not_run(
    broker: Broker, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_module, "_RETRY_S", 0.0)
    owner = Owner(broker, {}, set())
    broker.refusals = 1
    await owner.run(owner.admit(make_record, (A, 0)))
    assert owner.runs == [[(0, 0)]]  # at the second attempt
    broker.refusals, owner.is_assigned = 1, False
    await owner.run(owner.admit(make_record, (B, 0)))
    assert len(owner.runs) == 1
    assert (owner.ledger.num_unfinished, owner.backpressure.num_records) == (0, 0)


async def test_records_whose_partition_is_lost_and_another_assigned_do_not_run(
    broker: Broker, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stood still: it asked only whether it had partitions."""
    monkeypatch.setattr(quarantine_module, "_RETRY_S", 0.0)
    owner = Owner(broker, {}, set())
    broker.refusals = 1
    monkeypatch.setattr(broker, "on_refusal", lambda: owner.ledger.forget({A}))
    await asyncio.wait_for(owner.run(owner.admit(make_record, (A, 0))), 60)
    assert (owner.runs, broker.stored, owner.ledger.num_running) == ([], {}, 0)


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_last_commit_that_fails_is_tried_again_unless_the_group_has_gone_on(
    broker: Broker, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch, overtaken: bool
) -> None:
    """Marks that stay count as a death, and three of them set a record aside."""
    monkeypatch.setattr(commits, "_RETRY_S", 0.0)
    owner = Owner(broker, {}, set())
    await owner.run(owner.admit(make_record, (A, 0)))
    broker.refusals, broker.was_overtaken = 2, overtaken
    owner.quarantine.hand_over()
    await owner.committer.commit_last()
    marker = broker.stored[A].marker
    assert (broker.refusals, marker is None) == ((1, False) if overtaken else (0, True))


@given(st.integers(0, 999), st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62), st.booleans())
def test_a_mark_comes_back_from_its_text(deaths: int, until: int, first: int, end: int, alone: bool) -> None:
    marker = OwnerMarker(deaths, until, (first, end), alone)
    text = marker.text()
    assert OwnerMarker.parse(text) == marker
    assert len(text) <= MAX_CHARS


@pytest.mark.parametrize("text", ["", ";", ";1,2,3", ";1,2,3,4,5", ";1,2,3,4,1x", ";-1,2,3,4,1"])
def test_a_damaged_mark_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="damaged mark"):
        OwnerMarker.parse(text)
