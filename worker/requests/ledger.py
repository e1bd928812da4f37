"""The life of every record: each step is taken once, in order, and counted where back-pressure and commits need it."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Sequence

from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.offsets import OffsetTracker, Source
from penstock.worker.requests.record import KafkaRecord, PendingRecord, RecordState
from penstock.worker.requests.request import PendingRequest

_RECEIVED = (RecordState.RECEIVED,)
_ADMITTED = (RecordState.ADMITTED,)
_UNANSWERED = (RecordState.ADMITTED, RecordState.QUEUED)
_ANSWERED = (RecordState.ANSWERED,)


class RecordLedger:
    """Moves records through their states. Called on the worker's event loop only.

        RECEIVED ──▶ ADMITTED ──▶ QUEUED ──▶ ANSWERED ──▶ ACKNOWLEDGED ──▶ committed, with its partition's prefix
            │            └──── rejected ────────▲
            └──▶ RELEASED

    A step that does not follow from the record's state, such as a second answer, raises RuntimeError.
    """

    def __init__(self, backpressure: Backpressure, offsets: OffsetTracker, bulk_topic: str) -> None:
        self._backpressure = backpressure
        self._offsets = offsets
        self._bulk_topic = bulk_topic
        self._all_finished = asyncio.Event()
        self._all_finished.set()

    @property
    def num_unfinished(self) -> int:
        """Records admitted and not acknowledged, of the partitions that this worker has."""
        return self._offsets.num_unfinished

    def receive(self, originals: Sequence[KafkaRecord]) -> list[PendingRecord]:
        """Records of one topic were polled."""
        bulk_topic = originals[0].topic == self._bulk_topic
        num_bytes = sum([len(original.value or b"") for original in originals])
        self._backpressure.add_records(len(originals), num_bytes, bulk=bulk_topic)
        return [PendingRecord(original, bulk_topic) for original in originals]

    def release(self, records: Iterable[PendingRecord]) -> None:
        """The worker gives these up before validation. The partition's next owner reads them again."""
        for record in records:
            _advance(record, _RECEIVED, RecordState.RELEASED)
            self._remove(record)

    def admit(self, records: Iterable[PendingRecord]) -> None:
        """From here on this worker has to answer these. Called in the order of each partition."""
        for record in records:
            _advance(record, _RECEIVED, RecordState.ADMITTED)
            original = record.original
            self._offsets.start((original.topic, original.partition), original.offset)
        if self._offsets.num_unfinished:
            self._all_finished.clear()

    def queue(self, requests: Collection[PendingRequest]) -> None:
        """These requests were prepared: their sequences wait for results."""
        for request in requests:
            record = request.record
            _advance(record, _ADMITTED, RecordState.QUEUED)
            record.num_sequences = len(request.results)
            self._backpressure.add_sequences(record.num_sequences, bulk=record.bulk_topic)

    def answer(self, record: PendingRecord) -> None:
        """The record's answer goes to the outbox. Called once a record, before it does."""
        _advance(record, _UNANSWERED, RecordState.ANSWERED)
        self._backpressure.add_sequences(-record.num_sequences, bulk=record.bulk_topic)

    def acknowledge(self, record: PendingRecord) -> None:
        """The broker has all that the record is owed: its offset is finished."""
        _advance(record, _ANSWERED, RecordState.ACKNOWLEDGED)
        self._remove(record)
        original = record.original
        self._offsets.finish((original.topic, original.partition), original.offset)
        self._note_if_finished()

    def forget(self, sources: set[Source]) -> None:
        """These partitions were revoked: their offsets are no longer this worker's to commit."""
        self._offsets.forget(sources)
        self._note_if_finished()

    async def wait_until_finished(self, timeout_s: float) -> bool:
        """Wait until every admitted record is acknowledged; false after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_finished.wait(), timeout_s)
        return self._all_finished.is_set()

    def _remove(self, record: PendingRecord) -> None:
        self._backpressure.add_records(-1, -len(record.original.value or b""), bulk=record.bulk_topic)

    def _note_if_finished(self) -> None:
        if self._offsets.num_unfinished == 0:
            self._all_finished.set()


def _advance(record: PendingRecord, expected: tuple[RecordState, ...], state: RecordState) -> None:
    if record.state not in expected:
        raise RuntimeError(f"A record that is {record.state.value} cannot become {state.value}. This is a bug.")
    record.state = state
