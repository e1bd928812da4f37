"""Stalls of a broker during a load, from its log: pauses of its garbage collector, and ends of log segments.

A pause delays every request alike. Segments are flushed when they are full, and removed when there are too many; those
of evenly loaded partitions are so at one time.
"""

import re
from datetime import datetime
from pathlib import Path

LOG_PAUSES = "-Xlog:gc:stdout:utctime"  # of the Java machine, to the broker's log
_SEGMENT = re.compile(r"^(\d{4}-\S+) \[.* (Rolled new log segment|Deleting segment files)")
_PAUSE = re.compile(r"^\[(\d{4}-\S+?)\] GC\(\d+\) Pause .* ([\d.]+)ms$")


def broker_pauses(log: Path, since: float, until: float) -> list[dict[str, float]]:
    """Each pause that ended between two Unix times: seconds since the first, and milliseconds."""
    found = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := _PAUSE.match(line):
            ended = datetime.fromisoformat(match[1]).timestamp()
            if since <= ended < until:
                found.append({"at_s": round(ended - since, 3), "ms": float(match[2])})
    return found


def segment_changes(log: Path, since: float, until: float) -> list[dict[str, float]]:
    """Segments that ended or were removed between two Unix times, together by tenths of a second since the first."""
    found: dict[float, dict[str, float]] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := _SEGMENT.match(line):
            at = datetime.fromisoformat(match[1]).timestamp()
            if since <= at < until:
                at_s = round(at - since, 1)
                counts = found.setdefault(at_s, {"at_s": at_s, "full": 0, "removed": 0})
                counts["full" if match[2].startswith("Rolled") else "removed"] += 1
    return list(found.values())
