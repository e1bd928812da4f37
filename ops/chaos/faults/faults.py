"""All faults of the chaos suite by their kinds, the order in which they come, and a record of each with its times."""

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from penstock.ops.chaos.faults import broker_faults, cache_faults, member_faults, topic_faults
from penstock.ops.chaos.faults.scene import Effect, NotInjectedError, Scene

OF_BROKERS = frozenset({"broker_killed", "broker_restarted", "broker_suspended", "no_leader"})
_WITHOUT_QUORUM = "no_leader"  # of two controllers
_OF_CONTROLLERS = frozenset({"partitions_added", "replies_refused", "access_revoked"})
_FAULTS: Mapping[str, Callable[[Scene, random.Random], Awaitable[Effect]]] = {
    "member_killed": member_faults.member_killed,
    "broker_killed": broker_faults.broker_killed,
    "rebalance_storm": topic_faults.rebalance_storm,
    "supervisor_killed": member_faults.supervisor_killed,
    "broker_suspended": broker_faults.broker_suspended,
    "engine_hung": member_faults.engine_hung,
    "rolled": member_faults.rolled,
    "no_leader": broker_faults.no_leader,
    "member_suspended": member_faults.member_suspended,
    "broker_restarted": broker_faults.broker_restarted,
    "partitions_added": topic_faults.partitions_added,
    "disk_full": cache_faults.disk_full,
    "cache_locked": cache_faults.cache_locked,
    "cache_damaged": cache_faults.cache_damaged,
    "clock_stepped": member_faults.clock_stepped,
    "replies_copied": topic_faults.replies_copied,
    "replies_refused": topic_faults.replies_refused,
    "access_revoked": topic_faults.access_revoked,
    "registry_restarted": broker_faults.registry_restarted,
}
KINDS = tuple(kind for kind in _FAULTS if kind != "registry_restarted")  # of requests
OF_LOADS: Mapping[str, Sequence[str]] = {
    "requests": KINDS,
    "routes": (
        *("member_killed", "registry_restarted", "rolled", "broker_killed", "supervisor_killed", "rebalance_storm"),
        *("broker_restarted", "member_suspended", "broker_suspended", "engine_hung"),
    ),
}
_STAGGER_S = 3.0  # faults that come together begin within this time


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault as it happened. Unix seconds."""

    kind: str
    started: float
    ended: float
    beside: Sequence[str] = ()  # kinds that came together with it
    error: str = ""  # why it could not be injected
    effect: Effect = field(default_factory=dict)  # what it did
    at_s: float = 0.0  # after the start of the run

    @property
    def name(self) -> str:
        """Which fault of a run it is."""
        return f"{self.kind} at {self.at_s:.0f} s"


class Faults:
    """Injects faults and records them in the order of their ends."""

    def __init__(self, scene: Scene) -> None:
        self.injected: list[Injected] = []
        self._created = time.time()
        self._scene = scene

    async def inject(self, kinds: Sequence[str], rng: random.Random) -> None:
        """Inject and undo faults of these kinds together. Failure to inject one is recorded, not raised."""
        seeds = [random.Random(rng.random()) for _ in kinds]
        delays_s = [0.0, *[rng.uniform(0, _STAGGER_S) for _ in kinds[1:]]]
        await asyncio.gather(*map(self._inject, kinds, [kinds] * len(kinds), seeds, delays_s))

    async def _inject(self, kind: str, kinds: Sequence[str], rng: random.Random, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        started, error, effect = time.time(), "", dict[str, object]()
        try:
            effect |= await _FAULTS[kind](self._scene, rng)
        except (NotInjectedError, KafkaException, OSError, sqlite3.Error) as failure:
            error = repr(failure)
        beside = [other for other in kinds if other != kind]
        at_s = round(started - self._created, 1)
        self.injected.append(Injected(kind, started, time.time(), beside, error, effect, at_s))

    def missing(self, kinds: Sequence[str]) -> list[str]:
        """Those of these kinds that never came."""
        came = {fault.kind for fault in self.injected if not fault.error}
        return [kind for kind in kinds if kind not in came]


def moments(kinds: Sequence[str], most_at_once: int, rng: random.Random) -> Iterator[Sequence[str]]:
    """Faults to inject together, without end where there are kinds. Rounds have each kind once, in random order.

    In every other round, the first among them, each fault comes alone. In the others two to `most_at_once` come
    together, of which at most one is of brokers. What only the controllers can do and undo does not come while two of
    them are away.
    """
    is_alone = True
    while kinds:
        waiting = rng.sample(kinds, len(kinds))
        while waiting:
            yield _taken(waiting, 1 if is_alone or most_at_once < 2 else rng.randint(2, most_at_once))
        is_alone = not is_alone


def _taken(waiting: list[str], size: int) -> list[str]:
    """Take the first kinds that may come together, at most so many."""
    together: list[str] = []
    for kind in list(waiting):
        if len(together) < size and not any(_exclude(kind, other) for other in together):
            together.append(kind)
            waiting.remove(kind)
    return together


def _exclude(kind: str, other: str) -> bool:
    """Whether these must not come together."""
    if {kind, other} <= OF_BROKERS:
        return True
    return _WITHOUT_QUORUM in (kind, other) and not _OF_CONTROLLERS.isdisjoint((kind, other))
