"""The effect of each fault on requests, and whether those that came alone kept their bounds."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from penstock.ops.chaos.faults.faults import Injected
from penstock.ops.chaos.verdict.latencies import MOST_P99_S, MOST_RECOVERY_S, Latencies

KILLS, ROLLS = frozenset({"member_killed", "supervisor_killed"}), frozenset({"rolled"})
# Violations of bounds of time. They are promised for a machine on which nothing else runs.
SLOW_RECOVERY, SLOW_ROLL = "slow_recovery", "slow_roll"

Effect = Mapping[str, Any]


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
