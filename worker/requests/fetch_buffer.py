"""The fetch stage: a queue for each class of topics, filled by polls, so that online records never wait behind bulk."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID, KafkaRecord
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import LONG_BYTES, PendingRecord


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The size of what is taken at once."""

    max_records: int
    max_bytes: int  # of values; a larger record is taken alone


_POLL_MS = 200
_PAUSED_POLL_MS = 10  # soon enough to notice that there is room again
# The engine starts on the first records while the last are still being decoded: 256 small ones, or as few as hold some
# 32,000 texts of one letter. Of bulk so few are taken that an online record hardly waits for them.
_ONLINE = _Bounds(256, LONG_BYTES)
_BULK = _Bounds(32, 16 * 1024)


class FetchBuffer:
    """Fetched records of online and of bulk topics, each in its order.

    They enter received and leave admitted or released.

    A revocation releases all of it, so every record here is of a partition that this worker has.
    """

    def __init__(self, ledger: RecordLedger, backpressure: Backpressure) -> None:
        self._ledger = ledger
        self._backpressure = backpressure
        self._records: dict[bool, deque[PendingRecord]] = {False: deque(), True: deque()}  # by whether bulk

    def put(self, originals: Sequence[KafkaRecord], topic_id: bytes = NO_TOPIC_ID) -> None:
        """Add fetched records of one partition, in their order."""
        records = self._ledger.receive(originals, topic_id)
        self._records[records[0].from_bulk_topic].extend(records)

    async def fill(self, consumer: Consumer) -> None:
        """Pause or resume each topic by back-pressure, then poll once: the consumer calls `put` with what it has."""
        held = self._backpressure
        for topic, bulk in consumer.topics.items():
            if held.is_full(bulk=bulk) or (self._records[False] and not bulk):
                consumer.pause(topic)
            elif consumer.is_paused and held.has_room(bulk=bulk) and consumer.assigned.is_set():
                consumer.resume(topic)
        await consumer.poll(_PAUSED_POLL_MS if consumer.is_paused else _POLL_MS)

    def can_take(self, *, bulk: bool) -> bool:
        """Whether records of bulk topics, or of the others, are here, and there is room to process them."""
        return bool(self._records[bulk]) and self._backpressure.can_admit(bulk=bulk)

    def take(self, *, bulk: bool) -> Sequence[PendingRecord]:
        """Admit some of the oldest records of bulk topics, or of the others. Returns those to answer.

        At least one is admitted, if there are any.
        """
        records, bounds = self._records[bulk], _BULK if bulk else _ONLINE
        taken: list[PendingRecord] = []
        num_bytes = 0
        while records and len(taken) < bounds.max_records and num_bytes < bounds.max_bytes:
            if taken and records[0].num_bytes > bounds.max_bytes:
                break
            record = records.popleft()
            num_bytes += record.num_bytes
            taken.append(record)
        return self._ledger.admit(taken)

    def release(self) -> None:
        """Release all records: they are read again from the committed offset."""
        for records in self._records.values():
            self._ledger.release(records)
            records.clear()
