"""Records between the poll and their admission: two queues, so that online ones never wait behind bulk."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.worker.requests.record import KafkaRecord


@dataclass(frozen=True, slots=True)
class _Slice:
    """How much is admitted at a time."""

    max_records: int
    max_bytes: int  # of values; a larger record is a slice of its own


# The engine starts on the first records while the last are still being decoded: 256 small ones, or as few as hold some
# 32,000 texts of one letter. Of bulk so few that what comes online meanwhile does not notice.
_ONLINE = _Slice(256, 64 * 1024)
_BULK = _Slice(32, 16 * 1024)


class Polled:
    """What was polled of the request topic and of the bulk topic, each in its order."""

    def __init__(self, bulk_topic: str) -> None:
        self._bulk_topic = bulk_topic
        self._online: deque[KafkaRecord] = deque()
        self._bulk: deque[KafkaRecord] = deque()

    def put(self, records: Sequence[KafkaRecord]) -> None:
        """Add records of one partition, in their order."""
        (self._bulk if records[0].topic == self._bulk_topic else self._online).extend(records)

    def waits(self, *, bulk: bool) -> bool:
        """Whether there are records of that topic."""
        return bool(self._bulk if bulk else self._online)

    def take_slice(self, *, bulk: bool) -> list[KafkaRecord]:
        """Some of the oldest records of that topic, at least one if there are any."""
        records, size = (self._bulk, _BULK) if bulk else (self._online, _ONLINE)
        taken: list[KafkaRecord] = []
        num_bytes = 0
        while records and len(taken) < size.max_records and num_bytes < size.max_bytes:
            record = records.popleft()
            num_bytes += len(record.value or b"")
            taken.append(record)
        return taken

    def take_all(self) -> list[KafkaRecord]:
        """Everything."""
        records = [*self._online, *self._bulk]
        self._online.clear()
        self._bulk.clear()
        return records
