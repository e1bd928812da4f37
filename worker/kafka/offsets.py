"""Which offsets may be committed: per partition, the contiguous finished prefix, and nothing beyond it."""

from collections import deque

Source = tuple[str, int]  # topic and partition; equal to the TopicPartition that aiokafka calls it


class OffsetTracker:
    """Offsets between `start` and `finish`. Pure bookkeeping; called on the worker's event loop only.

    `start` is called for every record in the order of its partition, `finish` once its answer is acknowledged, in any
    order. A record that will be read again (after `forget`, by another worker or by this one) may still finish here,
    unheeded.
    """

    def __init__(self) -> None:
        self._started: dict[Source, deque[int]] = {}
        self._finished: dict[Source, set[int]] = {}
        self._committable: dict[Source, int] = {}
        self._num_unfinished = 0

    def start(self, source: Source, offset: int) -> None:
        """A record was taken from its partition."""
        started = self._started.setdefault(source, deque())
        if started and offset <= started[-1]:
            # The topic was made anew, or the group's offset reset: what was known of the partition is void.
            self.forget({source})
            started = self._started.setdefault(source, deque())
        started.append(offset)
        self._num_unfinished += 1

    def finish(self, source: Source, offset: int) -> None:
        """A record's answer is acknowledged, or there is none to give."""
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
        """Next offset to read for each partition whose prefix grew since the last call."""
        committable, self._committable = self._committable, {}
        return committable

    def put_back(self, offsets: dict[Source, int]) -> None:
        """A commit failed: offer these again, unless a later one is there already or the partition is gone."""
        for source, offset in offsets.items():
            if source in self._started and source not in self._committable:
                self._committable[source] = offset

    def forget(self, sources: set[Source]) -> None:
        """These partitions belong to another worker now."""
        for source in sources:
            started = self._started.pop(source, ())
            finished = self._finished.pop(source, ())
            self._num_unfinished -= len(started) - len(finished)
            self._committable.pop(source, None)

    @property
    def num_unfinished(self) -> int:
        """Records started and not finished, over all partitions."""
        return self._num_unfinished
