"""Back-pressure: how much the worker holds in memory, whether that is enough, and how much of it may be bulk."""

from collections.abc import Iterable

from penstock.worker.inflight import KafkaRecord

_ROWS_A_RECORD = 8  # of `max_in_flight`: 65,536 rows by default, about half a kilobyte each while they wait
_REQUEST_BYTES = 256 * 1024 * 1024  # many large records pause the intake before small ones do
_REPLY_BYTES = 64 * 1024 * 1024  # some 40,000 vectors of MiniLM: what a broker takes in well under a second, or is away
_BULK_SHARE = 0.5  # of each bound: however much comes by the bulk topic, the rest is left to online requests
_ROOM = 0.75  # a quarter must be free before fetching goes on, so that it does not flutter


class Held:
    """Counts, changed by those who take and let go. Called on the worker's event loop only."""

    def __init__(self, max_records: int, bulk_topic: str) -> None:
        self._bulk_topic = bulk_topic
        self._all = _Counts(max_records, share=1.0)
        self._bulk = _Counts(max_records, share=_BULK_SHARE)
        self.reply_bytes = 0  # of answers that the broker has not acknowledged

    @property
    def records(self) -> int:
        """How many records were polled and are not finished."""
        return self._all.records

    def take(self, record: KafkaRecord) -> None:
        """A record was polled."""
        for counts in self._of(record):
            counts.records += 1
            counts.request_bytes += len(record.value or b"")

    def let_go(self, record: KafkaRecord) -> None:
        """A record is finished, or left to its partition's next owner."""
        for counts in self._of(record):
            counts.records -= 1
            counts.request_bytes -= len(record.value or b"")

    def add_rows(self, record: KafkaRecord, num_rows: int) -> None:
        """A record was admitted: so many sequences wait for its answer or its error."""
        for counts in self._of(record):
            counts.rows += num_rows

    def drop_rows(self, record: KafkaRecord, num_rows: int) -> None:
        """The record of these sequences has its answer or its error."""
        for counts in self._of(record):
            counts.rows -= num_rows

    def can_admit(self, *, bulk: bool = False) -> bool:
        """Whether what was polled, of the bulk topic or else, may be made into rows.

        Looks only at what ends without further admission.
        """
        return all(counts.rows_used(self.reply_bytes) < 1 for counts in self._that_bound(bulk))

    def is_full(self, *, bulk: bool = False) -> bool:
        """Time to stop polling: the bulk topic, or everything."""
        return any(counts.used(self.reply_bytes) >= 1 for counts in self._that_bound(bulk))

    def has_room(self, *, bulk: bool = False) -> bool:
        """Time to go on."""
        return all(counts.used(self.reply_bytes) < _ROOM for counts in self._that_bound(bulk))

    def _of(self, record: KafkaRecord) -> "Iterable[_Counts]":
        return (self._all, self._bulk) if record.topic == self._bulk_topic else (self._all,)

    def _that_bound(self, bulk: bool) -> "Iterable[_Counts]":
        return (self._all, self._bulk) if bulk else (self._all,)


class _Counts:
    """What is held of all records, or of those of the bulk topic, beside their share of the bounds."""

    def __init__(self, max_records: int, share: float) -> None:
        self._max_records = max_records * share
        self._share = share
        self.records = 0  # polled and not finished
        self.request_bytes = 0  # of those records' values
        self.rows = 0  # sequences admitted whose record has neither its answer nor its error yet

    def rows_used(self, reply_bytes: int) -> float:
        """Of the bounds on what is being answered, the share that is used of the nearest."""
        return max(self.rows / (self._max_records * _ROWS_A_RECORD), reply_bytes / (_REPLY_BYTES * self._share))

    def used(self, reply_bytes: int) -> float:
        """Of all bounds, the share that is used of the nearest."""
        return max(
            self.records / self._max_records,
            self.request_bytes / (_REQUEST_BYTES * self._share),
            self.rows_used(reply_bytes),
        )
