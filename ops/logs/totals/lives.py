"""The lives of the workers: starts, ends, restarts, rebalances, and silences of a log."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.text import duration
from penstock.ops.logs.totals.rejections import Span, widened

_MIN_GAP_S = 30.0  # a worker with work logs its load every 10 s
_MAX_KEPT = 2_000
_ASSIGNED, _REVOKED = "partitions_assigned", "partitions_revoked"
NAMES = {
    *("worker_starting", "member_started", "worker_ready", "member_idle", _ASSIGNED, _REVOKED, "partition_fenced"),
    *("roll_started", "roll_finished", "roll_failed", "stopping", "stopped", "supervisor_stopped", "could_not_start"),
    *("member_exited", "member_unresponsive", "member_failed", "engine_unhealthy", "owner_died", "lane_hung"),
    *("device_given_up", "offsets_skipped", "topic_recreated", "log_truncated"),
}
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MAX_PARTITIONS = 1000  # of one range


class Lives:
    """Counts, and the latest events, of which at most 2,000 are kept."""

    def __init__(self) -> None:
        self.counts = {"start": 0, "restart": 0, "death": 0, "rebalance": 0}  # restart: by a supervisor after an end
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        """Any event. Sources may come one after another."""
        fields, name = event.fields, event.name
        if name not in NAMES:
            return
        is_failure = "signal" in fields or bool(fields.get("exit_code"))
        self.counts["start"] += name == "worker_starting"
        self.counts["rebalance"] += name == _ASSIGNED
        self.counts["death"] += name == "engine_unhealthy" or (name == "member_exited" and is_failure)
        self.counts["restart"] += name == "member_exited" and ("restart_in_s" in fields or "replaced_by" in fields)
        self.events.append(event)
        if len(self.events) >= 2 * _MAX_KEPT:
            self.events = self.events[-_MAX_KEPT:]

    @property
    def by_time(self) -> list[Event]:
        """The events that are kept."""
        return sorted(self.events, key=lambda event: event.time_s or 0.0)


class Gap(NamedTuple):
    """A time in which a log has no line."""

    source: int
    start_s: float
    end_s: float


class Gaps:
    """Finds the silences of each source. Lines within a block may be in any order."""

    def __init__(self) -> None:
        self.longest: list[Gap] = []
        self.count = 0
        self.num_steps_back = 0  # blocks of lines earlier than all of the block before: a clock that was set back
        self.span_s: Span = None
        self._last: dict[int, float] = {}

    def add(self, source: int, times_s: npt.NDArray[np.float64]) -> None:
        """The times of a block."""
        if not len(times_s):
            return
        first_s, last_s = float(times_s.min()), float(times_s.max())
        self.span_s = widened(widened(self.span_s, first_s), last_s)
        before_s = self._last.get(source, first_s)
        if last_s < before_s - _MIN_GAP_S:
            self.num_steps_back += 1
            before_s = first_s
        ordered = np.sort(np.append(times_s[times_s > before_s], before_s))
        places = np.flatnonzero(np.diff(ordered) > _MIN_GAP_S)
        gaps = [Gap(source, float(ordered[place]), float(ordered[place + 1])) for place in places]
        self.count += len(gaps)
        self._last[source] = float(ordered[-1])
        self.longest = sorted([*self.longest, *gaps], key=lambda gap: gap.start_s - gap.end_s)[:20]


def held_twice_s(events: Sequence[Event], log_of: Callable[[int], str]) -> float:
    """The longest time for which, by their clocks, workers of two logs held one partition; 0 without any.

    A worker gives a partition up before the next one gets it: the clocks of hosts differ, or a worker was evicted.
    `log_of`: the name of a source's log.
    """
    changes: dict[tuple[str, str], list[tuple[float, Event]]] = {}  # by log and worker, in order of time
    timed = [(event.time_s, event) for event in events if event.name in (_ASSIGNED, _REVOKED) and event.time_s]
    for time_s, event in sorted(timed, key=lambda one: one[0]):
        worker = log_of(event.source), str(event.fields.get("worker"))
        changes.setdefault(worker, []).append((time_s, event))
    held: dict[tuple[str, int], list[tuple[float, float, str]]] = {}  # from when, until when, in which log
    for (log, _), of_worker in changes.items():
        for (start_s, event), following in zip_longest(of_worker, of_worker[1:]):
            # A time before all: it was not revoked, as where the worker was killed.
            end_s = following[0] if following is not None and following[1].name == _REVOKED else -1.0
            for partition in _partitions(event) if event.name == _ASSIGNED else ():
                held.setdefault(partition, []).append((start_s, end_s, log))
    pairs = [pair for spans in held.values() for pair in pairwise(sorted(spans))]
    return max([end_s - start_s for (_, end_s, log), (start_s, _, other) in pairs if log != other] + [0.0])


def _partitions(event: Event) -> Iterator[tuple[str, int]]:
    """Topics and partitions of `{"topic": "0-3,7"}`."""
    by_topic = event.fields.get("partitions")
    for topic, texts in by_topic.items() if isinstance(by_topic, dict) else ():
        for first, last in _RANGE.findall(str(texts)):
            end = int(last or first)
            yield from ((topic, number) for number in range(int(first), min(end, int(first) + _MAX_PARTITIONS) + 1))


def sentence(event: Event) -> str:
    """The sentence of an event of NAMES, for a list."""
    fields, name = event.fields, event.name
    match name:
        case "partitions_assigned" | "partitions_revoked":
            parts = fields.get("partitions")
            shown = ", ".join(sorted(set(map(str, parts.values())))) if isinstance(parts, dict) else str(parts)
            shown = shown if len(shown) <= 70 else shown[:69] + "…"
            return f"{'got' if name == _ASSIGNED else 'gave up'} partitions {shown}"
        case "member_exited":
            how = f"by {fields['signal']}" if "signal" in fields else f"with code {fields.get('exit_code')}"
            again = f", starts again in {fields['restart_in_s']} s" if "restart_in_s" in fields else ""
            rolled = ", replaced" if "replaced_by" in fields else ""
            uptime_s = event.number("uptime_s")
            return f"exited {how} after {'?' if uptime_s is None else duration(uptime_s)}{again}{rolled}"
        case "worker_ready":
            return f"ready, model {fields.get('model')}"
        case "stopped":
            return f"stopped after {fields.get('answered')} answers"
        case "owner_died":
            return "the last owner of a partition died"
        case "offsets_skipped":
            which = f"{fields.get('first')} to {fields.get('last')} of {fields.get('partition')}"
            return f"offsets {which} were deleted unread ({fields.get('cause')})"
        case "topic_recreated":
            return f"{fields.get('topic')} was deleted and created again"
    return name.replace("_", " ")
