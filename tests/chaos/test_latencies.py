"""Recoveries and percentiles of a run come from the times of its requests and their first answers."""

from penstock.ops.chaos.load.asked import AnswerSeen, Asked
from penstock.ops.chaos.load.records import Record
from penstock.ops.chaos.verdict.fault_effects import Latencies

REQUESTS = "requests"


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
