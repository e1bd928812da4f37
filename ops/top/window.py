"""Counts of a member during the last seconds: differences of scrapes, through restarts."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from penstock.ops.top.scrape import SampleKey, Values

_COUNTED = ("_total", "_bucket", "_count", "_sum")  # ends of names of samples that only grow


class Counted(NamedTuple):
    """Counts of some seconds."""

    seconds: float
    counts: Values

    def rate(self, name: str, **labels: str) -> float:
        """The sum of all series of a name that have these labels, a second."""
        return sum(value for _, value in self._series(name, labels)) / self.seconds

    def quantile(self, histogram: str, part: float, **labels: str) -> float | None:
        """A quantile, straight within a bucket; the greatest finite bound beyond it. None without observations."""
        buckets: defaultdict[float, float] = defaultdict(float)
        for key, value in self._series(f"{histogram}_bucket", labels):
            buckets[float(key.label("le"))] += value
        bounds = sorted(buckets)
        if not bounds or buckets[bounds[-1]] <= 0:
            return None
        rank = part * buckets[bounds[-1]]
        for low, high in pairwise([0.0, *bounds]):
            below = buckets.get(low, 0.0)
            if buckets[high] >= rank:
                is_last = high == float("inf")
                return low if is_last else low + (high - low) * (rank - below) / max(buckets[high] - below, 1e-9)
        return bounds[-2]

    def _series(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[SampleKey, float]]:
        wanted = set(labels.items())
        return ((key, value) for key, value in self.counts.items() if key.name == name and wanted <= set(key.labels))


class Window:
    """The scrapes of one member during the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._last: tuple[float, dict[SampleKey, float]] | None = None
        self._steps: deque[tuple[float, Counted]] = deque()  # by the time of their end

    def add(self, time_s: float, values: Values) -> None:
        """A scrape. A counter that is less than before was set back by a restart: all count from 0 then, as it did."""
        counters = {key: value for key, value in values.items() if key.name.endswith(_COUNTED)}
        if self._last is not None and time_s > self._last[0]:
            before_s, before = self._last
            if any(value < before.get(key, 0.0) for key, value in counters.items()):
                before = {}
            counts = {key: value - before.get(key, 0.0) for key, value in counters.items()}
            self._steps.append((time_s, Counted(time_s - before_s, counts)))
        self._last = time_s, counters
        while self._steps and self._steps[0][0] - self._steps[0][1].seconds < time_s - self._span_s - 1e-6:
            if len(self._steps) == 1:
                break
            self._steps.popleft()

    def counted(self) -> Counted | None:
        """All of the window. None before the second scrape."""
        if not self._steps:
            return None
        counts = _added(step.counts for _, step in self._steps)
        return Counted(sum(step.seconds for _, step in self._steps), counts)


def together(members: Iterable[Counted]) -> Counted:
    """Counts of several members in a second, whatever the lengths of their windows."""
    rates = ({key: value / one.seconds for key, value in one.counts.items()} for one in members)
    return Counted(1.0, _added(rates))


def _added(several: Iterable[Values]) -> Values:
    sums: defaultdict[SampleKey, float] = defaultdict(float)
    for counts in several:
        for key, value in counts.items():
            sums[key] += value
    return sums
