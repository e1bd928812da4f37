"""Outcomes that faults excuse: dead letters as answers while reply topics refuse any, and denials in the worker's log.

Each rule is a limit that the manual states (ops/docs/delivery.md). What no rule excuses is a violation.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from penstock.ops.chaos.faults.faults import OF_BROKERS, Injected
from penstock.ops.chaos.load.calls import REPLIES
from penstock.ops.chaos.load.raw_load import RAW_REPLIES

AFTER_S = 30.0  # after a fault's end: letters on their way, and a library that has not noticed
_OF_PRIVILEGES = frozenset({"access_revoked", "replies_refused"})


class _Rule(NamedTuple):
    """When answers to some topics become dead letters, and what the letters of good requests then say."""

    topics: Sequence[str]
    begins_s: float  # after the fault's start
    message: str  # a pattern


_DENIED = _Rule([RAW_REPLIES], 0.0, "TopicAuthorizationFailed")  # by the brokers, at once
_ACKNOWLEDGED_S = 1.0  # the last acknowledgement came at most so long before the fault
_RULES: Mapping[str, Mapping[str, _Rule]] = {
    "at_least_once": {
        "replies_refused": _DENIED,
        # A partition that acknowledges nothing for 20 s is stalled.
        "no_leader": _Rule([RAW_REPLIES, REPLIES], 20.0 - _ACKNOWLEDGED_S, "nothing .* has been acknowledged lately"),
    },
    "exactly_once": {
        "replies_refused": _DENIED,
        # Request partitions wait 30 s for the leaders of their reply partitions.
        "no_leader": _Rule([RAW_REPLIES, REPLIES], 30.0 - _ACKNOWLEDGED_S, "LeaderNotAvailable.* has no leader"),
    },
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A time in which a reply topic takes no answers. Unix milliseconds."""

    fault: str  # its kind, and when it came
    topic: str
    started_ms: float
    ended_ms: float
    message: re.Pattern[str]  # in the letters of good requests

    def covers(self, topic: str | None, at_ms: float) -> bool:
        """Whether an answer to this topic may be a dead letter of this time."""
        return topic == self.topic and self.started_ms <= at_ms <= self.ended_ms


def refusals(faults: Collection[Injected], delivery: str) -> Iterator[Refusal]:
    """By the faults of a run that were injected."""
    rules = _RULES[delivery]
    for fault in faults:
        rule = rules.get(fault.kind)
        if rule is None or fault.error:
            continue
        started, ended = fault.started + rule.begins_s, last_letter_at(fault, faults)
        for topic in rule.topics:
            yield Refusal(fault.name, topic, 1e3 * started, 1e3 * ended, re.compile(rule.message))


def last_letter_at(fault: Injected, faults: Collection[Injected]) -> float:
    """Until when letters of a fault may be written: they wait for their leaders, which other faults may take away."""
    ended = fault.ended
    of_brokers = [one for one in faults if one.kind in OF_BROKERS and not one.error]
    for other in sorted(of_brokers, key=lambda one: one.started):
        if other.ended > ended and other.started <= ended + AFTER_S:
            ended = other.ended
    return ended + AFTER_S


def is_denial(event: Mapping[str, Any], faults: Sequence[Injected]) -> bool:
    """Whether aiokafka reports with a traceback what Kafka denies while a fault has taken a privilege away."""
    is_library = str(event.get("logger", "")).startswith("aiokafka")
    if not is_library or "AuthorizationFailed" not in str(event.get("exception", "")).rpartition("\n")[2]:
        return False
    at = datetime.fromisoformat(event["timestamp"]).timestamp()
    taken = [one for one in faults if one.kind in _OF_PRIVILEGES and not one.error]
    return any(one.started <= at <= one.ended + AFTER_S for one in taken)
