"""Partitions that two workers held at once, by their clocks: clocks of hosts differ, or a worker was evicted."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.ops.logs.lines.event import Event

_ASSIGNED, _REVOKED = "partitions_assigned", "partitions_revoked"
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MAX_PARTITIONS = 1000  # of one range


class _Held(NamedTuple):
    """The time from a partition's assignment to its revocation."""

    start_s: float
    end_s: float  # negative: it was not revoked, as where the worker was killed
    log: str


def held_twice_s(events: Sequence[Event], log_of: Callable[[int], str]) -> float:
    """The longest time for which workers of two logs held one partition; 0 without any.

    A worker gives a partition up before the next one gets it. `log_of`: the name of a source's log.
    """
    held: dict[tuple[str, int], list[_Held]] = {}
    of_worker: dict[tuple[str, str], dict[tuple[str, int], float]] = {}  # the partitions that it has, and since when
    timed = sorted((event.time_s, place) for place, event in enumerate(events) if event.time_s is not None)
    for time_s, place in timed:
        event = events[place]
        if event.name not in (_ASSIGNED, _REVOKED):
            continue
        log = log_of(event.source)
        has = of_worker.setdefault((log, str(event.fields.get("worker"))), {})
        for partition, start_s in has.items():
            held.setdefault(partition, []).append(_Held(start_s, time_s if event.name == _REVOKED else -1.0, log))
        has.clear()
        if event.name == _ASSIGNED:
            has.update(dict.fromkeys(_partitions(event), time_s))
    for (log, _), has in of_worker.items():
        for partition, start_s in has.items():
            held.setdefault(partition, []).append(_Held(start_s, -1.0, log))
    return max((_longest(spans) for spans in held.values()), default=0.0)


def _longest(spans: list[_Held]) -> float:
    pairs = pairwise(sorted(spans))
    return max([one.end_s - other.start_s for one, other in pairs if one.log != other.log] + [0.0])


def _partitions(event: Event) -> Iterator[tuple[str, int]]:
    """Topics and partitions of `{"topic": "0-3,7"}`."""
    by_topic = event.fields.get("partitions")
    for topic, texts in by_topic.items() if isinstance(by_topic, dict) else ():
        for first, last in _RANGE.findall(str(texts)):
            end = int(last or first)
            yield from ((topic, number) for number in range(int(first), min(end, int(first) + _MAX_PARTITIONS) + 1))
