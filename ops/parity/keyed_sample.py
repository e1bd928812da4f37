"""A bounded sample of answers, of the keys with the smallest hashes, so that two samples have the same keys."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from penstock.ops.parity.recorded_answers import NotComparable, RecordedAnswer, Unanswered

_HASH_BYTES = 16  # two keys of any number of records do not share one


@dataclass(frozen=True, slots=True)
class SampledRecord:
    """The latest record of a key."""

    place: str  # for a sentence: `orders.enriched-3-17`, or `out.jsonl, line 7`
    answer: RecordedAnswer | Unanswered | NotComparable
    inputs: bytes = b""  # digest of the record without its answer; empty: there is nothing beside it
    source: bytes = b""  # position of the record that was answered; empty: not known
    model: str = ""
    revision: str = ""
    partition: int = 0
    timestamp_ms: int = 0

    def is_of_input(self, other: "SampledRecord") -> bool:
        """Whether both answer one input: by what stands beside the answer, else by its position if both have it."""
        if self.inputs or other.inputs or not (self.source and other.source):
            return self.inputs == other.inputs
        return self.source == other.source


class KeyedSample:
    """The records of the keys with the smallest hashes, of a topic or a file that is offered record by record."""

    def __init__(self, name: str, size: int) -> None:
        """`name`: the topic or file. `size`: most keys."""
        self.name = name
        self.num_records = 0  # that were offered
        self._size = size
        self._records: dict[int, SampledRecord] = {}
        self._largest: list[int] = []  # a heap of the negative hashes

    def offer(self, key: bytes, read: Callable[[], SampledRecord]) -> None:
        """Take a record if its key is in the sample; of a key with several, the latest. `read` is called only then."""
        self.num_records += 1
        hashed = int.from_bytes(blake2b(key, digest_size=_HASH_BYTES).digest(), "big")
        if hashed in self._records:
            if _is_later(record := read(), self._records[hashed]):
                self._records[hashed] = record
        elif self.reach is None:
            heapq.heappush(self._largest, -hashed)
            self._records[hashed] = read()
        elif hashed < self.reach:
            del self._records[-heapq.heappushpop(self._largest, -hashed)]
            self._records[hashed] = read()

    @property
    def reach(self) -> int | None:
        """The largest hash in the sample, up to which it has all keys; None if it has all keys there are."""
        return -self._largest[0] if len(self._largest) == self._size else None

    def within(self, reach: int | None) -> dict[int, SampledRecord]:
        """The records whose hash is at most `reach`."""
        return {hashed: one for hashed, one in self._records.items() if reach is None or hashed <= reach}


def common_reach(first: KeyedSample, second: KeyedSample) -> int | None:
    """The largest hash up to which both samples have all their keys."""
    return min([one.reach for one in (first, second) if one.reach is not None], default=None)


def _is_later(record: SampledRecord, before: SampledRecord) -> bool:
    """Offers of one partition come in its order. A key is in two partitions if some were added."""
    return record.partition == before.partition or record.timestamp_ms >= before.timestamp_ms
