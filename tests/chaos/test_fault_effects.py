"""Recoveries and percentiles come from the times of requests and their first answers. Faults alone have bounds."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.ops.bench.load.records import Record
from penstock.ops.chaos.faults.faults import Injected
from penstock.ops.chaos.load.asked import AnswerSeen, Asked
from penstock.ops.chaos.verdict.fault_effects import KILLS, Latencies, check_effects, effects, worst

REQUESTS = "requests"
LOAD_S, DEAD_S = 100, 98.0


def load(waited_s: Callable[[float], float]) -> Latencies:
    """Twenty requests a second. `waited_s`: each by the second in which it is sent."""
    found = []
    for number in range(20 * LOAD_S):
        sent = number / 20
        one = Asked.of(Record(REQUESTS, 0, number, int(1000 * sent), None, None, ()), poison=99)
        one.replies = (AnswerSeen("", int(1000 * (sent + waited_s(sent)))),)
        found.append(one)
    return Latencies(found, REQUESTS)


def half_dead(seconds: float) -> float:
    return LOAD_S - seconds + 5 if seconds % 0.1 < 0.05 else 0.01


def violations(fault: Injected, latencies: Latencies, *others: Injected) -> tuple[Any, dict[str, str]]:
    found = effects([*others, fault], latencies, 0.0, 300.0)
    (own,) = [effect for effect in found if effect["at_s"] == fault.started]
    return own, dict(check_effects(found))


def test_a_recovery_that_the_next_fault_cuts_off_is_not_one() -> None:
    own, _ = violations(Injected("member_killed", 0.0, 0.0), load(half_dead), Injected("no_leader", 10.0, 20.0))
    assert (own["recovery_s"], own["recovered"]) == (pytest.approx(7.9, abs=0.11), False)


@pytest.mark.parametrize("kind", sorted(KILLS))
def test_half_of_the_partitions_dead_to_the_end_of_the_load_is_a_violation(kind: str) -> None:
    own, found = violations(Injected(kind, 1.0, 1.0), load(half_dead))
    assert (own["recovery_s"], own["recovered"]) == (pytest.approx(DEAD_S, abs=1.0), False)
    assert found.keys() == {"slow_recovery"}
    assert "at least" in found["slow_recovery"]


@pytest.mark.parametrize(("seconds", "kinds"), [(14.0, set[str]()), (16.0, {"slow_recovery"})])
def test_a_recovery_after_a_kill_has_a_bound(seconds: float, kinds: set[str]) -> None:
    latencies = load(lambda sent: 3.0 if sent <= 1.0 + seconds else 0.01)
    own, found = violations(Injected("member_killed", 1.0, 1.0), latencies)
    assert (own["recovery_s"], own["recovered"], set(found)) == (seconds, True, kinds)
    assert violations(Injected("broker_killed", 1.0, 1.0), latencies)[1] == {}


@pytest.mark.parametrize(("seconds", "kinds"), [(4.0, set[str]()), (6.0, {"slow_roll"})])
def test_the_p99_during_a_roll_has_a_bound(seconds: float, kinds: set[str]) -> None:
    assert violations(Injected("rolled", 1.0, 9.0), load(lambda _: seconds))[1].keys() == kinds


def test_faults_beside_others_and_those_that_did_not_happen_have_no_bound() -> None:
    latencies = load(half_dead)
    beside, found = violations(Injected("member_killed", 1.0, 1.0, ("rolled",)), latencies)
    absent, found_too = violations(Injected("member_killed", 1.0, 1.0, error="No member ran."), latencies)
    assert (beside["beside"], absent["error"], found, found_too) == (["rolled"], "No member ran.", {}, {})
    assert worst([beside, absent], KILLS, "recovery_s") is None


def asked(topic: str, sent_s: int, *answered_after_s: float) -> Asked:
    found = Asked.of(Record(topic, 0, sent_s, 1000 * sent_s, None, None, ()), poison=99)
    found.replies = tuple([AnswerSeen("", int(1000 * (sent_s + seconds))) for seconds in answered_after_s])
    return found


def test_recovery_is_the_last_slow_request_after_a_fault() -> None:
    slow = (1, 4, 8)
    latencies = Latencies([asked(REQUESTS, second, 3.0 if second in slow else 0.01) for second in range(10)], REQUESTS)
    assert latencies.recovery(2.0, 9.0) == (2.0, True)
    assert latencies.recovery(5.0, 9.0) == (0.0, True)  # the next fault delayed the request at 8 s


def test_percentiles_count_the_first_answers_of_one_topic() -> None:
    requests = [asked(REQUESTS, 0, 7.0, 1.0), asked(REQUESTS, 1), asked("bulk", 2, 30.0), asked(REQUESTS, 5, 9.0)]
    latencies = Latencies(requests, REQUESTS)
    assert latencies.p99_s(0.0, 5.0) == 1.0
    assert latencies.p99_s(1.0, 2.0) is None
