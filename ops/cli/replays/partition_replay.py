"""The records of a partition that a replay sends, and when, so that no key ends with a result older than its newest."""

from collections import Counter, deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

_HASH_BYTES = 16  # two keys of any number of records do not share one


class InputRecord(Protocol):
    """The part of aiokafka's ConsumerRecord that a replay uses."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class _Round(NamedTuple):
    """Records that were sent together."""

    end: int  # offset behind them in the topic of replays
    sent_s: float
    num_records: int
    keys: Sequence[bytes]


class _Newer(NamedTuple):
    record: InputRecord
    due_s: float


class PartitionReplay:
    """Pure: the caller reads and sends, and `now` is an argument. It keeps some 150 bytes for each key.

    Only the newest record of a key is sent. A worker may enrich one that comes later before that: the older result
    would then be the last one of the key. So what comes for a key whose record is on its way is noted, and sent behind
    it, unless yet another one comes first, which the worker enriches after both.

    The caller looks again and again, in this order: it reads what the group has finished, then where the input ends,
    and calls `follow` for all up to there, `finish`, and `due`.
    """

    def __init__(self, first: int = 0, last: int | None = None) -> None:
        """`first` and `last`: offsets of the records to be sent."""
        self._first, self._last = first, last
        self._newest: dict[bytes, int] = {}  # offset by key
        self._sent_before: dict[bytes, int] = {}  # by an interrupted run
        self._keyless_sent_before = -1
        self._num_keyless = 0
        self._rounds: deque[_Round] = deque()
        self._open: list[bytes] = []
        self._num_open = 0
        self._on_way: Counter[bytes] = Counter()
        self._newer: dict[bytes, InputRecord] = {}  # of keys that are on their way: the newest that came meanwhile
        self._settling: dict[bytes, _Newer] = {}  # of keys whose record has been enriched

    def survey(self, record: InputRecord) -> None:
        """All records from the first on, in their order, before any is sent."""
        if record.key is not None:
            self._newest[_hashed(record.key)] = record.offset
        elif self.is_wanted(record):
            self._num_keyless += 1

    def count_wanted(self) -> int:
        """Number of records that are to be sent, by the survey."""
        return self._num_keyless + sum([self._is_missing(hashed, offset) for hashed, offset in self._newest.items()])

    def note_sent(self, key: bytes | None, offset: int, at: int, now: float) -> None:
        """A copy of this record is in the topic of replays already, at offset `at`. Called before the survey."""
        if key is None:
            self._keyless_sent_before = max(self._keyless_sent_before, offset)
            return
        self._sent_before[_hashed(key)] = offset
        self._rounds.append(_Round(at + 1, now, 0, (_hashed(key),)))
        self._on_way[_hashed(key)] += 1

    def is_wanted(self, record: InputRecord) -> bool:
        """Whether a record is to be sent: it is in the range, the newest of its key, and was not sent before."""
        if record.key is None:
            return self._is_in_range(record.offset) and record.offset > self._keyless_sent_before
        hashed = _hashed(record.key)
        return self._newest.get(hashed) == record.offset and self._is_missing(hashed, record.offset)

    def _is_missing(self, hashed: bytes, newest: int) -> bool:
        """Behind what an interrupted run has sent of a key the newest is sent in any case: it may have come first."""
        before = self._sent_before.get(hashed)
        return self._is_in_range(newest) if before is None else newest > before

    def send(self, record: InputRecord) -> None:
        """This record is sent now."""
        self._num_open += 1
        if record.key is not None:
            self._open.append(_hashed(record.key))
            self._on_way[_hashed(record.key)] += 1

    def seal(self, end: int, now: float) -> None:
        """All that was sent since the last call is acknowledged, and before offset `end` of the topic of replays."""
        if self._num_open:
            self._rounds.append(_Round(end, now, self._num_open, self._open))
            self._open, self._num_open = [], 0

    def follow(self, record: InputRecord) -> None:
        """A record that came after the survey, in the order of its partition."""
        if record.key is None:
            return
        hashed = _hashed(record.key)
        self._newest[hashed] = record.offset
        if hashed in self._on_way:
            self._newer[hashed] = record
        else:
            self._settling.pop(hashed, None)  # it came after what was on its way had been enriched

    def finish(self, committed: int, now: float) -> int:
        """The group has finished all before this offset of the topic of replays. Returns how many records of ours."""
        num_records = 0
        while self._rounds and self._rounds[0].end <= committed:
            done = self._rounds.popleft()
            num_records += done.num_records
            for hashed in done.keys:
                self._arrive(hashed, 2 * now - done.sent_s)
        return num_records

    def _arrive(self, hashed: bytes, due_s: float) -> None:
        """A record of a key was enriched. Newer ones are waited for as long as it took: they may come that often."""
        self._on_way[hashed] -= 1
        if not self._on_way[hashed]:
            del self._on_way[hashed]
            if hashed in self._newer:
                self._settling[hashed] = _Newer(self._newer.pop(hashed), due_s)

    def due(self, now: float) -> Sequence[InputRecord]:
        """Newer records that are to be sent now."""
        found = [hashed for hashed, newer in self._settling.items() if newer.due_s <= now]
        return [self._settling.pop(hashed).record for hashed in found]

    def _is_in_range(self, offset: int) -> bool:
        return self._first <= offset and (self._last is None or offset <= self._last)

    @property
    def num_on_way(self) -> int:
        """Records that were sent and are not finished."""
        return self._num_open + sum(one.num_records for one in self._rounds)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way, and nothing is to follow."""
        return not (self._rounds or self._settling or self._num_open)


def _hashed(key: bytes) -> bytes:
    return blake2b(key, digest_size=_HASH_BYTES).digest()
