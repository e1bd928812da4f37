"""Offsets that may be committed: each partition's contiguous finished prefix, and nothing beyond it."""

from collections import deque
from collections.abc import Iterable, Sequence

Source = tuple[str, int]  # topic and partition; equal to aiokafka's TopicPartition


class OffsetTracker:
    """Offsets between `start` and `finish`. Pure bookkeeping; called on the worker's event loop only.

    `start` is called in the order of the partition, `finish` in any order, when the answer is acknowledged. After
    `forget` a record is read again, by this worker or another; its first reading may still finish here, without effect.
    """

    def __init__(self) -> None:
        self._started: dict[Source, deque[int]] = {}
        self._finished: dict[Source, set[int]] = {}
        self._committable: dict[Source, int] = {}
        self._given_up: dict[Source, int] = {}
        self._num_unfinished = 0

    def start(self, source: Source, offsets: Sequence[int]) -> None:
        """Records were admitted; their offsets increase."""
        started = self._started.setdefault(source, deque())
        if started and offsets[0] <= started[-1]:
            # The topic was created again or the group's offset was reset: earlier offsets mean nothing now.
            self.forget({source})
            started = self._started.setdefault(source, deque())
        started.extend(offsets)
        self._num_unfinished += len(offsets)

    def finish(self, source: Source, offsets: Iterable[int]) -> None:
        """The answers of these records are acknowledged."""
        started = self._started.get(source)
        if not started:
            return
        first, last = started[0], started[-1]
        finished = self._finished.setdefault(source, set())
        num_before = len(finished)
        finished.update([offset for offset in offsets if first <= offset <= last])
        self._num_unfinished -= len(finished) - num_before
        while started and started[0] in finished:
            offset = started.popleft()
            finished.remove(offset)
            self._committable[source] = offset + 1

    def give_up(self, source: Source, num_records: int) -> None:
        """Started records will not finish here: nothing beyond them is committed, until `forget`."""
        self._given_up[source] = self._given_up.get(source, 0) + num_records
        self._num_unfinished -= num_records

    def take_committable(self) -> dict[Source, int]:
        """The next offset to read of each partition whose prefix grew since the last call."""
        committable, self._committable = self._committable, {}
        return committable

    def put_back(self, offsets: dict[Source, int]) -> None:
        """A commit failed: offer these again, unless there is a later one or the partition was revoked."""
        for source, offset in offsets.items():
            if source in self._started and source not in self._committable:
                self._committable[source] = offset

    def forget(self, sources: set[Source]) -> None:
        """These partitions were revoked."""
        for source in sources:
            started = self._started.pop(source, ())
            finished = self._finished.pop(source, ())
            self._num_unfinished -= len(started) - len(finished) - self._given_up.pop(source, 0)
            self._committable.pop(source, None)

    @property
    def num_unfinished(self) -> int:
        """Records started and neither finished nor given up, over all partitions."""
        return self._num_unfinished
