"""Back-pressure: how much the worker holds in memory, whether that is enough, and how much of it may be bulk."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.worker.requests.record import KafkaRecord

_ROWS_A_RECORD = 8  # of `max_in_flight`: 65,536 rows by default, about half a kilobyte each while they wait
_REQUEST_BYTES = 256 * 1024 * 1024  # many large records pause the intake before small ones do
_REPLY_BYTES = 64 * 1024 * 1024  # some 40,000 vectors of MiniLM: what a broker takes in well under a second, or is away
_BULK_SHARE = 0.5  # of each bound: however much comes by the bulk topic, the rest is left to online requests
_ROOM = 0.75  # a quarter must be free before fetching goes on, so that it does not flutter


@dataclass(slots=True)
class _Counts:
    """What is held of one topic's records."""

    records: int = 0  # polled and not finished
    request_bytes: int = 0  # of those records' values
    rows: int = 0  # sequences admitted whose record has neither its answer nor its error yet


class Held:
    """Counts, changed by those who take and let go. Called on the worker's event loop only.

    A fetch of small records can bring more than there is room for. What bulk holds beyond its share does not count
    against online requests: they would be kept out by it.
    """

    def __init__(self, max_records: int, bulk_topic: str) -> None:
        self._max_records = max_records
        self._bulk_topic = bulk_topic
        self._online = _Counts()
        self._bulk = _Counts()
        self.reply_bytes = 0  # of answers that the broker has not acknowledged

    @property
    def records(self) -> int:
        """How many records were polled and are not finished."""
        return self._online.records + self._bulk.records

    def take(self, record: KafkaRecord) -> None:
        """A record was polled."""
        counts = self._of(record)
        counts.records += 1
        counts.request_bytes += len(record.value or b"")

    def let_go(self, record: KafkaRecord) -> None:
        """A record is finished, or left to its partition's next owner."""
        counts = self._of(record)
        counts.records -= 1
        counts.request_bytes -= len(record.value or b"")

    def add_rows(self, record: KafkaRecord, num_rows: int) -> None:
        """A record was admitted: so many sequences wait for its answer or its error."""
        self._of(record).rows += num_rows

    def drop_rows(self, record: KafkaRecord, num_rows: int) -> None:
        """The record of these sequences has its answer or its error."""
        self._of(record).rows -= num_rows

    def can_admit(self, *, bulk: bool = False) -> bool:
        """Whether what was polled, of the bulk topic or of the other, may be made into rows.

        Looks only at what ends without further admission.
        """
        return max(self._rows_and_replies(bulk)) < 1

    def is_full(self, *, bulk: bool = False) -> bool:
        """Time to stop polling the bulk topic, or the other."""
        return self._used(bulk) >= 1

    def has_room(self, *, bulk: bool = False) -> bool:
        """Time to go on."""
        return self._used(bulk) < _ROOM

    def _used(self, bulk: bool) -> float:
        """Of all bounds, the share that is used of the nearest."""
        online, other = self._online, self._bulk
        return max(
            _share(online.records, other.records, self._max_records, bulk),
            _share(online.request_bytes, other.request_bytes, _REQUEST_BYTES, bulk),
            *self._rows_and_replies(bulk),
        )

    def _rows_and_replies(self, bulk: bool) -> Iterable[float]:
        yield _share(self._online.rows, self._bulk.rows, self._max_records * _ROWS_A_RECORD, bulk)
        yield self.reply_bytes / (_REPLY_BYTES * (_BULK_SHARE if bulk else 1))

    def _of(self, record: KafkaRecord) -> _Counts:
        return self._bulk if record.topic == self._bulk_topic else self._online


def _share(online: int, bulk: int, bound: int, for_bulk: bool) -> float:
    """How much of a bound is used, as bulk or as online records see it."""
    bulk_bound = bound * _BULK_SHARE
    if for_bulk:
        return max(bulk / bulk_bound, (online + bulk) / bound)
    return (online + min(bulk, bulk_bound)) / bound
