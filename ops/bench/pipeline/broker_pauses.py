"""Pauses of the broker's garbage collector during a load: they delay every request alike."""

import re
from datetime import datetime
from pathlib import Path

LOG_PAUSES = "-Xlog:gc:stdout:utctime"  # of the Java machine, to the broker's log
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
