"""Back-pressure: what the worker holds in memory, its bounds, and the share of each that bulk records may take."""

import time
from collections.abc import Callable

from penstock.worker.kafka.reply_destinations import Footprint, ReplyDestinations

_SEQUENCES_PER_RECORD = 8  # of `max_in_flight`: 65,536 sequences by default, about half a kilobyte each in the queue
_REQUEST_BYTES = 256 * 1024 * 1024  # many large records pause fetching before small ones do
_REPLY_BYTES = 64 * 1024 * 1024  # some 40,000 vectors of MiniLM: a broker that is there takes them in under a second
_BULK_SHARE = 0.5  # of each bound: the rest stays free for online records
_NONE = Footprint()
_ROOM = 0.75  # fetching goes on when a quarter of each bound is free, so that it does not alternate at the bound


class Backpressure:
    """Counts what is held, and says when to fetch. Called on the worker's event loop only.

    A fetch of small records can exceed the bounds. Bulk beyond its share does not count against online records, or a
    large fetch of bulk records would stop them.
    """

    def __init__(
        self, max_records: int, clock: Callable[[], float] = time.monotonic, *, can_stall: bool = True
    ) -> None:
        """`can_stall`: see `ReplyDestinations`."""
        self._max_records = max_records
        bounds = Footprint(max_records, _REQUEST_BYTES, _REPLY_BYTES)
        self.destinations = ReplyDestinations(bounds, clock, can_stall=can_stall)
        # By whether of the bulk topic: polled and not finished; queued, of records without an answer.
        self._held = {False: Footprint(), True: Footprint()}
        self._num_sequences = {False: 0, True: 0}
        self._reply_bytes = 0

    @property
    def num_records(self) -> int:
        """Records fetched and not finished, of both topics."""
        return self._held[False].records + self._held[True].records

    @property
    def reply_bytes(self) -> int:
        """Bytes of answers that the broker has not acknowledged."""
        return self._reply_bytes

    def add_records(self, num_records: int, num_bytes: int, *, bulk: bool) -> None:
        """Count records that were fetched or, with negative numbers, finished or released."""
        self._held[bulk].add(Footprint(num_records, num_bytes))

    def add_sequences(self, num_sequences: int, *, bulk: bool) -> None:
        """Count sequences that were queued or, with a negative number, whose record was answered."""
        self._num_sequences[bulk] += num_sequences

    def add_reply_bytes(self, num_bytes: int) -> None:
        """Count answers that were sent or, with a negative number, acknowledged or refused."""
        self._reply_bytes += num_bytes

    def can_admit(self, *, bulk: bool = False) -> bool:
        """Whether records of the fetch buffer may be validated and queued.

        Looks only at sequences and replies, which end without another admission.
        """
        return self._beside_stalled(lambda *stalled: max(self._sequences(bulk), self._replies(bulk, *stalled))) < 1

    def is_full(self, *, bulk: bool = False) -> bool:
        """Whether to pause the topic."""
        return self._used(bulk) >= 1

    def has_room(self, *, bulk: bool = False) -> bool:
        """Whether to resume the topic."""
        return self._used(bulk) < _ROOM

    def _used(self, bulk: bool) -> float:
        """The used share of the bound that is nearest to exhaustion."""
        return self._beside_stalled(
            lambda *stalled: max(self._records(bulk, *stalled), self._sequences(bulk), self._replies(bulk, *stalled))
        )

    def _beside_stalled(self, used: Callable[[Footprint, Footprint], float]) -> float:
        """A used share without the answers to stalled destinations. With them, at most twice the bounds are held."""
        stalled = self.destinations.stalled()
        if not stalled:
            return used(_NONE, _NONE)
        return max(used(stalled.get(False, _NONE), stalled.get(True, _NONE)), used(_NONE, _NONE) - 1)

    def _records(self, bulk: bool, *stalled: Footprint) -> float:
        online, other = self._held[False], self._held[True]
        first, second = stalled
        records = online.records - first.records, other.records - second.records
        sizes = online.request_bytes - first.request_bytes, other.request_bytes - second.request_bytes
        return max(_share(*records, self._max_records, bulk), _share(*sizes, _REQUEST_BYTES, bulk))

    def _sequences(self, bulk: bool) -> float:
        max_sequences = self._max_records * _SEQUENCES_PER_RECORD
        return _share(self._num_sequences[False], self._num_sequences[True], max_sequences, bulk)

    def _replies(self, bulk: bool, *stalled: Footprint) -> float:
        waiting = self._reply_bytes - sum([one.reply_bytes for one in stalled])
        return waiting / (_REPLY_BYTES * (_BULK_SHARE if bulk else 1))


def _share(online: int, bulk: int, bound: int, for_bulk: bool) -> float:
    """The share of a bound that is used, from the view of bulk or of online records."""
    bulk_bound = bound * _BULK_SHARE
    if for_bulk:
        return max(bulk / bulk_bound, (online + bulk) / bound)
    return (online + min(bulk, bulk_bound)) / bound
