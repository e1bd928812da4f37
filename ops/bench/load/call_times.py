"""Calls of one load, merged from all client processes, and the figures made of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from penstock.ops.bench.load.loads import Load

Floats = npt.NDArray[np.float64]

BIN_S = 0.5  # of a timeline
NORMAL_FACTOR, NORMAL_SLACK_S = 1.5, 0.005  # p99 up to 1.5 times that before, and 5 ms, is normal
_UNTOUCHED_S = 1.0  # calls that were due so long before an event were answered before it


@dataclass(frozen=True, slots=True)
class CallTimes:
    """One entry a call; times in seconds from the start of the load."""

    begun: Floats  # when it was due (open loop), or sent
    finished: Floats
    answered: Floats  # sequences with a result
    failed: Floats  # sequences without

    @classmethod
    def of(cls, calls: Iterable[tuple[float, float, int, int]]) -> Self:
        """Of (begun, finished, answered, failed)."""
        table = np.array(list(calls), np.float64).reshape(-1, 4)
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3])

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """The calls of several files of `write`."""
        table = np.concatenate([np.load(path) for path in paths])
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3])

    def write(self, path: Path) -> None:
        np.save(path, np.stack([self.begun, self.finished, self.answered, self.failed], axis=1))

    def begun_within(self, start_s: float, end_s: float) -> "CallTimes":
        """Calls that were due in a time span."""
        chosen = (self.begun >= start_s) & (self.begun < end_s)
        return CallTimes(self.begun[chosen], self.finished[chosen], self.answered[chosen], self.failed[chosen])

    def answers_per_s(self, start_s: float, end_s: float) -> float:
        """Sequences answered in a time span, whenever they were sent."""
        chosen = (self.finished >= start_s) & (self.finished < end_s)
        return float(self.answered[chosen].sum()) / (end_s - start_s)

    def latencies_s(self) -> Floats:
        """Of each call; infinite where a sequence of it has no result."""
        return np.where(self.failed > 0, np.inf, self.finished - self.begun)

    def percentile_s(self, percent: float) -> float:
        """Latency that `percent` of the calls do not exceed."""
        if not len(self.begun):
            return float("nan")
        return float(np.percentile(self.latencies_s(), percent, method="higher"))

    def in_time_per_s(self, deadline_s: float, seconds: float) -> float:
        """Sequences answered within `deadline_s` of the time at which they were due."""
        return float(self.answered[self.finished - self.begun <= deadline_s].sum()) / seconds


def figures(load: Load, calls: CallTimes) -> dict[str, float]:
    """Figures of the measured seconds."""
    measured = calls.begun_within(load.warm_s, load.span_s)
    sequences = float(measured.answered.sum() + measured.failed.sum())
    found = {
        "requests_per_s": calls.answers_per_s(load.warm_s, load.span_s),
        "p50_ms": measured.percentile_s(50) * 1e3,
        "p99_ms": measured.percentile_s(99) * 1e3,
        "max_ms": measured.percentile_s(100) * 1e3,
        "sequences": sequences,
        "not_answered": float(measured.failed.sum()),
    }
    if load.is_open:
        found["offered_per_s"] = sequences / load.seconds
        found["answered_share"] = float(measured.answered.sum()) / max(1.0, sequences)
        found["in_time_per_s"] = measured.in_time_per_s(load.timeout_s, load.seconds)
    return found


def timeline(calls: CallTimes, start_s: float, end_s: float) -> list[dict[str, float]]:
    """p99, and sequences without an answer, of the calls that were due in each bin."""
    bins = [calls.begun_within(at, at + BIN_S) for at in np.arange(start_s, end_s - BIN_S / 2, BIN_S)]
    return [
        {"at_s": start_s + index * BIN_S, "p99_ms": found.percentile_s(99) * 1e3, "lost": float(found.failed.sum())}
        for index, found in enumerate(bins)
    ]


def recovery_s(calls: CallTimes, start_s: float, event_s: float, end_s: float) -> float:
    """Seconds from an event to the last bin whose p99 is not as before it; infinite if the last bin is such a one.

    "As before" is a p99 up to NORMAL_FACTOR times that of the calls due from `start_s` until a second before the event,
    and NORMAL_SLACK_S more.
    """
    before_ms = calls.begun_within(start_s, event_s - _UNTOUCHED_S).percentile_s(99) * 1e3
    limit_ms = NORMAL_FACTOR * before_ms + NORMAL_SLACK_S * 1e3
    bins = timeline(calls, event_s, end_s)
    late = [index for index, found in enumerate(bins) if not found["p99_ms"] <= limit_ms]
    if not late:
        return 0.0
    return float("inf") if late[-1] == len(bins) - 1 else (late[-1] + 1) * BIN_S
