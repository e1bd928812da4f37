"""Fetch sessions (KIP-227): a broker keeps the list of the partitions that it is asked for, and is told changes of it.

A worker has some sixty partitions. At a low rate one of them has a record at a time, and to name all of them in every
request and answer takes more than half as long as everything else that is done for the record.

Within a session a broker puts the partitions in an order of its own: those that had records go to the end. Where an
answer is full, bulk records would come before online ones. So a session is for small answers. It asks for no large
ones, and is left, for requests that name every partition in their order, as soon as an answer is not small.

aiokafka (0.14) has no sessions. To go, it needs them, and a say in the order.
"""

from typing import NamedTuple

Offsets = dict[str, dict[int, int]]  # by topic and partition

MOST_BYTES = 256 * 1024  # of an answer within a session; a larger record still comes, alone
_SMALL_BYTES = 64 * 1024  # of an answer
_FEW = 4  # partitions, which are named sooner than a session is worth one of the thousand that a broker keeps
_SETTLED = 4  # small answers in a row, for the same partitions: a session that is made and left costs more than none
_NOT_FOUND = 70  # an error: the broker has forgotten the session, as one does that was started again
_MAKE, _NONE = 0, -1  # epochs: begin a session; end it, or ask without one
_LAST_EPOCH = 2**31 - 1


class SessionRequest(NamedTuple):
    """The fields of a request about its session."""

    session: int
    epoch: int
    named: Offsets  # in it; for all other partitions of the session it asks for what the last one has asked


class FetchSession:
    """The session with one broker, or none. Requests are made one after another, each when the last one has ended."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = _NONE  # of the last request
        self._asked: Offsets = {}  # by the last request
        self._is_answered = True
        self._num_small = 0  # answers in a row, for the same partitions

    def request(self, offsets: Offsets) -> SessionRequest:
        """Ask for these partitions, from these offsets, and for no other."""
        if not self._is_answered:  # it failed, and the broker may have taken it, or not
            self.leave()
        before, self._asked, self._is_answered = self._asked, offsets, False
        if not _are_same_partitions(before, offsets):
            self._num_small = 0
        if self._num_small < _SETTLED or sum(map(len, offsets.values())) <= _FEW:
            self._epoch = _NONE
        elif self._epoch == _NONE or not self._id:
            self._epoch = _MAKE
        else:
            self._epoch = self._epoch % _LAST_EPOCH + 1
            changed = {topic: _changed(before[topic], asked) for topic, asked in offsets.items()}
            return SessionRequest(self._id, self._epoch, {topic: asked for topic, asked in changed.items() if asked})
        return SessionRequest(self._id, self._epoch, offsets)

    def answered(self, session: int, error: int, num_bytes: int) -> None:
        """The last request has this answer. `error` is that of the whole."""
        self._is_answered = True
        if error:
            self.leave()
        else:
            self._num_small = self._num_small + 1 if num_bytes <= _SMALL_BYTES else 0
        if not error or error == _NOT_FOUND:
            self._id = 0 if error else session

    def leave(self) -> None:
        """Name all partitions in the next requests. The first of them ends the session."""
        self._num_small, self._epoch, self._is_answered = 0, _NONE, True


def _are_same_partitions(first: Offsets, second: Offsets) -> bool:
    return first.keys() == second.keys() and all(first[topic].keys() == second[topic].keys() for topic in first)


def _changed(before: dict[int, int], offsets: dict[int, int]) -> dict[int, int]:
    return {number: offset for number, offset in offsets.items() if before[number] != offset}
