"""Outcomes that faults excuse, and no others: dead letters that stand for answers, and denials in the log."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.chaos.faults.faults import KINDS, Injected
from penstock.ops.chaos.load.calls import REPLIES
from penstock.ops.chaos.load.raw_load import RAW_REPLIES
from penstock.ops.chaos.verdict.refusals import AFTER_S, is_denial, refusals

DENIED = "The reply could not be delivered: TopicAuthorizationFailedError('replies')"
STALLED = (
    "The reply could not be delivered: "
    "KafkaError('nothing that was sent there has been acknowledged lately, and what waits for it is enough')"
)
LEADERLESS = "The reply could not be delivered: LeaderNotAvailableError('penstock.replies.raw-2 has no leader')"
MODES = ("at_least_once", "exactly_once")


def is_excused(fault: Injected, delivery: str, topic: str, at_s: float, message: str, *others: Injected) -> bool:
    found = [*refusals([fault, *others], delivery)]
    return any(one.covers(topic, 1e3 * at_s) and one.message.search(message) for one in found)


@pytest.mark.parametrize("delivery", MODES)
def test_a_denied_reply_topic_excuses_letters_that_say_so_while_it_is_denied(delivery: str) -> None:
    fault = Injected("replies_refused", 100.0, 110.0)
    for at_s, expected in ((99.9, False), (100.0, True), (110 + AFTER_S, True), (110.1 + AFTER_S, False)):
        assert is_excused(fault, delivery, RAW_REPLIES, at_s, DENIED) is expected
    assert not is_excused(fault, delivery, REPLIES, 105.0, DENIED)  # that topic was not denied
    assert not is_excused(fault, delivery, RAW_REPLIES, 105.0, STALLED)
    assert not is_excused(fault, delivery, RAW_REPLIES, 105.0, LEADERLESS)


@pytest.mark.parametrize(("delivery", "begins_s", "message"), [(MODES[0], 19.0, STALLED), (MODES[1], 29.0, LEADERLESS)])
@pytest.mark.parametrize("topic", [RAW_REPLIES, REPLIES])
def test_leaderless_reply_topics_excuse_letters_after_the_time_for_which_answers_wait(
    delivery: str, begins_s: float, message: str, topic: str
) -> None:
    fault = Injected("no_leader", 100.0, 160.0)
    bounds = ((99.9 + begins_s, False), (100 + begins_s, True), (160 + AFTER_S, True), (160.1 + AFTER_S, False))
    for at_s, expected in bounds:
        assert is_excused(fault, delivery, topic, at_s, message) is expected
    assert not is_excused(fault, delivery, "elsewhere", 150.0, message)
    (of_other_mode,) = {STALLED, LEADERLESS} - {message}
    assert not is_excused(fault, delivery, topic, 150.0, of_other_mode)
    assert not is_excused(fault, delivery, topic, 150.0, DENIED)


@pytest.mark.parametrize("delivery", MODES)
@pytest.mark.parametrize("kind", sorted({*KINDS} - {"replies_refused", "no_leader"}))
def test_no_other_fault_excuses_a_letter(delivery: str, kind: str) -> None:
    assert [*refusals([Injected(kind, 100.0, 160.0)], delivery)] == []


@pytest.mark.parametrize("delivery", MODES)
@pytest.mark.parametrize("kind", ["replies_refused", "no_leader"])
def test_a_fault_that_was_not_injected_excuses_nothing(delivery: str, kind: str) -> None:
    assert [*refusals([Injected(kind, 100.0, 160.0, error="TimeoutError()")], delivery)] == []


def test_letters_wait_for_leaders_that_the_next_fault_takes_away() -> None:
    fault = Injected("replies_refused", 100.0, 110.0)
    killed = Injected("broker_killed", 109.0, 127.0)
    late = 127.0 + AFTER_S
    assert is_excused(fault, MODES[0], RAW_REPLIES, late, DENIED, killed)
    assert not is_excused(fault, MODES[0], RAW_REPLIES, late + 0.1, DENIED, killed)
    assert not is_excused(fault, MODES[0], RAW_REPLIES, late, DENIED, Injected("broker_killed", 109, 127, error="no"))
    assert not is_excused(fault, MODES[0], RAW_REPLIES, late, DENIED, Injected("member_killed", 109, 127))
    after = Injected("broker_killed", 110.1 + AFTER_S, 200.0)
    assert not is_excused(fault, MODES[0], RAW_REPLIES, late, DENIED, after)


def test_answers_wait_as_long_as_the_manual_says() -> None:
    page = (Path(__file__).parents[2] / "ops" / "docs" / "delivery.md").read_text(encoding="utf-8")
    for delivery, promise in (
        (MODES[0], r"stalled if it acknowledges nothing for (\d+) s"),
        (MODES[1], r"delays the request partitions that have answers for it, for\s(\d+) s\."),
    ):
        (promised_s,) = re.findall(promise, page)
        begins_ms = {one.started_ms for one in refusals([Injected("no_leader", 0.0, 60.0)], delivery)}
        assert begins_ms == {1e3 * (float(promised_s) - 1)}  # the last acknowledgement came up to a second before


REVOKED = Injected("access_revoked", 1000.0, 1010.0)


def event(at_s: float, logger: str = "aiokafka.consumer", last: str = "GroupAuthorizationFailed") -> dict[str, Any]:
    exception = f"Traceback (most recent call last):\n{last}"
    return {"logger": logger, "exception": exception, "timestamp": datetime.fromtimestamp(at_s, UTC).isoformat()}


@pytest.mark.parametrize(("at_s", "expected"), [(999.9, False), (1000.0, True), (1040.0, True), (1040.1, False)])
def test_a_denial_is_expected_while_a_privilege_is_missing(at_s: float, expected: bool) -> None:
    assert is_denial(event(at_s), [REVOKED]) is expected


def test_other_faults_and_other_exceptions_are_no_denials() -> None:
    assert not is_denial(event(1005.0), [Injected("no_leader", 1000.0, 1010.0)])
    assert not is_denial(event(1005.0), [Injected("access_revoked", 1000.0, 1010.0, error="TimeoutError()")])
    assert not is_denial(event(1005.0, logger="penstock.worker"), [REVOKED])
    assert not is_denial(event(1005.0, last="KeyError: 1"), [REVOKED])
