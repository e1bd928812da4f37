"""Records that may have ended a worker run in small groups, then one at a time alone, and then not at all."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.kafka.progress.owner_marker import Marks, OwnerMarker
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields
from penstock.worker.stop_signal import StopSignal

_RETRY_S = 0.1

log = structlog.get_logger("penstock.quarantine")

Process = Callable[[Sequence[PendingRecord]], Awaitable[None]]


class Quarantine:
    """Finds the poisonous record that ends workers, in at most three deaths. Called on the worker's event loop.

    1. Records of a partition run once its marker is committed. The owner that finds the marker of one that died takes
       the partition's unanswered records to be redelivered: they may have run before.
    2. Redelivered records run in groups, once the markers of their partitions name them; each group ends before the
       next begins. If their owner dies, the records that were named are suspects.
    3. A suspect runs alone, once its partition's marker says so. If its owner dies, it is poison: it is not run again,
       but answered with an error, and kept as a dead letter.

    Markers are in commits, so every member of the group sees them, on any machine, and a member that has lost its
    partition can write none.
    """

    def __init__(
        self,
        marks: Marks,
        ledger: RecordLedger,
        stop: StopSignal,
        is_assigned: Callable[[], bool],
        num_aside: Callable[[], int],
    ) -> None:
        """`num_aside`: of admitted records that no engine runs, as they wait for what may take any time."""
        self._marks = marks
        self._ledger = ledger
        self._stop = stop
        self._is_assigned = is_assigned
        self._num_aside = num_aside
        self._alone = asyncio.Lock()  # held while a suspect runs
        self._num_waiting = 0  # admitted records that wait for their group

    def hand_over(self) -> None:
        """The worker gives its partitions up. Their markers stay if it has failed, as by a batch that hangs.

        They do not stay because of a batch that outlasts the drain: it may be slow. A record that hangs the engine of
        the next owner, too, is found there.
        """
        if self._stop.failure is None:
            self._marks.hand_over()

    async def wait(self) -> None:
        """Wait while a suspect runs alone. Called before records are admitted."""
        if self._alone.locked():
            async with self._alone:
                pass

    def trusts(self, records: Sequence[PendingRecord]) -> bool:
        """Whether these may be processed as they are: their partitions have markers, and no owner has died."""
        sources = {record.source for record in records}
        return not self._marks.has_redelivered and all(map(self._marks.is_marked, sources))

    async def run(self, records: Sequence[PendingRecord], process: Process) -> None:
        """Process admitted records that are not trusted, each group once its markers are committed."""
        self._num_waiting += len(records)
        for group in self._groups(records):
            if self._is_suspect(group[0]):
                async with self._alone:
                    await self._stop.unless_stopped(self._ledger.wait_until(self._is_alone))
                    await self._run(group, process, alone=True)
            else:
                await self.wait()
                await self._run(group, process, alone=False)

    def _is_alone(self) -> bool:
        return self._ledger.num_running <= self._num_waiting + self._num_aside()

    def _groups(self, records: Sequence[PendingRecord]) -> list[list[PendingRecord]]:
        """Each suspect by itself, and the others together as far as they follow one another."""
        groups: list[list[PendingRecord]] = []
        for record in records:
            if not groups or self._is_suspect(record) or self._is_suspect(groups[-1][0]):
                groups.append([])
            groups[-1].append(record)
        return groups

    def _is_suspect(self, record: PendingRecord) -> bool:
        return self._marks.marker(record.source).is_suspect(record.original.offset)

    async def _run(self, group: Sequence[PendingRecord], process: Process, *, alone: bool) -> None:
        redelivered = [r for r in group if self._marks.marker(r.source).is_redelivered(r.original.offset)]
        self._note_poison(redelivered)
        self._num_waiting -= len(group)  # before the markers: while they are committed, no suspect may begin alone
        may_run = await self._mark(self._new_marks(group, redelivered, alone=alone), group)
        if not may_run:
            self._ledger.give_up(group)
            return
        await process(group)
        if redelivered:
            # Not until they are acknowledged, which may take long: no engine runs them any more.
            are_answered = self._ledger.wait_until(lambda: not any(one.is_unanswered for one in redelivered))
            await self._stop.unless_stopped(are_answered)
            self._marks.unname({record.source for record in redelivered})
            if alone:
                # At once: what ends the worker from now on is another record.
                cleared = {record.source: self._marks.marker(record.source) for record in redelivered}
                await self._mark(cleared, redelivered)

    def _new_marks(
        self, group: Sequence[PendingRecord], redelivered: Sequence[PendingRecord], *, alone: bool
    ) -> dict[Source, OwnerMarker]:
        """The markers that must be committed before a group runs: new ones, and those that name redelivered records."""
        sources = {record.source for record in group}
        marks = {one: self._marks.marker(one) for one in sources if not self._marks.is_marked(one)}
        for record in redelivered:
            marker, offset = marks.get(record.source) or self._marks.marker(record.source), record.original.offset
            first = min(marker.running[0], offset) if marker.running[1] else offset
            marks[record.source] = marker._replace(running=(first, offset + 1), alone=alone)
        return marks

    def _note_poison(self, redelivered: Sequence[PendingRecord]) -> None:
        for record in redelivered:
            marker = self._marks.marker(record.source)
            if marker.poison == record.original.offset:
                record.note_poison(marker.deaths)
                log.error("record_quarantined", deaths=marker.deaths, **record_fields(record))

    async def _mark(self, marks: dict[Source, OwnerMarker], records: Sequence[PendingRecord]) -> bool:
        """Commit the markers of these records' partitions, if any.

        False if the partitions were revoked, be they assigned again, or the worker stops: a marker would outlast them.
        """
        if not marks:
            return True
        while self._is_assigned() and all(map(self._ledger.is_present, records)) and not self._stop.is_set():
            if await self._stop.unless_stopped(self._marks.mark(marks)):
                return all(map(self._ledger.is_present, records))
            await asyncio.sleep(_RETRY_S)
        return False
