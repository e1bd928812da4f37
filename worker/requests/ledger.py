"""The life of every record: each step is taken once, in order, and counted where back-pressure and commits need it.

Records take their steps together, so that counts are kept once for all of them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import attrgetter

from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID, KafkaRecord
from penstock.worker.kafka.progress.offsets import OffsetTracker, Source
from penstock.worker.requests.record import UNANSWERED, PendingRecord, RecordState
from penstock.worker.requests.request import PendingRequest

_IS_BULK = attrgetter("from_bulk_topic")
_RECEIVED = (RecordState.RECEIVED,)
_ADMITTED = (RecordState.ADMITTED,)
_ANSWERED = (RecordState.ANSWERED,)


class RecordLedger:
    """Moves records through their states. Called on the worker's event loop only.

        RECEIVED ──▶ ADMITTED ──▶ QUEUED ──▶ ANSWERED ──▶ ACKNOWLEDGED ──▶ committed, with its partition's prefix
            │            └──── rejected ────────▲
            └──▶ RELEASED         └── given up ──▶ RELEASED

    An ADMITTED record that the partition's last owner has answered is ACKNOWLEDGED at once.
    A step that does not follow from the record's state, such as a second answer, raises RuntimeError.
    """

    def __init__(self, backpressure: Backpressure, offsets: OffsetTracker, bulk_topics: AbstractSet[str]) -> None:
        self._backpressure = backpressure
        self._offsets = offsets
        self._bulk_topics = bulk_topics
        self.num_running = 0  # admitted, and neither answered nor given up
        self.num_skipped = 0  # records that the last owner of their partition had answered
        self._step = asyncio.Event()  # set at the next step

    @property
    def num_unfinished(self) -> int:
        """Records admitted and neither acknowledged nor given up, of the partitions that this worker has."""
        return self._offsets.num_unfinished

    def receive(self, originals: Sequence[KafkaRecord], topic_id: bytes = NO_TOPIC_ID) -> list[PendingRecord]:
        """Records of one partition were polled."""
        first = originals[0]
        source, is_bulk = (first.topic, first.partition), first.topic in self._bulk_topics
        records = [PendingRecord(original, source, is_bulk, topic_id) for original in originals]
        self._backpressure.add_records(len(records), _held_bytes(records), bulk=is_bulk)
        return records

    def release(self, records: Collection[PendingRecord]) -> None:
        """The worker gives these up before validation. The partition's next owner reads them again."""
        _advance(records, _RECEIVED, RecordState.RELEASED)
        self._remove(records)

    def admit(self, records: Sequence[PendingRecord]) -> Sequence[PendingRecord]:
        """From here on this worker has to answer these. Called in the order of each partition.

        Returns those that need an answer: the others were answered by the partition's last owner.
        """
        _advance(records, _RECEIVED, RecordState.ADMITTED)
        skipped: list[PendingRecord] = []
        for _, run in groupby(records, _poll):
            polled = list(run)
            already = self._offsets.start(polled[0].source, [record.original.offset for record in polled])
            epoch = self._offsets.epoch(polled[0].source)
            for record in polled:
                record.epoch = epoch
            if already:
                skipped += [record for record in polled if record.original.offset in already]
        if skipped:
            self._skip(skipped)
            records = [record for record in records if record.state is RecordState.ADMITTED]
        self.num_running += len(records)
        return records

    def _skip(self, records: Collection[PendingRecord]) -> None:
        _advance(records, _ADMITTED, RecordState.ACKNOWLEDGED)
        self._remove(records)
        self.num_skipped += len(records)

    def queue(self, requests: Collection[PendingRequest]) -> None:
        """These requests were prepared: their sequences wait for results."""
        records = [request.record for request in requests]
        _advance(records, _ADMITTED, RecordState.QUEUED)
        for request in requests:
            request.record.num_sequences = request.num_counted
        self._add_sequences(records, 1)

    def answer(self, records: Collection[PendingRecord]) -> None:
        """The answers of these records go to the outbox. Called once a record, before they do."""
        _advance(records, UNANSWERED, RecordState.ANSWERED)
        self._add_sequences(records, -1)
        self.num_running -= len(records)
        self._step.set()

    def give_up(self, records: Collection[PendingRecord]) -> None:
        """Admitted records of partitions that are being revoked. The next owner reads them again."""
        _advance(records, UNANSWERED, RecordState.RELEASED)
        self._add_sequences(records, -1)
        self._remove(records)
        self.num_running -= len(records)
        for record in filter(self.is_present, records):
            self._offsets.give_up(record.source, 1)
        self._step.set()

    def acknowledge(self, records: Collection[PendingRecord]) -> None:
        """The broker has all that these records are owed: their offsets are finished."""
        _advance(records, _ANSWERED, RecordState.ACKNOWLEDGED)
        self._remove(records)
        offsets: dict[tuple[Source, int], list[int]] = {}
        for record in records:
            offsets.setdefault((record.source, record.epoch), []).append(record.original.offset)
        for (source, epoch), finished in offsets.items():
            if epoch == self._offsets.epoch(source):
                self._offsets.finish(source, finished)
        self._step.set()

    def forget(self, sources: set[Source]) -> None:
        """These partitions were revoked: their offsets are no longer this worker's to commit."""
        self._offsets.forget(sources)
        self._step.set()

    async def wait_until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait for what answers, acknowledgements or records that are given up make true. False after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await self._next_step()
        return holds()

    async def _next_step(self) -> None:
        if self._step.is_set():
            self._step = asyncio.Event()
        await self._step.wait()

    async def wait_until_finished(self, timeout_s: float) -> bool:
        """Wait until every admitted record is acknowledged; false after `timeout_s`."""
        return await self.wait_until(lambda: self.num_unfinished == 0, timeout_s)

    async def wait_until_answered(self, timeout_s: float) -> bool:
        """Wait until no admitted record is without an answer; false after `timeout_s`."""
        return await self.wait_until(lambda: self.num_running == 0, timeout_s)

    def is_present(self, record: PendingRecord) -> bool:
        """Whether the partition of this one has been this worker's without a break since it was admitted."""
        return record.epoch == self._offsets.epoch(record.source)

    def _remove(self, records: Iterable[PendingRecord]) -> None:
        for bulk, chosen in _by_topic(records):
            self._backpressure.add_records(-len(chosen), -_held_bytes(chosen), bulk=bulk)

    def _add_sequences(self, records: Iterable[PendingRecord], sign: int) -> None:
        for bulk, chosen in _by_topic(records):
            num_sequences = sum([record.num_sequences for record in chosen])
            self._backpressure.add_sequences(sign * num_sequences, bulk=bulk)


def _by_topic(records: Iterable[PendingRecord]) -> Iterator[tuple[bool, list[PendingRecord]]]:
    """Runs of records of the bulk topic, or of the other. Nearly always one."""
    return ((bulk, list(run)) for bulk, run in groupby(records, _IS_BULK))


def _held_bytes(records: Iterable[PendingRecord]) -> int:
    return sum([record.held_bytes for record in records])


def _poll(record: PendingRecord) -> int:
    """Identifies the poll that a record came with: its records share one `source`, and their offsets increase."""
    return id(record.source)


def _advance(records: Iterable[PendingRecord], expected: tuple[RecordState, ...], state: RecordState) -> None:
    for record in records:
        if record.state not in expected:
            raise RuntimeError(f"A record that is {record.state.value} cannot become {state.value}. This is a bug.")
        record.state = state
