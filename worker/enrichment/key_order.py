"""Order of keys: enriched records of one key leave in the order in which their originals came."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.worker.enrichment.output import Output
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.record import PendingRecord

_Key = tuple[Source, int, bytes]  # of one assignment of the partition: offsets may come again in the next


@dataclass(slots=True)
class _Line:
    """Records of one key that have not left, the oldest first."""

    records: deque[PendingRecord] = field(default_factory=deque)
    waiting: dict[int, Output | None] = field(default_factory=dict)  # by offset; None: rejected, nothing is to leave
    is_given_up: bool = False  # one of them was: the partition's next owner enriches it, and those behind it


class KeyOrder:
    """Called on the event loop, with records of routes. Records without a key have no order.

    Batches finish in another order than records come: a short text overtakes a long one, and a result of the cache all
    that are computed. A reader of the output that keeps the last value of each key would then keep an older one.
    """

    def __init__(self) -> None:
        self._lines: dict[_Key, _Line] = {}

    def admit(self, records: Iterable[PendingRecord]) -> None:
        """Records were taken, in the order of each partition."""
        for record in records:
            if (key := _key(record)) is not None:
                line = self._lines.get(key)
                if line is None:
                    line = self._lines[key] = _Line()
                line.records.append(record)

    def finish(
        self, finished: Iterable[tuple[PendingRecord, Output | None]]
    ) -> tuple[list[Output], list[PendingRecord]]:
        """Records have their outputs, or were rejected. Returns outputs that may leave, and records to give up.

        Those of partitions that were revoked meanwhile are to be given up.
        """
        leaving: list[Output] = []
        given_up: list[PendingRecord] = []
        for record, output in finished:
            key = _key(record)
            if key is None:
                leaving += [output] if output is not None else []
                continue
            line = self._lines.get(key)
            if line is None or line.is_given_up:
                given_up += [record] if output is not None else []
                continue
            line.waiting[record.original.offset] = output
            leaving += _first(line)
            if not line.records:
                del self._lines[key]
        return leaving, given_up

    def give_up(self, records: Iterable[PendingRecord]) -> list[PendingRecord]:
        """Records were given up. Returns those that waited for them, which are to be given up too."""
        behind: list[PendingRecord] = []
        for record in records:
            line = None if (key := _key(record)) is None else self._lines.get(key)
            if line is not None:
                line.is_given_up = True
                behind += [output.origin for output in line.waiting.values() if output is not None]
                line.waiting.clear()
        return behind

    def forget(self, sources: set[Source]) -> None:
        """These partitions were revoked."""
        for key in [key for key in self._lines if key[0] in sources]:
            del self._lines[key]


def _first(line: _Line) -> Sequence[Output]:
    """The outputs of the records that no older one is left before."""
    leaving = []
    while line.records and line.records[0].original.offset in line.waiting:
        output = line.waiting.pop(line.records.popleft().original.offset)
        if output is not None:
            leaving.append(output)
    return leaving


def _key(record: PendingRecord) -> _Key | None:
    key = record.original.key
    return None if key is None else (record.source, record.epoch, key)
