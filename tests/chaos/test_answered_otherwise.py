"""Good requests without their results are told, by what they got and by the faults that came meanwhile."""

from collections import Counter

from penstock.ops.bench.load.records import Record
from penstock.ops.chaos.faults.faults import Injected
from penstock.ops.chaos.load.asked import AnswerSeen, Asked, LetterSeen
from penstock.ops.chaos.verdict.answered_otherwise import answered_otherwise, verdict

GOOD = frozenset({"", "expired", "overloaded"})
FAULTS = [Injected("no_leader", 10.0, 70.0, at_s=10.0), Injected("rolled", 60.0, 65.0, at_s=60.0)]


def asked(sent_s: int, *replies: AnswerSeen, letters: tuple[LetterSeen, ...] = (), bad: bool = False) -> Asked:
    found = Asked.of(Record("requests", 0, sent_s, 1000 * sent_s, None, None, ()), poison=99)
    found.codes = frozenset({"backend"}) if bad else GOOD
    found.replies, found.letters = replies, letters
    return found


def test_what_good_requests_got_in_place_of_their_results() -> None:
    refused = LetterSeen("backend", 30_000, "no_leader at 10 s")
    requests = [
        asked(1, AnswerSeen("", 1_001)),
        asked(2, AnswerSeen("expired", 3_000), AnswerSeen("", 3_001)),
        asked(3, AnswerSeen("backend", 3_001), bad=True),
        asked(4, AnswerSeen("expired", 62_000)),
        asked(5, letters=(refused,)),
        asked(80, AnswerSeen("overloaded", 81_000)),
        asked(81),
    ]
    assert answered_otherwise(requests, FAULTS) == {
        "requests": 4,
        "by_outcome": {
            "error reply (expired)": 1,
            "dead letter (backend)": 1,
            "error reply (overloaded)": 1,
            "nothing": 1,
        },
        "by_fault": {"no_leader at 10 s and rolled at 60 s": 1, "no_leader at 10 s": 1, "no fault": 2},
    }


def test_the_verdict_tells_what_was_broken_answered_otherwise_and_never_injected() -> None:
    otherwise = answered_otherwise([asked(4, AnswerSeen("expired", 62_000))], FAULTS)
    told = verdict(1000, otherwise, Counter(unanswered=2), ["cache_locked"])
    assert "Broken promises: 2 unanswered." in told
    assert "1 of 1,000 good requests did not get their results: 1 error reply (expired)" in told
    assert "Never injected: cache_locked." in told
    kept = verdict(1000, answered_otherwise([], FAULTS), Counter(), [])
    assert kept == "No promise was broken. All 1,000 good requests got their results."
