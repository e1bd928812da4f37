"""When members ended, loaded and joined during a load: what explains a half second in which answers were late."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

Event = dict[str, Any]

# Of the supervisor and of members, with the field that tells how long it took.
_NAMES = {
    "member_exited": "",
    "member_evicted": "",
    "partitions_revoked": "",
    "drained": "seconds",
    "partitions_assigned": "",
    "member_started": "",
    "model_loaded": "seconds",
    "cost_table_loaded": "warm_up_s",
    "cost_table_measured": "seconds",
    "standby_ready": "",
    "worker_ready": "",
}


def member_events(logged: Callable[[str], Iterable[Event]], since: float) -> list[Event]:
    """Events from a Unix time on, by their seconds since then. `logged`: the events of a name."""
    found = []
    for name, span in _NAMES.items():
        for event in logged(name):
            at_s = datetime.fromisoformat(event["timestamp"]).timestamp() - since
            if at_s >= 0:
                taken = {"took_s": event[span]} if span else {}
                found.append({"at_s": round(at_s, 3), "event": name, "worker": event.get("worker"), **taken})
    return sorted(found, key=lambda event: float(event["at_s"]))
