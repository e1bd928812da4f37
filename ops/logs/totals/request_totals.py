"""Requests, added up: the stages of sampled ones, the slowest, and rejections by code."""

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.line_columns import Found
from penstock.ops.logs.totals.histogram import LogHistogram
from penstock.ops.logs.totals.samples import STAGES, Samples, event_of

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
        """One line about several requests."""
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
        self.num_ahead = 0  # requests whose producer's clock was ahead of the worker's
        self.refused: dict[str, Rejected] = {}  # by code
        self.problems: dict[str, Rejected] = {}  # other lines of level warning and worse, by event
        self.events: Counter[str] = Counter()
        self._slowest: list[tuple[float, int, Event]] = []
        self._number = count()

    def add(self, event: Event) -> None:
        """Any event but request_done, and but a request_refused of `add_refused`."""
        name = event.name
        self._count(name, 1)
        if name == "request_refused":
            code, records = event.text("code") or "?", event.number("records")
            _of(self.refused, code).add(event, 1 if records is None else int(records))
        elif event.level in ("warning", "error", "critical"):
            _of(self.problems, name).add(event, 1)

    @property
    def slowest(self) -> list[Event]:
        """The slowest requests that were logged, slowest first."""
        return [event for _, _, event in sorted(self._slowest, reverse=True)]

    def add_samples(self, samples: Samples) -> None:
        """Requests of request_done."""
        if not len(samples.is_first):
            return
        self._count("request_done", len(samples.is_first))
        total_ms = samples.stages_ms["total"]
        least_ms = self._slowest[0][0] if len(self._slowest) == NUM_SLOWEST else -math.inf
        rows = np.flatnonzero(total_ms > least_ms)
        slowest = rows[np.argsort(-total_ms[rows], kind="stable")[:NUM_SLOWEST]]
        for row in sorted(slowest.tolist()):
            self._keep_slowest(float(total_ms[row]), samples.event(row))
        for stage, column in samples.stages_ms.items():
            self.stages[stage].add(column[samples.is_first & ~np.isnan(column)] / 1e3)
        self.num_ahead += int((samples.stages_ms["kafka"][samples.is_first] < -1.0).sum())

    def add_refused(self, found: Found, source: int) -> None:
        """Lines of request_refused."""
        self._count("request_refused", len(found.places))
        codes, times_s = found.values["code"], found.values["timestamp"]
        for number in np.unique(codes).tolist():
            rows = np.flatnonzero(codes == number)
            rows = rows[np.argsort(times_s[rows], kind="stable")]
            first, last = int(rows[0]), int(rows[-1])
            refused = _of(self.refused, found.texts[int(number)] or "?")
            refused.add(event_of(found, first, source), 0)
            refused.add(event_of(found, last, source), int(found.values["records"][rows].sum()))

    def _count(self, name: str, number: int) -> None:
        self.events[name if name in self.events or len(self.events) < _MAX_CODES else "…"] += number

    def _keep_slowest(self, total_ms: float, event: Event) -> None:
        if len(self._slowest) < NUM_SLOWEST:
            heapq.heappush(self._slowest, (total_ms, next(self._number), event))
        elif total_ms > self._slowest[0][0]:
            heapq.heapreplace(self._slowest, (total_ms, next(self._number), event))


def _of(table: dict[str, Rejected], key: str) -> Rejected:
    return table.setdefault(key if key in table or len(table) < _MAX_CODES else "…", Rejected())
