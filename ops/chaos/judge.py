"""The verdict on a run, from records alone: what was asked, what was answered, and what was committed when.

It knows the wire format and the rules of delivery, and shares no code with the worker.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from penstock.engine.types import Float32Array
from penstock.ops.chaos.asked import (
    ON_DEADLINE,
    AnswerSeen,
    Asked,
    Ids,
    LetterSeen,
    Partition,
    Record,
    answer_key,
)

_MOST_SHOWN = 20  # violations of one kind that a report names
_TOLERANCE = 2e-5
_UNDELIVERED = "could not be delivered"  # part of the message of a dead letter whose reply topic refused the reply


@dataclass(frozen=True, slots=True)
class Refusal:
    """A time in which a fault let a reply topic take no answers: dead letters stand for them. Unix milliseconds."""

    topic: str
    started_ms: float
    ended_ms: float


class Judge:
    """Takes all requests, then all replies and letters, then the looks at the commits. `violations` is the verdict."""

    def __init__(
        self,
        poison: int,
        expected: Callable[[Sequence[Ids]], Mapping[Ids, Float32Array]],
        refusals: Collection[Refusal] = (),
        clock_error_ms: float = 0.0,
    ) -> None:
        """`expected` runs the engine directly. `clock_error_ms`: by which faults step the clocks of workers."""
        self.violations: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self._poison = poison
        self._expected_of = expected
        self._expected: Mapping[Ids, Float32Array] = {}
        self._refusals = refusals
        self._clock_error_ms = clock_error_ms
        self._asked: dict[bytes, Asked] = {}  # by the key of its answers

    @property
    def asked(self) -> Collection[Asked]:
        """All requests, each with its answers."""
        return self._asked.values()

    def requests(self, records: Iterable[Record]) -> None:
        """All records of the request topics."""
        distinct: dict[Ids, None] = {}
        for record in records:
            asked = Asked.of(record, self._poison)
            self._asked[asked.answer_key] = asked
            distinct.update(dict.fromkeys(asked.ids))
            self.counts["requests"] += 1
            self.counts["bombs"] += asked.is_bomb
            self.counts["sequences"] += len(asked.ids)
        self.counts["distinct_sequences"] = len(distinct)
        self._expected = self._expected_of(list(distinct))

    def check_sent(self, acknowledged: set[bytes]) -> None:
        """Each acknowledged request is in its topic: otherwise the brokers, not the workers, lost it."""
        found = {asked.correlation_id for asked in self.asked}
        for lost in acknowledged - found:
            self._violation("request_lost_by_brokers", lost.hex())

    def check_results(self, results: Iterable[tuple[Ids, Float32Array]]) -> None:
        """Compare the results that clients returned to their callers with those of a direct run."""
        for ids, row in results:
            self.counts["call_results"] += 1
            if ids not in self._expected or not self._are_right([ids], row.astype("<f4").tobytes(), [1, len(row)]):
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
        elif code == "expired" and record.timestamp < (asked.deadline_ms or 0) - self._clock_error_ms:
            self._violation("expired_before_its_deadline", f"{asked.position}")
        if not is_copy:
            asked.replies.append(AnswerSeen(record.position, code, record.timestamp))

    def letter(self, record: Record) -> None:
        """One record of the dead-letter topics."""
        self.counts["dead_letters"] += 1
        headers = dict(record.headers)
        source = headers.get("penstock-source", b"")
        asked = self._asked.get(answer_key(source))
        if asked is None:
            self._violation("letter_of_nothing", source.decode())
            return
        code = headers.get("penstock-error-code", b"").decode()
        is_undelivered = _UNDELIVERED in headers.get("penstock-error-message", b"").decode()
        is_right = is_undelivered or code in asked.codes
        asked.letters.append(LetterSeen(record.position, is_right and self._is_refused(asked, record.timestamp)))
        if not is_right:
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
            if not asked.is_answered(None):
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
        for asked in self.asked:
            by_source.setdefault(asked.position[0], {})[asked.position[1]] = asked
        checked: dict[Partition, int] = {}
        for committed, ends in looks:
            self.counts["looks"] += 1
            for source, offset in committed.items():
                for number in range(checked.get(source, 0), offset):
                    passed = by_source.get(source, {}).get(number)
                    if passed is not None and not passed.is_answered(ends):
                        self._violation("committed_unanswered", f"{passed.position}, committed: {offset}")
                checked[source] = max(offset, checked.get(source, 0))

    def check_commit_order(self, commits: Iterable[tuple[Partition, int]]) -> None:
        """No committed offset of a partition is below an earlier one. In the order in which they were committed."""
        reached: dict[Partition, int] = {}
        for source, offset in commits:
            self.counts["commits"] += 1
            if offset < reached.get(source, 0):
                self._violation("committed_offset_went_back", f"{source}: {offset} after {reached[source]}")
            reached[source] = offset

    def check_all_committed(self, committed: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """At rest nothing is left behind."""
        for source, end in ends.items():
            if end and committed.get(source, 0) != end:
                self._violation("left_behind", f"{source}: {committed.get(source)} of {end}")

    def complain(self, kind: str, examples: Iterable[str]) -> None:
        """Count violations that were found elsewhere."""
        for example in examples:
            self._violation(kind, example)

    def _code(self, record: Record, asked: Asked) -> str:
        """The error code of an answer; "" for a reply with the right rows."""
        body: Any = msgpack.unpackb(record.value or b"")
        if body["ok"] is not True:
            return str(body["error"]["code"])
        if not self._are_right(asked.ids, body["data"], body["shape"]):
            self._violation("wrong_rows", f"{asked.position}")
        return ""

    def _are_right(self, sequences: Sequence[Ids], data: bytes, shape: Sequence[int]) -> bool:
        """Whether rows of float32 are those of a direct run. Mostly they are the same bytes."""
        wanted = [self._expected[ids] for ids in sequences]
        if not wanted or list(shape) != [len(wanted), len(wanted[0])]:
            return False
        if data == b"".join([row.tobytes() for row in wanted]):
            return True
        return bool(np.allclose(np.frombuffer(data, "<f4").reshape(shape), wanted, rtol=1e-5, atol=_TOLERANCE))

    def _is_refused(self, asked: Asked, at_ms: float) -> bool:
        return any(one.topic == asked.reply_topic and one.started_ms <= at_ms <= one.ended_ms for one in self._refusals)

    def _violation(self, kind: str, example: str) -> None:
        self.violations[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < _MOST_SHOWN:
            examples.append(example)
