"""The lives of the workers: starts, ends, restarts, rebalances, and silences of a log."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.ops.logs.lines.event import Event, duration

MIN_GAP_S = 30.0  # a worker with work logs its load every 10 s
_MAX_KEPT = 2_000
_STARTS = ("worker_starting", "member_started")
_ENDS = ("stopped", "supervisor_stopped")
_SUDDEN = ("member_exited", "member_unresponsive", "member_failed", "engine_unhealthy", "owner_died", "lane_hung")
_ASSIGNED, _REVOKED = "partitions_assigned", "partitions_revoked"
_OTHERS = (
    "worker_ready",
    "roll_started",
    "roll_finished",
    "roll_failed",
    "device_given_up",
    "could_not_start",
    "stopping",
)
_LOSSES = ("offsets_skipped", "topic_recreated", "log_truncated")
NAMES = frozenset(
    (*_STARTS, *_ENDS, *_SUDDEN, *_LOSSES, _ASSIGNED, _REVOKED, *_OTHERS, "member_idle", "partition_fenced")
)


class Gap(NamedTuple):
    """A time in which a log has no line."""

    source: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class Counts:
    """Number of times."""

    starts: int = 0
    ends: int = 0  # by themselves
    restarts: int = 0  # that a supervisor made after an end
    rebalances: int = 0  # partitions assigned
    deaths: int = 0  # signals and failures


class Lifecycle:
    """Counts, and the latest events, of which at most 2,000 are kept."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        """Any event. Sources may come one after another."""
        if event.name not in NAMES:
            return
        self._count(event)
        self.events.append(event)
        if len(self.events) >= 2 * _MAX_KEPT:
            self.events = self.events[-_MAX_KEPT:]

    def _count(self, event: Event) -> None:
        counts, name = self.counts, event.name
        counts.starts += name in _STARTS[:1]
        counts.ends += name == "stopped"
        counts.rebalances += name == _ASSIGNED
        counts.deaths += name in ("member_exited", "engine_unhealthy") and _is_failure(event.fields)
        counts.restarts += name == "member_exited" and ("restart_in_s" in event.fields or "replaced_by" in event.fields)


def _is_failure(fields: dict[str, Any]) -> bool:
    return "signal" in fields or bool(fields.get("exit_code")) or fields["event"] == "engine_unhealthy"


class Gaps:
    """Finds the silences of each source. Lines within a block may be in any order."""

    def __init__(self) -> None:
        self.longest: list[Gap] = []
        self.count = 0
        self.num_steps_back = 0  # blocks of lines earlier than all of the block before: a clock that was set back
        self._last: dict[int, float] = {}
        self.last_s: dict[int, float] = {}
        self.first_s: dict[int, float] = {}

    def add(self, source: int, times: list[float]) -> None:
        """The distinct times of a block."""
        if not times:
            return
        ordered = sorted(times)
        self.first_s[source] = min(self.first_s.get(source, ordered[0]), ordered[0])
        self.last_s[source] = max(self.last_s.get(source, ordered[-1]), ordered[-1])
        last = self._last.get(source, ordered[0])
        if ordered[-1] < last - MIN_GAP_S:
            self.num_steps_back += 1
            last = ordered[0]
        for time_s in ordered:
            if time_s - last > MIN_GAP_S:
                self.count += 1
                self.longest.append(Gap(source, last, time_s))
            last = max(last, time_s)
        self._last[source] = last
        self.longest = sorted(self.longest, key=lambda gap: gap.start_s - gap.end_s)[:20]


def sentence(event: Event) -> str:
    """The sentence of an event of NAMES, for a list."""
    fields, name = event.fields, event.name
    match name:
        case "partitions_assigned" | "partitions_revoked":
            parts = fields.get("partitions")
            shown = ", ".join(sorted(set(map(str, parts.values())))) if isinstance(parts, dict) else str(parts)
            return f"{'got' if name == _ASSIGNED else 'gave up'} partitions {_shortened(shown)}"
        case "member_exited":
            how = f"by {fields['signal']}" if "signal" in fields else f"with code {fields.get('exit_code')}"
            again = f", starts again in {fields['restart_in_s']} s" if "restart_in_s" in fields else ""
            rolled = ", replaced" if "replaced_by" in fields else ""
            return f"exited {how} after {_seconds(fields.get('uptime_s'))}{again}{rolled}"
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


def _shortened(text: str) -> str:
    return text if len(text) <= 70 else text[:69] + "…"


def _seconds(value: object) -> str:
    return duration(float(value)) if isinstance(value, int | float) else "?"
