"""Requests, added up: the stages of sampled ones, and the slowest; and lines by event."""

import heapq
import math
from collections import Counter
from itertools import count

import numpy as np

from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.totals.histogram import LogHistogram
from penstock.ops.logs.totals.rejections import Rejected, left_out_before
from penstock.ops.logs.totals.samples import STAGES, Samples

NUM_SLOWEST = 100
_MAX_EVENTS = 200


class RequestTotals:
    """`request_done` has two requests of each second of each worker: the first, and the slowest online one."""

    def __init__(self) -> None:
        self.stages = {stage: LogHistogram() for stage in STAGES}  # of the first ones: a fair sample
        self.num_ahead = 0  # requests whose producer's clock was ahead of the worker's
        self.problems: dict[str, Rejected] = {}  # other lines of level warning and worse, by event
        self.events: Counter[str] = Counter()
        self._slowest: list[tuple[float, int, Event]] = []
        self._number = count()

    def add(self, event: Event) -> None:
        """Any event but request_done."""
        self.count(event.name, 1)
        if event.name != "request_refused" and event.level in ("warning", "error", "critical"):
            key = event.name if event.name in self.problems or len(self.problems) < _MAX_EVENTS else "…"
            self.problems.setdefault(key, Rejected()).add(event, 1 + left_out_before(event))

    @property
    def slowest(self) -> list[Event]:
        """The slowest requests that were logged, slowest first."""
        return [event for _, _, event in sorted(self._slowest, reverse=True)]

    def add_samples(self, samples: Samples) -> None:
        """Requests of request_done."""
        if not len(samples.is_first):
            return
        self.count("request_done", len(samples.is_first))
        total_ms = samples.stages_ms["total"]
        least_ms = self._slowest[0][0] if len(self._slowest) == NUM_SLOWEST else -math.inf
        rows = np.flatnonzero(total_ms > least_ms)
        slowest = rows[np.argsort(-total_ms[rows], kind="stable")[:NUM_SLOWEST]]
        for row in sorted(slowest.tolist()):
            self._keep_slowest(float(total_ms[row]), samples.event(row))
        for stage, column in samples.stages_ms.items():
            self.stages[stage].add(column[samples.is_first & ~np.isnan(column)] / 1e3)
        self.num_ahead += int((samples.stages_ms["kafka"][samples.is_first] < -1.0).sum())

    def count(self, name: str, number: int) -> None:
        """Lines of an event."""
        self.events[name if name in self.events or len(self.events) < _MAX_EVENTS else "…"] += number

    def _keep_slowest(self, total_ms: float, event: Event) -> None:
        if len(self._slowest) < NUM_SLOWEST:
            heapq.heappush(self._slowest, (total_ms, next(self._number), event))
        elif total_ms > self._slowest[0][0]:
            heapq.heapreplace(self._slowest, (total_ms, next(self._number), event))
