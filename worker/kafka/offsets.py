"""Offsets that may be committed: each partition's contiguous finished prefix, and nothing beyond it."""

from collections import deque

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
        self._num_unfinished = 0

    def start(self, source: Source, offset: int) -> None:
        """A record was admitted."""
        started = self._started.setdefault(source, deque())
        if started and offset <= started[-1]:
            # The topic was created again or the group's offset was reset: earlier offsets mean nothing now.
            self.forget({source})
            started = self._started.setdefault(source, deque())
        started.append(offset)
        self._num_unfinished += 1

    def finish(self, source: Source, offset: int) -> None:
        """A record's answer is acknowledged."""
        started = self._started.get(source)
        if not started or not started[0] <= offset <= started[-1]:
            return
        finished = self._finished.setdefault(source, set())
        if offset in finished:
            return
        finished.add(offset)
        self._num_unfinished -= 1
        while started and started[0] in finished:
            first = started.popleft()
            finished.remove(first)
            self._committable[source] = first + 1

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
            self._num_unfinished -= len(started) - len(finished)
            self._committable.pop(source, None)

    @property
    def num_unfinished(self) -> int:
        """Records started and not finished, over all partitions."""
        return self._num_unfinished
