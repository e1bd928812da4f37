"""How long requests waited for their first answers, what each fault did to that, and whether its bounds were kept."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.ops.chaos.faults.faults import Injected
from penstock.ops.chaos.load.asked import Asked

# What is promised.
MOST_RECOVERY_S = 15.0  # after SIGKILL of a member or of the supervisor: the session of Kafka's group, and 5 s
MOST_P99_S = 5.0  # while members are rolled

KILLS, ROLLS = frozenset({"member_killed", "supervisor_killed"}), frozenset({"rolled"})
# Violations of bounds of time. They are promised for a machine on which nothing else runs.
SLOW_RECOVERY, SLOW_ROLL = "slow_recovery", "slow_roll"


SLOW_S = 2.0  # an answer that takes longer was held up by a fault
_GAP_S = 1.0  # the last slow request so close to the cut-off may have been followed by others

Effect = Mapping[str, Any]


class Recovery(NamedTuple):
    """How long after a fault the last slow request was sent, and whether slow requests had ended when it was cut off.

    A recovery that is not over took at least so long.
    """

    seconds: float
    is_over: bool


class Latencies:
    """Of all requests of a topic that got an answer in a reply topic. Times are Unix seconds, by the records."""

    def __init__(self, asked: Iterable[Asked], topic: str) -> None:
        online = [one for one in asked if one.replies and one.partition[0] == topic]
        sent_ms = np.array([one.timestamp for one in online], np.float64)
        answered_ms = np.array([min(reply.timestamp for reply in one.replies) for one in online], np.float64)
        order = np.argsort(sent_ms, kind="stable")
        self._sent = sent_ms[order] / 1e3
        self._seconds = (answered_ms - sent_ms)[order] / 1e3

    def recovery(self, since: float, until: float) -> Recovery:
        """The time from `since` to the last request that waited for longer than `SLOW_S`.

        What a fault at `until` delays does not count, so it is cut off `SLOW_S` before, and at the end of the load.
        """
        chosen = slice(*np.searchsorted(self._sent, (since, until - SLOW_S)))
        slow = self._sent[chosen][self._seconds[chosen] > SLOW_S]
        if not len(slow):
            return Recovery(0.0, is_over=True)
        cut_off = min(until - SLOW_S, self._sent[-1])
        return Recovery(float(slow[-1] - since), is_over=bool(slow[-1] < cut_off - _GAP_S))

    def p99_s(self, since: float, until: float) -> float | None:
        """The 99th percentile of the requests that were sent in this time. None if there are none."""
        chosen = self._seconds[slice(*np.searchsorted(self._sent, (since, until)))]
        return float(np.quantile(chosen, 0.99)) if len(chosen) else None


def effects(injected: Collection[Injected], latencies: Latencies, started: float, ended: float) -> Sequence[Effect]:
    """Each fault, in order of their starts. Of one that came alone: the recovery after it, and the p99 during it.

    `started` and `ended` are those of the run, in Unix seconds.
    """
    ordered = sorted(injected, key=lambda fault: fault.started)
    nexts = [*[fault.started for fault in ordered], ended][1:]
    return [_effect(fault, started, until, latencies) for fault, until in zip(ordered, nexts, strict=True)]


def check_effects(faults: Collection[Effect]) -> Iterator[tuple[str, str]]:
    """The kind and the text of each violation."""
    for fault in faults:
        where = f"{fault['kind']} at {fault['at_s']} s"
        if fault["kind"] in KILLS and fault.get("recovery_s", 0.0) > MOST_RECOVERY_S:
            yield SLOW_RECOVERY, f"{where}: {'' if fault['recovered'] else 'at least '}{fault['recovery_s']} s"
        if fault["kind"] in ROLLS and (fault.get("p99_s") or 0.0) > MOST_P99_S:
            yield SLOW_ROLL, f"{where}: {fault['p99_s']} s"


def worst(faults: Collection[Effect], kinds: Collection[str], measure: str) -> float | None:
    """The greatest of a measure among faults of these kinds. None if it was measured of none."""
    found = [fault[measure] for fault in faults if fault["kind"] in kinds and fault.get(measure) is not None]
    return max(found, default=None)


def _effect(fault: Injected, started: float, until: float, latencies: Latencies) -> Effect:
    shown: dict[str, Any] = {
        "kind": fault.kind,
        "at_s": round(fault.started - started, 1),
        "seconds": round(fault.ended - fault.started, 1),
    }
    if fault.error:
        return shown | {"error": fault.error}
    shown |= {"effect": fault.effect}
    if fault.beside:
        return shown | {"beside": [*fault.beside]}
    recovery, p99 = latencies.recovery(fault.started, until), latencies.p99_s(fault.started, fault.ended)
    return shown | {
        "recovery_s": round(recovery.seconds, 1),
        "recovered": recovery.is_over,
        "p99_s": None if p99 is None else round(p99, 3),
    }
