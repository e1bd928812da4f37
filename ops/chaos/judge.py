"""The verdict on a run, from records alone: what was asked, what was answered, and what was committed when.

It knows the wire format and the rules of delivery, and shares no code with the worker.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgpack
import numpy as np

from penstock.engine.types import Float32Array

_MOST_SHOWN = 20  # violations of one kind that a report names
_TOLERANCE = 2e-5
_ON_DEADLINE = frozenset({"expired", "overloaded"})  # right answers to a request that has a deadline

Ids = tuple[int, ...]
Partition = tuple[str, int]
Position = tuple[Partition, int]


class Record(Protocol):
    """A Kafka record, as aiokafka reads it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(slots=True)
class Asked:
    """One request record, and what became of it."""

    position: Position
    timestamp: int
    key: bytes | None
    digest: str  # SHA-256 of the value
    headers: Sequence[tuple[str, bytes]]
    correlation_id: bytes | None
    is_addressed: bool
    codes: frozenset[str]  # of which its answer has one; "" is a reply
    ids: list[Ids]
    replies: list[tuple[Position, str, int]] = field(default_factory=list)  # position, code, timestamp
    letters: list[Position] = field(default_factory=list)


class Judge:
    """Takes all requests, then all replies and letters, then the looks at the commits. `violations` is the verdict."""

    def __init__(self, poison: int, expected: Callable[[Sequence[Ids]], Mapping[Ids, Float32Array]]) -> None:
        """`expected` runs the engine directly."""
        self.violations: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self._poison = poison
        self._expected_of = expected
        self._expected: Mapping[Ids, Float32Array] = {}
        self._asked: dict[bytes, Asked] = {}  # by the key of its answers

    def requests(self, records: Iterable[Record]) -> None:
        """All records of the request topics."""
        distinct: dict[Ids, None] = {}
        for record in records:
            asked = self._read(record)
            self._asked[_answer_key(asked.position)] = asked
            distinct.update(dict.fromkeys(asked.ids))
            self.counts["requests"] += 1
            self.counts["sequences"] += len(asked.ids)
        self.counts["distinct_sequences"] = len(distinct)
        self._expected = self._expected_of(list(distinct))

    def check_sent(self, acknowledged: set[bytes]) -> None:
        """Each acknowledged request is in its topic: otherwise the brokers, not the workers, lost it."""
        found = {asked.correlation_id for asked in self._asked.values()}
        for lost in acknowledged - found:
            self._violation("request_lost_by_brokers", lost.hex())

    def check_results(self, results: Iterable[tuple[Ids, Float32Array]]) -> None:
        """Compare the results that clients returned to their callers with those of a direct run."""
        for ids, row in results:
            self.counts["call_results"] += 1
            if ids not in self._expected or not np.allclose(row, self._expected[ids], atol=_TOLERANCE):
                self._violation("wrong_result_of_a_call", f"{ids}")

    def reply(self, record: Record, *, is_copy: bool) -> None:
        """One record of the reply topics. `is_copy`: a fault has written it."""
        self.counts["copied_replies" if is_copy else "replies"] += 1
        asked = self._asked.get(record.key or b"")
        if asked is None:
            self._violation("reply_to_nothing", f"{_position(record)}")
            return
        if dict(record.headers).get("kafka_correlationId") != asked.correlation_id:
            self._violation("reply_with_another_correlation_id", f"{asked.position}")
        code = self._code(record, asked)
        if code not in asked.codes:
            wanted = " or ".join(sorted(name or "a reply" for name in asked.codes))
            self._violation("wrong_answer", f"{asked.position}: {code or 'a reply'} and not {wanted}")
        if not is_copy:
            asked.replies.append((_position(record), code, record.timestamp))

    def letter(self, record: Record) -> None:
        """One record of the dead-letter topics."""
        self.counts["dead_letters"] += 1
        headers = dict(record.headers)
        source = headers.get("penstock-source", b"").decode()
        asked = self._asked.get(hashlib.blake2b(source.encode(), digest_size=16).digest())
        if asked is None:
            self._violation("letter_of_nothing", source)
            return
        asked.letters.append(_position(record))
        left_out = headers.get("penstock-value-left-out-sha256", b"").decode()  # of a value that is too large
        has_value = asked.digest in (_digest(record.value), left_out)
        has_headers = [*record.headers][: len(asked.headers)] == [*asked.headers]
        has_key = asked.key is None or record.key == asked.key
        if not (has_key and has_value and has_headers and "penstock-error-code" in headers):
            self._violation("letter_incomplete", source)

    def check_outcomes(self, *, may_repeat: bool) -> None:
        """Each request has an outcome, and one that a reader who drops duplicates sees once. After all records.

        Without `may_repeat`, no answer comes twice, and a request that was answered with its result has no letter.
        """
        for asked in self._asked.values():
            codes = {code for _, code, _ in asked.replies} - _ON_DEADLINE
            first = asked.replies[0][1] if asked.replies else None
            if not self._is_answered(asked, None):
                self._violation("unanswered", f"{asked.position}, {len(asked.letters)} letters")
            if len(codes) > 1:
                self._violation("different_answers", f"{asked.position}: {sorted(codes)}")
            if not may_repeat and max(len(asked.replies), len(asked.letters)) > 1:
                self._violation("answered_twice", f"{asked.position}")
            # With `may_repeat` both are legal: a reply whose acknowledgement was lost leaves a letter, and so does one
            # that was undeliverable before its record was read again.
            if not may_repeat and asked.letters and "" in codes:
                self._violation("letter_of_an_answered_request", f"{asked.position}")
            self.counts["duplicates"] += max(0, len(asked.replies) - 1)
            self.counts["answered_twice"] += len(asked.replies) > 1
            self.counts["letters_twice"] += len(asked.letters) > 1
            self.counts[f"outcome_{first or 'reply'}" if first is not None else "outcome_letter"] += 1

    def check_commits(self, looks: Iterable[tuple[Mapping[Partition, int], Mapping[Partition, int]]]) -> None:
        """No committed offset passed a record whose answer was not acknowledged by then. In the order of the looks."""
        by_source: dict[Partition, dict[int, Asked]] = {}
        for asked in self._asked.values():
            by_source.setdefault(asked.position[0], {})[asked.position[1]] = asked
        checked: dict[Partition, int] = {}
        for committed, ends in looks:
            self.counts["looks"] += 1
            for source, offset in committed.items():
                self.counts["commits_that_went_back"] += offset < checked.get(source, 0)
                for number in range(checked.get(source, 0), offset):
                    passed = by_source.get(source, {}).get(number)
                    if passed is not None and not self._is_answered(passed, ends):
                        self._violation("committed_unanswered", f"{passed.position}, committed: {offset}")
                checked[source] = max(offset, checked.get(source, 0))

    def check_all_committed(self, committed: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """At rest nothing is left behind."""
        for source, end in ends.items():
            if end and committed.get(source, 0) != end:
                self._violation("left_behind", f"{source}: {committed.get(source)} of {end}")

    def complain(self, kind: str, examples: Iterable[str]) -> None:
        """Count violations that were found elsewhere."""
        for example in examples:
            self._violation(kind, example)

    def recovery_s(self, since: float, until: float, slow_s: float) -> float:
        """How long after `since` the last request was sent that waited for longer than `slow_s`.

        Times of day, in seconds. What a fault at `until` delays does not count.
        """
        last = since
        for asked in self._asked.values():
            sent = asked.timestamp / 1e3
            if since <= sent < until - slow_s and asked.replies and asked.replies[0][2] / 1e3 - sent > slow_s:
                last = max(last, sent)
        return last - since

    def _read(self, record: Record) -> Asked:
        headers = dict(record.headers)
        is_addressed = "kafka_replyTopic" in headers
        ids = _ids(record.value)
        is_sound = ids is not None and is_addressed
        codes = {"invalid_request"} if not is_sound else {"backend" if self._has_poison(ids or []) else ""}
        if "penstock-deadline-ms" in headers:
            codes |= _ON_DEADLINE
        return Asked(
            _position(record),
            record.timestamp,
            record.key,
            _digest(record.value) if codes != {""} else "",
            record.headers if codes != {""} else (),
            headers.get("kafka_correlationId"),
            is_addressed,
            frozenset(codes),
            ids or [],
        )

    def _has_poison(self, ids: Sequence[Ids]) -> bool:
        return any(self._poison in one for one in ids)

    def _code(self, record: Record, asked: Asked) -> str:
        """The error code of an answer; "" for a reply with the right rows."""
        body = msgpack.unpackb(record.value or b"")
        if body["ok"] is not True:
            return str(body["error"]["code"])
        rows = np.frombuffer(body["data"], "<f4").reshape(body["shape"])
        wanted = np.stack([self._expected[one] for one in asked.ids])
        if rows.shape != wanted.shape or not np.allclose(rows, wanted, atol=_TOLERANCE):
            self._violation("wrong_rows", f"{asked.position}")
        return ""

    def _is_answered(self, asked: Asked, ends: Mapping[Partition, int] | None) -> bool:
        """Whether the request has all that it is owed, below `ends` if given."""

        def counts(position: Position) -> bool:
            return ends is None or position[1] < ends.get(position[0], 0)

        replies = [code for position, code, _ in asked.replies if counts(position)]
        letters = [position for position in asked.letters if counts(position)]
        if not asked.is_addressed:
            return bool(letters)
        return any(code in ("", *_ON_DEADLINE) for code in replies) or bool(replies and letters)

    def _violation(self, kind: str, example: str) -> None:
        self.violations[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < _MOST_SHOWN:
            examples.append(example)


def _digest(value: bytes | None) -> str:
    return hashlib.sha256(value or b"").hexdigest()


def _position(record: Record) -> Position:
    return (record.topic, record.partition), record.offset


def _answer_key(position: Position) -> bytes:
    (topic, partition), offset = position
    return hashlib.blake2b(f"{topic}-{partition}-{offset}".encode(), digest_size=16).digest()


def _ids(value: bytes | None) -> list[Ids] | None:
    """The sequences of a request; None if it is malformed."""
    try:
        body: Any = msgpack.unpackb(value or b"")
        lens = struct.unpack(f"<{len(body['lens']) // 4}I", body["lens"])
        ids = struct.unpack(f"<{len(body['ids']) // 4}I", body["ids"])
    except (ValueError, TypeError, KeyError, IndexError, struct.error, msgpack.UnpackException):
        return None
    ends = np.cumsum(lens).tolist()
    return [tuple(ids[end - length : end]) for end, length in zip(ends, lens, strict=True)]
