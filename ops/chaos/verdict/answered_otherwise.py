"""Good requests that did not get their results: what they got instead, and which faults came meanwhile."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from penstock.ops.chaos.faults.faults import Injected
from penstock.ops.chaos.load.asked import Asked

LETTER = "dead letter"
_NOTHING, _NO_FAULT = "nothing", "no fault"
_TOLD = ("by_outcome", "by_fault")


def answered_otherwise(requests: Iterable[Asked], faults: Collection[Injected]) -> dict[str, Any]:
    """Their number, by outcome and by faults. It is no violation where the manual says so, and told in any case."""
    by_outcome: Counter[str] = Counter()
    by_fault: Counter[str] = Counter()
    for asked in requests:
        if asked.is_good and not asked.has_reply:
            by_outcome[_outcome(asked)] += 1
            by_fault[_cause(asked, faults)] += 1
    return {"requests": by_outcome.total(), "by_outcome": dict(by_outcome), "by_fault": dict(by_fault)}


def verdict(num_good: int, otherwise: dict[str, Any], violations: Counter[str], missing: Collection[str]) -> str:
    """Of a run, in a few sentences. `missing`: kinds of faults that never came."""
    broken = ", ".join(f"{number:,} {kind}" for kind, number in sorted(violations.items()))
    sentences = [f"Broken promises: {broken}." if broken else "No promise was broken."]
    if otherwise["requests"]:
        shown = [", ".join(f"{number:,} {name}" for name, number in otherwise[by].items()) for by in _TOLD]
        told = f"{otherwise['requests']:,} of {num_good:,} good requests did not get their results"
        sentences.append(f"{told}: {shown[0]}; by fault: {shown[1]}.")
    else:
        sentences.append(f"All {num_good:,} good requests got their results.")
    if missing:
        sentences.append(f"Never injected: {', '.join(missing)}.")
    return " ".join(sentences)


def _outcome(asked: Asked) -> str:
    if asked.replies:
        return f"error reply ({asked.replies[0].code})"
    return f"{LETTER} ({asked.letters[0].code})" if asked.letters else _NOTHING


def _cause(asked: Asked, faults: Collection[Injected]) -> str:
    """The fault that excuses its letter, or else those during which it waited."""
    excuses = [letter.refused_by for letter in asked.letters if letter.refused_by]
    if excuses:
        return excuses[0]
    times = [*[one.timestamp for one in asked.replies], *[one.timestamp for one in asked.letters]]
    until = min(times, default=math.inf) / 1e3
    meanwhile = [one.name for one in faults if one.started <= until and one.ended >= asked.timestamp / 1e3]
    return " and ".join(meanwhile) or _NO_FAULT
