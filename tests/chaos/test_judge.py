"""The judge of the chaos suite convicts: each promise of delivery, broken by hand, is a violation."""

import hashlib
import re
import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from penstock.ops.bench.load.records import Headers, Record
from penstock.ops.chaos.load.asked import Ids
from penstock.ops.chaos.verdict.commits import Commit
from penstock.ops.chaos.verdict.judge import Judge, alone
from penstock.ops.chaos.verdict.refusals import Refusal

REQUESTS, REPLIES, LETTERS = "requests", "replies", "letters"
POISON = 99
ADDRESS = (("kafka_correlationId", b"c"), ("kafka_replyTopic", b"replies"))
DEADLINE_MS = 60_000
TOPIC_ID = b"0123456789abcdef"


def record(topic: str, offset: int, value: bytes, key: bytes | None = None, headers: Headers = ()) -> Record:
    return Record(topic, 0, offset, 0, key, value, headers)


def direct(ids: Ids) -> bytes:
    return np.array([len(ids) // 4, np.frombuffer(ids, "<u4").sum()], "<f4").tobytes()


def packed(*ids: int) -> Ids:
    return struct.pack(f"<{len(ids)}I", *ids)


def request(offset: int, *ids: int, headers: Headers = ADDRESS) -> Record:
    body = {"v": 1, "ids": packed(*ids), "lens": struct.pack("<I", len(ids))}
    return record(REQUESTS, offset, msgpack.packb(body), headers=headers)


def key_of(record: Record) -> bytes:
    place = f"{record.topic}-0-{record.offset}-{record.timestamp}".encode()
    return hashlib.blake2b(TOPIC_ID + place, digest_size=16).digest()


def reply(to: Record, offset: int, *row: float) -> Record:
    body = {"ok": True, "shape": [1, len(row)], "data": np.array(row, "<f4").tobytes()}
    return record(REPLIES, offset, msgpack.packb(body), key_of(to), ADDRESS[:1])


def error(to: Record, offset: int, code: str) -> Record:
    value = msgpack.packb({"ok": False, "error": {"code": code}})
    return record(REPLIES, offset, value, key_of(to), ADDRESS[:1])


def letter(of: Record, offset: int, code: str, message: str = "why") -> Record:
    source = f"{of.topic}-0-{of.offset}".encode()
    position = [("topic", of.topic.encode()), ("partition", b"0"), ("offset", b"%d" % of.offset)]
    reason = [
        ("penstock-error-code", code.encode()),
        ("penstock-error-message", message.encode()),
        ("penstock-error-type", b"builtins.ValueError"),
        ("penstock-error-attempts", b"1"),
        ("penstock-error-worker", b"penstock-0"),
        ("penstock-source", source),
        ("penstock-source-timestamp-ms", b"%d" % of.timestamp),
        *[(f"__dlq.errors.{name}", value) for name, value in position],
        ("__dlq.errors.group", b"penstock.m"),
        ("__dlq.errors.delivery.count", b"1"),
        ("__dlq.errors.message", message.encode()),
    ]
    return record(LETTERS, offset, of.value or b"", b"made", [*of.headers, *reason])


def other(one: Record, header: str, value: bytes = b"other") -> Record:
    return one._replace(headers=[(name, value if name == header else was) for name, was in one.headers])


def shortened(of: Record) -> Record:
    """A letter of a lost request without the value."""
    digest = hashlib.sha256(of.value or b"").hexdigest().encode()
    whole = letter(of, 1, "invalid_request")
    return whole._replace(value=b"", headers=[*whole.headers, ("penstock-value-left-out-sha256", digest)])


def without(one: Record, header: str) -> Record:
    return one._replace(headers=[(name, value) for name, value in one.headers if name != header])


GOOD, BAD = request(0, 5, 6), request(1, POISON)
LOST = request(2, 7, headers=ADDRESS[:1])
TIMED = request(0, 5, 6, headers=(*ADDRESS, ("penstock-deadline-ms", b"%d" % DEADLINE_MS)))
REQUESTED = (GOOD, BAD, LOST)
REPLIED = (reply(GOOD, 0, 2, 11), error(BAD, 1, "backend"))
KEPT = (letter(BAD, 0, "backend"), letter(LOST, 1, "invalid_request"))
UNDELIVERED = letter(GOOD, 2, "backend", "The reply could not be delivered: refused")
HEADERS_OF_A_LETTER = [name for name, _ in KEPT[0].headers if name not in dict(BAD.headers)]
BOMB = LOST._replace(value=bytes((16 << 20) + 1), headers=ADDRESS)
BATCH = struct.pack(">q", BOMB.offset) + b"as stored"
BOMB_LETTER = letter(BOMB._replace(value=BATCH, headers=[("penstock-unreadable-batch", b"why")]), 1, "invalid_request")
LARGE = LOST._replace(value=bytes(8 << 20))
REFUSAL = Refusal("no_leader at 0 s", REPLIES, 0, 1000, re.compile("refused"))
COMMITS = ((1, 1), (2, 2), (3, 3))  # times and offsets


def judged(
    requests: Sequence[Record] = REQUESTED,
    replies: Sequence[Record] = REPLIED,
    letters: Sequence[Record] = KEPT,
    acknowledged: frozenset[bytes] = frozenset({b"c"}),
    result: float = 11.0,
    may_repeat: bool = True,
    refusals: Sequence[Refusal] = (),
    commits: Sequence[tuple[int, int]] = COMMITS,
) -> Judge:
    judge = Judge(POISON, direct, refusals)
    judge.requests(requests, {REQUESTS: TOPIC_ID})
    judge.check_sent(set(acknowledged))
    judge.check_results([(packed(5, 6), np.array([2, result], np.float32))])
    for one in replies:
        judge.reply(one, is_copy=False)
    for one in letters:
        judge.letter(one)
    judge.check_outcomes(may_repeat=may_repeat)
    judge.check_commits(Commit(at_ms, (REQUESTS, 0), offset) for at_ms, offset in commits)
    judge.check_all_committed({(REQUESTS, 0): commits[-1][1]}, {(REQUESTS, 0): len(requests)})
    return judge


def test_a_run_that_keeps_all_promises_has_no_violations() -> None:
    judge = judged()
    assert judge.violations == {}
    assert {"requests": 3, "replies": 2, "dead_letters": 2, "duplicates": 0}.items() <= judge.counts.items()


def test_duplicates_and_late_errors_of_requests_with_deadlines_are_allowed_and_counted() -> None:
    late = error(TIMED, 3, "expired")._replace(timestamp=DEADLINE_MS)
    judge = judged(requests=(TIMED, BAD, LOST), replies=(*REPLIED, reply(TIMED, 2, 2, 11), late))
    assert (judge.violations, judge.counts["duplicates"], judge.counts["answered_twice"]) == ({}, 2, 1)


@pytest.mark.parametrize("may_repeat", [True, False])
def test_a_letter_is_an_answer_while_the_reply_topic_takes_none(may_repeat: bool) -> None:
    letters = (UNDELIVERED._replace(offset=0), KEPT[0]._replace(offset=1), KEPT[1]._replace(offset=2))
    judge = judged(replies=(), letters=letters, refusals=[REFUSAL], may_repeat=may_repeat)
    assert (judge.violations, judge.counts["outcome_letter"]) == ({}, 3)


def test_a_commit_may_come_with_the_last_answer_that_it_passes() -> None:
    late = [one._replace(timestamp=5) for one in (*REPLIED, *KEPT)]
    assert judged(replies=late[:2], letters=late[2:], commits=((5, 3),)).violations == {}


def test_a_bomb_is_owed_one_letter_that_has_its_batch() -> None:
    judge = judged(requests=(GOOD, BAD, BOMB), letters=(KEPT[0], BOMB_LETTER))
    assert (judge.violations, judge.counts["bombs"], judge.counts["outcome_letter"]) == ({}, 1, 1)


def test_a_letter_may_leave_out_a_value_above_the_bound() -> None:
    assert judged(requests=(GOOD, BAD, LARGE), letters=(KEPT[0], shortened(LARGE))).violations == {}


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("unanswered", {"replies": REPLIED[1:]}),
    ("unanswered", {"letters": KEPT[:1]}),
    ("unanswered", {"letters": KEPT[1:]}),
    # A letter in place of a reply: while the topic took replies, from another topic, of another cause.
    ("unanswered", {"replies": REPLIED[1:], "letters": (*KEPT, UNDELIVERED)}),
    (
        "unanswered",
        {
            "replies": REPLIED[1:],
            "letters": (*KEPT, UNDELIVERED._replace(timestamp=1001)),
            "refusals": [REFUSAL],
        },
    ),
    (
        "unanswered",
        {"replies": REPLIED[1:], "letters": (*KEPT, UNDELIVERED), "refusals": [replace(REFUSAL, topic="others")]},
    ),
    ("unanswered", {"replies": REPLIED[1:], "letters": (*KEPT, letter(GOOD, 2, "backend")), "refusals": [REFUSAL]}),
    (
        "unanswered",
        {
            "replies": REPLIED[1:],
            "letters": (*KEPT, UNDELIVERED),
            "refusals": [replace(REFUSAL, message=re.compile("another cause"))],
        },
    ),
    ("wrong_rows", {"replies": (reply(GOOD, 0, 2, 12), REPLIED[1])}),
    ("wrong_answer", {"replies": (error(GOOD, 0, "backend"), REPLIED[1])}),
    ("wrong_answer", {"replies": (error(GOOD, 0, "expired"), REPLIED[1])}),
    ("wrong_rows", {"replies": (reply(GOOD, 0, 2), REPLIED[1])}),
    ("wrong_answer", {"replies": (REPLIED[0], reply(BAD, 1, 1, POISON))}),
    (
        "expired_before_its_deadline",
        {
            "requests": (TIMED, BAD, LOST),
            "replies": (error(TIMED, 0, "expired")._replace(timestamp=DEADLINE_MS - 1), REPLIED[1]),
        },
    ),
    ("different_answers", {"replies": (*REPLIED, error(GOOD, 2, "backend"))}),
    ("reply_to_nothing", {"replies": (*REPLIED, REPLIED[0]._replace(key=b"other"))}),
    ("reply_with_another_correlation_id", {"replies": (REPLIED[0]._replace(headers=()), REPLIED[1])}),
    ("reply_in_another_topic", {"replies": (*REPLIED, REPLIED[0]._replace(topic="elsewhere"))}),
    ("letter_incomplete", {"letters": (KEPT[0]._replace(value=b""), KEPT[1])}),
    ("letter_incomplete", {"letters": (without(KEPT[0], "kafka_replyTopic"), KEPT[1])}),
    ("letter_incomplete", {"letters": (KEPT[0], shortened(LOST))}),
    ("letter_incomplete", {"letters": (KEPT[0]._replace(key=None), KEPT[1])}),
    ("letter_incomplete", {"letters": (other(KEPT[0], "penstock-error-type", b""), KEPT[1])}),
    ("letter_incomplete", {"letters": (other(KEPT[0], "penstock-source-timestamp-ms"), KEPT[1])}),
    ("letter_incomplete", {"letters": (other(KEPT[0], "__dlq.errors.offset"), KEPT[1])}),
    ("letter_incomplete", {"letters": (other(KEPT[0], "__dlq.errors.message"), KEPT[1])}),
    ("letter_incomplete", {"requests": (GOOD, BAD, BOMB), "letters": (KEPT[0], letter(BOMB, 1, "invalid_request"))}),
    ("letter_incomplete", {"requests": (GOOD, BAD, BOMB), "letters": (KEPT[0], BOMB_LETTER._replace(value=b"made"))}),
    ("unanswered", {"requests": (GOOD, BAD, BOMB), "letters": KEPT[:1]}),
    (
        "reply_in_another_topic",
        {
            "requests": (GOOD, BAD, BOMB),
            "letters": (KEPT[0], BOMB_LETTER),
            "replies": (*REPLIED, error(BOMB, 2, "invalid_request")),
        },
    ),
    ("committed_offset_went_back", {"commits": ((1, 1), (2, 3), (3, 2), (4, 3))}),
    ("letter_incomplete", {"requests": (GOOD, BAD._replace(key=b"k"), LOST)}),
    ("letter_with_another_code", {"letters": (letter(BAD, 0, "too_long"), KEPT[1])}),
    ("letter_of_nothing", {"letters": (*KEPT, letter(request(9, 5), 2, "backend"))}),
    ("committed_unanswered", {"replies": (REPLIED[0]._replace(timestamp=5), REPLIED[1]), "commits": ((4, 1), (6, 3))}),
    ("committed_unanswered", {"letters": (KEPT[0]._replace(timestamp=5), KEPT[1]), "commits": ((4, 2), (6, 3))}),
    ("committed_unanswered", {"letters": (KEPT[0], KEPT[1]._replace(timestamp=5)), "commits": ((4, 3),)}),
    ("committed_unanswered", {"replies": REPLIED[1:]}),
    ("left_behind", {"commits": COMMITS[:2]}),
    ("request_lost_by_brokers", {"acknowledged": frozenset({b"d"})}),
    ("answered_twice", {"replies": (*REPLIED, reply(GOOD, 2, 2, 11)), "may_repeat": False}),
    ("answered_twice", {"letters": (*KEPT, letter(LOST, 2, "invalid_request")), "may_repeat": False}),
    ("letter_of_an_answered_request", {"letters": (*KEPT, UNDELIVERED), "may_repeat": False}),
    ("wrong_result_of_a_call", {"result": 12.0}),
]


@pytest.mark.parametrize(("kind", "change"), BROKEN)
def test_a_broken_promise_is_a_violation(kind: str, change: dict[str, Any]) -> None:
    assert judged(**change).violations[kind] == 1


@pytest.mark.parametrize("header", HEADERS_OF_A_LETTER)
def test_every_header_of_a_letter_is_missed(header: str) -> None:
    violations = judged(letters=(without(KEPT[0], header), KEPT[1])).violations
    assert violations["letter_of_nothing" if header == "penstock-source" else "letter_incomplete"] == 1


def test_every_violation_of_the_judge_is_among_the_broken_promises_and_on_the_page() -> None:
    root = Path(__file__).parents[2]
    reported = set(
        re.findall(
            r'_violation\("(\w+)"', (root / "ops" / "chaos" / "verdict" / "judge.py").read_text(encoding="utf-8")
        )
    )
    assert reported == {kind for kind, _ in BROKEN}
    page = (root / "ops" / "docs" / "delivery.md").read_text(encoding="utf-8")
    assert [kind for kind in reported if f"`{kind}`" not in page] == []


@pytest.mark.slow
def test_a_million_requests_fit_into_memory() -> None:
    """The bound is 2 GB, of which the libraries and what is being read need a third."""
    num_requests = 4_000
    requests = [request(number, *range(1, 2 + number % 20), number % 90) for number in range(num_requests)]
    answers = [reply(one, number, 0.0, 0.0) for number, one in enumerate(requests)]
    tracemalloc.start()
    try:
        judge = Judge(POISON, direct)
        judge.requests((one._replace(headers=[*one.headers]) for one in requests), {REQUESTS: TOPIC_ID})
        for answer in answers:
            judge.reply(answer, is_copy=False)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / num_requests < 1_300


def test_a_shared_letter_is_judged_record_by_record() -> None:
    originals = [
        [7, 5, None, b"a", [["x", b"1"]], "backend", "why", "builtins.E", 2],
        [8, 5, b"k", None, [], "empty", "no", "E", 1],
    ]
    headers = [("__dlq.errors.topic", b"requests"), ("__dlq.errors.partition", b"0"), ("penstock-records", b"2")]
    shared = record(LETTERS, 0, zlib.compress(msgpack.packb(originals)), b"made", tuple(headers))
    first, second = alone(shared)
    assert [dict(one.headers)["penstock-source"] for one in (first, second)] == [b"requests-0-7", b"requests-0-8"]
    assert (first.key, first.value, first.headers[0]) == (b"made", b"a", ("x", b"1"))
    assert (second.key, second.value, dict(second.headers)["penstock-error-code"]) == (b"k", None, b"empty")
    plain = letter(request(3, 1), 0, "backend")
    assert list(alone(plain)) == [plain]
