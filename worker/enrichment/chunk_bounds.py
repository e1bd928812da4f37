"""Bounds of the number of chunks that a key may have in an output topic, which say how many deletes a record needs.

The records of chunks are `key#0`, `key#1` and so on. To delete those that a key no longer has, a worker must know how
many there may be, also after a restart or when the partition comes from another worker. An upper bound suffices, as the
delete of a chunk that was never there changes nothing. So keys share buckets, and a bucket has one bound, which only
grows: a power of two. The bounds are records of a compacted topic of one partition, with a key for each bucket and
bound. Whatever is written there in whatever order, by whichever worker, the highest bound of a bucket is kept.

- **Right.** A bound is acknowledged before the first chunk beyond the last one is sent, with either delivery. A worker
  that is killed between the two leaves a bound that is too high. A partition's new owner reads the topic to its end
  after the partition was assigned. Copies of a replay are of another topic, whose owner may be another worker: with
  them it is read before each take. It need not be in a transaction, nor belong to a partition of the input topic.
- **Bounded.** 262,144 buckets of 12 bounds at most: some ten megabytes to be read once, and then only what is new.
- **Its price** are deletes of chunks that were never there. A text that has as many chunks as ever has at most as many
  deletes as chunks; a key that shares its bucket with a longer text has more.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.producer.wire.codec import MAX_SEQUENCES

NUM_BUCKETS = 1 << 18  # a part of the format of the topic
_RECORD = re.compile(rb"([0-9]{1,9}) ([0-9]{1,9})")
_MOST = 1 << (MAX_SEQUENCES - 1).bit_length()  # chunks of a record
_NO_BOUND = 1  # of a bucket without a record: chunk 0 is written or deleted in any case


class BoundsLog(Protocol):
    """The keys of a compacted topic that only grows."""

    async def read_on(self) -> Sequence[bytes]:
        """The keys between the last call and the end of the topic at this one. Waits for a broker."""

    async def append(self, keys: Sequence[bytes]) -> None:
        """Write keys. Returns when all are acknowledged. Waits for a broker, and for a permission that is missing."""


class ChunkBounds:
    """The bounds of one output topic. Called on the event loop, by one task."""

    def __init__(self, log: BoundsLog, *, is_shared: bool = False) -> None:
        """`is_shared`: other workers may write chunks of the same keys meanwhile, as with replays."""
        self._log = log
        self._is_shared = is_shared
        self._bounds: dict[int, int] = {}  # by bucket
        self._epoch = 0  # of the latest assignment for which the topic was read

    async def read(self, epoch: int) -> None:
        """Learn what others have written. Unless it is shared, once in an assignment (`PendingRecord.epoch`)."""
        if self._is_shared or epoch > self._epoch:
            self._raise(filter(None, map(_parsed, await self._log.read_on())))
            self._epoch = epoch

    async def take(self, counts: Iterable[tuple[bytes, int]]) -> list[int]:
        """Keys will have so many chunks, one after another. Returns what each may have had before: no more than that.

        Called after `read`. Returns when the bounds that this needs are acknowledged: the chunks may be sent.
        """
        before: list[int] = []
        raised: dict[int, int] = {}
        for key, count in counts:
            bucket = zlib.crc32(key) % NUM_BUCKETS
            bound = raised.get(bucket) or self._bounds.get(bucket, _NO_BOUND)
            before.append(bound)
            if count > bound:
                raised[bucket] = 1 << (count - 1).bit_length()
        if raised:
            await self._log.append([b"%d %d" % one for one in raised.items()])
            self._raise(raised.items())
        return before

    def _raise(self, bounds: Iterable[tuple[int, int]]) -> None:
        for bucket, bound in bounds:
            self._bounds[bucket] = max(bound, self._bounds.get(bucket, 0))


def _parsed(key: bytes) -> tuple[int, int] | None:
    """A bucket and its bound; None: no worker has written it, and so it bounds no chunks of one."""
    found = _RECORD.fullmatch(key)
    if found is None:
        return None
    bucket, bound = map(int, found.groups())
    return (bucket, bound) if bucket < NUM_BUCKETS and 1 <= bound <= _MOST else None
