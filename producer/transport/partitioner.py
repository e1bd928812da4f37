"""Choice of the partition of each request."""

from penstock.producer.wire.headers import partition_for

# A batch of Kafka costs its client, its broker and its worker as much as some records. These bounds fill batches, and
# yet spread a client's requests over all members of the group within milliseconds.
_BATCH_BYTES = 8 * 1024  # some 30 requests of one short text, or 2 that hold 64 of them
_BATCH_S = 0.001
_RECORD_BYTES = 150  # of a record beside its value: headers, key, framing


class StickyPartitioner:
    """Puts requests that follow one another closely into one partition (KIP-794).

    The first request of each batch decides, by its key. Equal requests that come alone therefore meet in one worker,
    which computes them once.
    """

    def __init__(self, num_partitions: int) -> None:
        self._num_partitions = num_partitions
        self._partition = 0
        self._bytes_left = 0
        self._until_s = 0.0

    def resize(self, num_partitions: int) -> None:
        """The topic has so many partitions, from the next batch on; 0: it is not known how many."""
        self._num_partitions = num_partitions or self._num_partitions

    def partition(self, key: bytes, num_bytes: int, now: float) -> int:
        """The partition of a request whose value has `num_bytes`. `now` is in seconds, of any clock."""
        if self._bytes_left <= 0 or not 0 <= self._until_s - now <= _BATCH_S:  # clocks may be set back
            self._partition = partition_for(key, self._num_partitions)
            self._bytes_left = _BATCH_BYTES
            self._until_s = now + _BATCH_S
        self._bytes_left -= num_bytes + _RECORD_BYTES
        return self._partition
