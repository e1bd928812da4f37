"""Requests, added up: the stages of sampled ones, the slowest, and rejections by code."""

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from penstock.ops.logs.event import Event, number
from penstock.ops.logs.histogram import LogHistogram

STAGES = ("kafka", "tokenize", "cache", "schedule", "compute", "total")  # the fields of request_done are STAGE_ms
NUM_SLOWEST = 100
_MAX_CODES = 200


@dataclass(slots=True)
class Rejected:
    """The requests that were rejected with one code, or the lines of one event."""

    count: int = 0
    first_s: float | None = None
    last_s: float | None = None
    example: Event | None = None  # the latest
    sources: set[int] = field(default_factory=set)

    def add(self, event: Event, records: int) -> None:
        """One line about so many."""
        self.count += records
        self.example = event
        self.sources.add(event.source)
        if event.time_s is not None:
            self.first_s = event.time_s if self.first_s is None else min(self.first_s, event.time_s)
            self.last_s = event.time_s if self.last_s is None else max(self.last_s, event.time_s)


class RequestTotals:
    """`request_done` has two requests of each second of each worker: the first, and the slowest online one."""

    def __init__(self) -> None:
        self.stages = {stage: LogHistogram() for stage in STAGES}  # of the first ones: a fair sample
        self._times = [(f"{stage}_ms", times) for stage, times in self.stages.items()]  # by their fields
        self.num_ahead = 0  # requests whose producer's clock was ahead of the worker's
        self.refused: dict[str, Rejected] = {}  # by code
        self.problems: dict[str, Rejected] = {}  # other lines of level warning and worse, by event
        self.events: Counter[str] = Counter()
        self._slowest: list[tuple[float, int, Event]] = []
        self._number = count()

    def add(self, event: Event) -> None:
        """Any event."""
        name = event.name
        self.events[name if name in self.events or len(self.events) < _MAX_CODES else "…"] += 1
        if name == "request_done":
            self._add_sample(event)
        elif name == "request_refused":
            code, records = event.text("code") or "?", event.number("records")
            _of(self.refused, code).add(event, 1 if records is None else int(records))
        elif event.level in ("warning", "error", "critical"):
            _of(self.problems, name).add(event, 1)

    @property
    def slowest(self) -> list[Event]:
        """The slowest requests that were logged, slowest first."""
        return [event for _, _, event in sorted(self._slowest, reverse=True)]

    def _add_sample(self, event: Event) -> None:
        total = event.number("total_ms")
        if total is not None:
            self._keep_slowest(total, event)
        if event.fields.get("sample") != "first":
            return
        for stage, times in self._times:
            time_ms = number(event.fields.get(stage))
            if time_ms is not None:
                times.add_one(time_ms / 1e3)
        self.num_ahead += (event.number("kafka_ms") or 0.0) < -1.0

    def _keep_slowest(self, total_ms: float, event: Event) -> None:
        if len(self._slowest) < NUM_SLOWEST:
            heapq.heappush(self._slowest, (total_ms, next(self._number), event))
        elif total_ms > self._slowest[0][0]:
            heapq.heapreplace(self._slowest, (total_ms, next(self._number), event))


def _of(table: dict[str, Rejected], key: str) -> Rejected:
    return table.setdefault(key if key in table or len(table) < _MAX_CODES else "…", Rejected())
