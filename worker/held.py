"""Back-pressure: how much the worker holds in memory, and whether that is enough."""

from penstock.worker.inflight import KafkaRecord

_ROWS_A_RECORD = 8  # of `max_in_flight`: 65,536 rows by default, about half a kilobyte each while they wait
_REQUEST_BYTES = 256 * 1024 * 1024  # many large records pause the intake before small ones do
_REPLY_BYTES = 64 * 1024 * 1024  # some 40,000 vectors of MiniLM: what a broker takes in well under a second, or is away


class Held:
    """Counts, changed by those who take and let go. Called on the worker's event loop only."""

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        self.records = 0  # polled and not finished
        self.request_bytes = 0  # of those records' values
        self.rows = 0  # sequences admitted whose record has neither its answer nor its error yet
        self.reply_bytes = 0  # of answers that the broker has not acknowledged

    def take(self, record: KafkaRecord) -> None:
        """A record was polled."""
        self.records += 1
        self.request_bytes += len(record.value or b"")

    def let_go(self, record: KafkaRecord) -> None:
        """A record is finished, or left to its partition's next owner."""
        self.records -= 1
        self.request_bytes -= len(record.value or b"")

    @property
    def can_admit(self) -> bool:
        """Whether what was polled may be made into rows. Looks only at what ends without further admission."""
        return self.rows < self._max_records * _ROWS_A_RECORD and self.reply_bytes < _REPLY_BYTES

    @property
    def is_full(self) -> bool:
        """Time to stop polling."""
        return self._fullest >= 1

    @property
    def has_room(self) -> bool:
        """Time to go on: a quarter is free, so that fetching does not flutter."""
        return self._fullest < 0.75

    @property
    def _fullest(self) -> float:
        """The share that is used of what is nearest its bound."""
        return max(
            self.records / self._max_records,
            self.rows / (self._max_records * _ROWS_A_RECORD),
            self.request_bytes / _REQUEST_BYTES,
            self.reply_bytes / _REPLY_BYTES,
        )
