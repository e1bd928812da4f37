"""The judge of the chaos suite convicts: each promise of delivery, broken by hand, is a violation."""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack
import numpy as np
import pytest

from penstock.engine.types import Float32Array
from penstock.ops.chaos.judge import Ids, Judge

REQUESTS, REPLIES, LETTERS = "requests", "replies", "letters"
POISON = 99
ADDRESS = (("kafka_correlationId", b"c"), ("kafka_replyTopic", b"replies"))


@dataclass
class Record:
    topic: str
    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 0
    partition: int = 0


def direct(sequences: Sequence[Ids]) -> Mapping[Ids, Float32Array]:
    return {ids: np.array([len(ids), sum(ids)], np.float32) for ids in sequences}


def request(offset: int, *ids: int, headers: Sequence[tuple[str, bytes]] = ADDRESS) -> Record:
    body = {"v": 1, "ids": struct.pack(f"<{len(ids)}I", *ids), "lens": struct.pack("<I", len(ids))}
    return Record(REQUESTS, offset, msgpack.packb(body), headers=headers)


def key_of(record: Record) -> bytes:
    return hashlib.blake2b(f"{record.topic}-0-{record.offset}".encode(), digest_size=16).digest()


def reply(to: Record, offset: int, *row: float) -> Record:
    body = {"ok": True, "shape": [1, len(row)], "data": np.array(row, "<f4").tobytes()}
    return Record(REPLIES, offset, msgpack.packb(body), key_of(to), ADDRESS[:1])


def error(to: Record, offset: int, code: str) -> Record:
    value = msgpack.packb({"ok": False, "error": {"code": code}})
    return Record(REPLIES, offset, value, key_of(to), ADDRESS[:1])


def letter(of: Record, offset: int) -> Record:
    reason = [("penstock-error-code", b"x"), ("penstock-source", f"{of.topic}-0-{of.offset}".encode())]
    return Record(LETTERS, offset, of.value, b"made", [*of.headers, *reason])


GOOD, BAD = request(0, 5, 6), request(1, POISON)
LOST = request(2, 7, headers=ADDRESS[:1])
REQUESTED = (GOOD, BAD, LOST)
REPLIED = (reply(GOOD, 0, 2, 11), error(BAD, 1, "backend"))
KEPT = (letter(BAD, 0), letter(LOST, 1))
# Three looks: offsets committed, ends of replies, ends of letters.
LOOKS = ((1, 1, 0), (2, 2, 1), (3, 2, 2))


def judged(
    requests: Sequence[Record] = REQUESTED,
    replies: Sequence[Record] = REPLIED,
    letters: Sequence[Record] = KEPT,
    looks: Sequence[tuple[int, int, int]] = LOOKS,
    acknowledged: frozenset[bytes] = frozenset({b"c"}),
    result: float = 11.0,
    may_repeat: bool = True,
) -> Judge:
    judge = Judge(POISON, direct)
    judge.requests(requests)
    judge.check_sent(set(acknowledged))
    judge.check_results([((5, 6), np.array([2, result], np.float32))])
    for one in replies:
        judge.reply(one, is_copy=False)
    for one in letters:
        judge.letter(one)
    judge.check_outcomes(may_repeat=may_repeat)
    judge.check_commits(
        ({(REQUESTS, 0): offset}, {(REPLIES, 0): answered, (LETTERS, 0): kept}) for offset, answered, kept in looks
    )
    judge.check_all_committed({(REQUESTS, 0): looks[-1][0]}, {(REQUESTS, 0): len(requests)})
    return judge


def test_a_run_that_keeps_all_promises_has_no_violations() -> None:
    judge = judged()
    assert judge.violations == {}
    assert {"requests": 3, "replies": 2, "dead_letters": 2, "duplicates": 0}.items() <= judge.counts.items()


def test_duplicates_and_late_errors_of_requests_with_deadlines_are_allowed_and_counted() -> None:
    timed = request(0, 5, 6, headers=(*ADDRESS, ("penstock-deadline-ms", b"1")))
    twice = (*REPLIED, reply(timed, 2, 2, 11), error(timed, 3, "expired"))
    judge = judged(requests=(timed, BAD, LOST), replies=twice)
    assert (judge.violations, judge.counts["duplicates"], judge.counts["answered_twice"]) == ({}, 2, 1)


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("unanswered", {"replies": REPLIED[1:]}),
    ("unanswered", {"letters": KEPT[:1]}),
    ("unanswered", {"letters": KEPT[1:]}),
    ("wrong_rows", {"replies": (reply(GOOD, 0, 2, 12), REPLIED[1])}),
    ("wrong_answer", {"replies": (error(GOOD, 0, "backend"), REPLIED[1])}),
    ("wrong_answer", {"replies": (error(GOOD, 0, "expired"), REPLIED[1])}),
    ("different_answers", {"replies": (*REPLIED, error(GOOD, 2, "backend"))}),
    ("reply_to_nothing", {"replies": (*REPLIED, replace(REPLIED[0], key=b"other"))}),
    ("reply_with_another_correlation_id", {"replies": (replace(REPLIED[0], headers=()), REPLIED[1])}),
    ("letter_incomplete", {"letters": (replace(KEPT[0], value=b""), KEPT[1])}),
    ("letter_incomplete", {"letters": (replace(KEPT[0], headers=KEPT[0].headers[-1:]), KEPT[1])}),
    ("letter_of_nothing", {"letters": (*KEPT, letter(request(9, 5), 2))}),
    ("committed_unanswered", {"looks": ((1, 0, 0), *LOOKS[1:])}),
    ("committed_unanswered", {"looks": ((2, 2, 0), *LOOKS[1:])}),
    ("left_behind", {"looks": LOOKS[:2]}),
    ("request_lost_by_brokers", {"acknowledged": frozenset({b"d"})}),
    ("answered_twice", {"replies": (*REPLIED, reply(GOOD, 2, 2, 11)), "may_repeat": False}),
    ("answered_twice", {"letters": (*KEPT, letter(LOST, 2)), "may_repeat": False}),
    ("letter_of_an_answered_request", {"letters": (*KEPT, letter(GOOD, 2)), "may_repeat": False}),
    ("wrong_result_of_a_call", {"result": 12.0}),
]


@pytest.mark.parametrize(("kind", "change"), BROKEN)
def test_a_broken_promise_is_a_violation(kind: str, change: dict[str, Any]) -> None:
    assert judged(**change).violations[kind] == 1


def test_recovery_is_the_last_slow_request_after_a_fault() -> None:
    requests = [replace(request(offset, 5, 6), timestamp=1000 * offset) for offset in range(10)]
    latency_ms: Callable[[int], int] = lambda offset: 3000 if offset in (1, 4, 8) else 10  # noqa: E731 — one use
    judge = Judge(POISON, direct)
    judge.requests(requests)
    for one in requests:
        answer = reply(one, one.offset, 2, 11)
        judge.reply(replace(answer, timestamp=one.timestamp + latency_ms(one.offset)), is_copy=False)
    assert judge.recovery_s(2.0, 9.0, slow_s=2.0) == 2.0
    assert judge.recovery_s(5.0, 9.0, slow_s=2.0) == 0.0
