"""The verdict on a run, from records alone: what was asked, what was answered, and what was committed when.

It knows the wire format and the rules of delivery, and shares no code with the worker.
"""

import math
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgpack

from penstock.engine.types import Float32Array
from penstock.ops.bench.load.records import Partition, Record
from penstock.ops.chaos.load.asked import ON_DEADLINE, AnswerSeen, Asked, Ids, LetterSeen, answer_key
from penstock.ops.chaos.verdict.commits import Commit
from penstock.ops.chaos.verdict.refusals import Refusal

_MOST_SHOWN = 20  # violations of one kind that a report names
_UNDELIVERED = "could not be delivered"  # part of the message of a dead letter whose reply topic refused the reply


class Judge:
    """Takes all requests, then all replies and letters, then the commits. `violations` is the verdict."""

    def __init__(
        self,
        poison: int,
        expected: Callable[[Ids], bytes],
        refusals: Collection[Refusal] = (),
    ) -> None:
        """`expected` computes the float32 row of a sequence, little-endian, as the engine does without Kafka."""
        self.violations: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self._poison = poison
        self._expected = expected
        self._sequences: dict[Ids, Ids] = {}  # of all requests; equal ones are held once
        self._refusals = refusals
        self._asked: dict[bytes, Asked] = {}  # by the key of its answers
        self._topic_ids: Mapping[str, bytes] = {}

    @property
    def asked(self) -> Collection[Asked]:
        """All requests, each with its answers."""
        return self._asked.values()

    def requests(self, records: Iterable[Record], topic_ids: Mapping[str, bytes]) -> None:
        """All records of the request topics, and the ids of these."""
        self._topic_ids = topic_ids
        for record in records:
            asked = Asked.of(record, self._poison)
            asked.ids = tuple([self._sequences.setdefault(ids, ids) for ids in asked.ids])
            self._asked[answer_key(topic_ids[record.topic], asked.source, asked.timestamp)] = asked
            self.counts["requests"] += 1
            self.counts["bombs"] += asked.is_bomb
            self.counts["sequences"] += len(asked.ids)
            self.counts["good_requests"] += asked.is_good
            self.counts["poisoned_requests"] += "backend" in asked.codes
        self.counts["distinct_sequences"] = len(self._sequences)

    def check_sent(self, acknowledged: set[bytes]) -> None:
        """Each acknowledged request is in its topic: otherwise the brokers, not the workers, lost it."""
        found = {asked.correlation_id for asked in self.asked}
        for lost in acknowledged - found:
            self._violation("request_lost_by_brokers", lost.hex())

    def check_results(self, results: Iterable[tuple[Ids, Float32Array]]) -> None:
        """Compare the results that clients returned to their callers with those of a direct run."""
        for ids, row in results:
            self.counts["call_results"] += 1
            if ids not in self._sequences or row.astype("<f4").tobytes() != self._expected(ids):
                self._violation("wrong_result_of_a_call", f"{ids.hex()}")

    def reply(self, record: Record, *, is_copy: bool) -> None:
        """One record of the reply topics. `is_copy`: a fault has written it."""
        self.counts["copied_replies" if is_copy else "replies"] += 1
        asked = self._asked.get(record.key or b"")
        if asked is None:
            self._violation("reply_to_nothing", f"{record.position}")
            return
        if dict(record.headers).get("kafka_correlationId") != asked.correlation_id:
            self._violation("reply_with_another_correlation_id", f"{asked.position}")
        if record.topic != asked.reply_topic:
            self._violation("reply_in_another_topic", f"{asked.position}: {record.topic}")
        code = self._code(record, asked)
        if code not in asked.codes:
            wanted = " or ".join(sorted(name or "a reply" for name in asked.codes))
            self._violation("wrong_answer", f"{asked.position}: {code or 'a reply'} and not {wanted}")
        elif code == "expired" and record.timestamp < (asked.deadline_ms or 0):
            self._violation("expired_before_its_deadline", f"{asked.position}")
        if not is_copy:
            asked.replies = (*asked.replies, AnswerSeen(code, record.timestamp))

    def letter(self, record: Record) -> None:
        """One record of the dead-letter topics, which may stand for several requests."""
        for letter in alone(record):
            self._letter(letter)

    def _letter(self, record: Record) -> None:
        self.counts["dead_letters"] += 1
        headers = dict(record.headers)
        source, sent_ms = headers.get("penstock-source", b""), headers.get("penstock-source-timestamp-ms", b"")
        topic_id = self._topic_ids.get(source.rsplit(b"-", 2)[0].decode(), b"")
        asked = self._asked.get(answer_key(topic_id, source, int(sent_ms) if sent_ms.isdigit() else -1))
        if asked is None:
            asked = next((one for one in self.asked if one.source == source), None)
        if asked is None:
            self._violation("letter_of_nothing", source.decode())
            return
        code = headers.get("penstock-error-code", b"").decode()
        message = headers.get("penstock-error-message", b"").decode()
        refused_by = self._refused_by(asked, code, message, record.timestamp)
        asked.letters = (*asked.letters, LetterSeen(code, record.timestamp, refused_by))
        if _UNDELIVERED not in message and code not in asked.codes:
            self._violation("letter_with_another_code", f"{asked.position}: {code}")
        if not asked.is_complete(record):
            self._violation("letter_incomplete", source.decode())

    def check_outcomes(self, *, may_repeat: bool) -> None:
        """Each request has an outcome, and one that a reader that drops duplicates sees once. After all records.

        Without `may_repeat`, no answer comes twice, and a request that was answered with its result has no letter.
        """
        for asked in self.asked:
            codes = {reply.code for reply in asked.replies} - ON_DEADLINE
            first = asked.replies[0].code if asked.replies else None
            if math.isinf(asked.answered_at_ms()):
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
            self.counts["letter_beside_its_reply"] += bool(asked.letters) and "" in codes
            self.counts[f"outcome_{first or 'reply'}" if first is not None else "outcome_letter"] += 1

    def check_commits(self, commits: Iterable[Commit]) -> None:
        """No commit passes a record before brokers have its answer, and none goes back. In their order."""
        left: dict[Partition, deque[Asked]] = {}
        for asked in self.asked:  # of each partition in their order
            left.setdefault(asked.partition, deque()).append(asked)
        reached: dict[Partition, int] = {}
        for at_ms, source, offset in commits:
            self.counts["commits"] += 1
            if offset < reached.get(source, 0):
                self._violation("committed_offset_went_back", f"{source}: {offset} after {reached[source]}")
            reached[source] = offset
            waiting = left.get(source, ())
            while waiting and waiting[0].offset < offset:
                self._check_passed(waiting.popleft(), at_ms)

    def check_all_committed(self, committed: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """At rest nothing is left behind."""
        for source, end in ends.items():
            if end and committed.get(source, 0) != end:
                self._violation("left_behind", f"{source}: {committed.get(source)} of {end}")

    def complain(self, kind: str, examples: Iterable[str]) -> None:
        """Count violations that were found elsewhere."""
        for example in examples:
            self._violation(kind, example)

    def _check_passed(self, asked: Asked, at_ms: int) -> None:
        answered_at_ms = asked.answered_at_ms()
        if answered_at_ms > at_ms:
            when = "never" if math.isinf(answered_at_ms) else f"{answered_at_ms - at_ms:.0f} ms later"
            self._violation("committed_unanswered", f"{asked.position}, answered {when}")

    def _code(self, record: Record, asked: Asked) -> str:
        """The error code of an answer; "" for a reply with the right rows."""
        body: Any = msgpack.unpackb(record.value or b"")
        if body["ok"] is not True:
            return str(body["error"]["code"])
        if not self._are_right(asked.ids, body["data"], body["shape"]):
            self._violation("wrong_rows", f"{asked.position}")
        return ""

    def _are_right(self, sequences: Sequence[Ids], data: bytes, shape: Sequence[int]) -> bool:
        """Whether rows are those of a direct run, byte by byte."""
        rows = [self._expected(ids) for ids in sequences]
        return bool(rows) and list(shape) == [len(rows), len(rows[0]) // 4] and data == b"".join(rows)

    def _refused_by(self, asked: Asked, code: str, message: str, at_ms: float) -> str:
        """The fault by which a dead letter may be the only answer; "" if it may not."""
        for refusal in self._refusals:
            is_said = _UNDELIVERED in message and refusal.message.search(message)
            if refusal.covers(asked.reply_topic, at_ms) and (is_said or (code in asked.codes and not asked.is_good)):
                return refusal.fault
        return ""

    def _violation(self, kind: str, example: str) -> None:
        self.violations[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < _MOST_SHOWN:
            examples.append(example)


def alone(letter: Record) -> Iterator[Record]:
    """The letter, or one in the form of a letter of its own for each record that it stands for."""
    if not letter.headers or letter.headers[-1][0] != "penstock-records":
        yield letter
        return
    shared = dict(letter.headers)
    place = shared["__dlq.errors.topic"] + b"-" + shared["__dlq.errors.partition"] + b"-"
    for record in msgpack.unpackb(zlib.decompress(letter.value or b"")):
        offset, timestamp, key, value, headers, code, message, kind, attempts = record
        own = {
            "penstock-error-code": code.encode(),
            "penstock-error-message": message.encode(),
            "penstock-error-type": kind.encode(),
            "penstock-error-attempts": b"%d" % attempts,
            "penstock-source": place + b"%d" % offset,
            "penstock-source-timestamp-ms": b"%d" % timestamp,
            "__dlq.errors.offset": b"%d" % offset,
            "__dlq.errors.delivery.count": b"%d" % attempts,
            "__dlq.errors.message": message.encode(),
        }
        named = [(name, raw) for name, raw in headers]
        yield letter._replace(key=key or letter.key, value=value, headers=(*named, *(shared | own).items()))
