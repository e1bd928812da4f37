"""Requests, added up: the stages of sampled ones, and the slowest; and lines by event."""

import heapq
import math
from collections import Counter
from itertools import count

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.totals.histogram import LogHistogram
from penstock.ops.logs.totals.rejections import Rejected, left_out_before
from penstock.ops.logs.totals.samples import CLASSES, STAGES, Samples

NUM_SLOWEST = 100
_MAX_EVENTS = 200


class RequestTotals:
    """`request_done` has two requests of each second of each worker: the first, and the slowest online one."""

    def __init__(self) -> None:
        # By class, then by stage; of the first ones, which are a fair sample.
        self.stages = {name: {stage: LogHistogram() for stage in STAGES} for name in CLASSES}
        self.num_ahead = 0  # requests whose producer's clock was ahead of the worker's
        self.problems: dict[str, Rejected] = {}  # other lines of level warning and worse, by event
        self.events: Counter[str] = Counter()
        self._slowest: dict[str, list[tuple[float, int, Event]]] = {name: [] for name in CLASSES}
        self._number = count()

    def add(self, event: Event) -> None:
        """Any event but request_done."""
        self.count(event.name, 1)
        if event.name != "request_refused" and event.level in ("warning", "error", "critical"):
            key = event.name if event.name in self.problems or len(self.problems) < _MAX_EVENTS else "…"
            self.problems.setdefault(key, Rejected()).add(event, 1 + left_out_before(event))

    def slowest(self, name: str) -> list[Event]:
        """The slowest requests of a class that were logged, slowest first."""
        return [event for _, _, event in sorted(self._slowest[name], reverse=True)]

    def add_samples(self, samples: Samples) -> None:
        """Requests of request_done."""
        if not len(samples.is_first):
            return
        self.count("request_done", len(samples.is_first))
        for name, is_of_class in zip(CLASSES, (~samples.is_bulk, samples.is_bulk), strict=True):
            self._keep_slowest(self._slowest[name], samples, is_of_class)
            for stage, column in samples.stages_ms.items():
                self.stages[name][stage].add(column[is_of_class & samples.is_first & ~np.isnan(column)] / 1e3)
        self.num_ahead += int((samples.stages_ms["kafka"][samples.is_first] < -1.0).sum())

    def count(self, name: str, number: int) -> None:
        """Lines of an event."""
        self.events[name if name in self.events or len(self.events) < _MAX_EVENTS else "…"] += number

    def _keep_slowest(
        self, kept: list[tuple[float, int, Event]], samples: Samples, is_of_class: npt.NDArray[np.bool_]
    ) -> None:
        total_ms = samples.stages_ms["total"]
        least_ms = kept[0][0] if len(kept) == NUM_SLOWEST else -math.inf
        rows = np.flatnonzero(is_of_class & (total_ms > least_ms))
        slowest = rows[np.argsort(-total_ms[rows], kind="stable")[:NUM_SLOWEST]]
        for row in sorted(slowest.tolist()):
            one = (float(total_ms[row]), next(self._number), samples.event(row))
            if len(kept) < NUM_SLOWEST:
                heapq.heappush(kept, one)
            elif one[0] > kept[0][0]:
                heapq.heapreplace(kept, one)
