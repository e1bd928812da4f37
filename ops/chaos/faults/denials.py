"""Log events about what Kafka denies while a fault has taken a privilege away."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.ops.chaos.faults.faults import Injected

_OF_PRIVILEGES = frozenset({"access_revoked", "replies_refused"})
_DENIED_S = 30.0  # after a privilege is back: the library has noticed


def is_denial(event: Mapping[str, Any], faults: Sequence[Injected]) -> bool:
    """Whether aiokafka reports with a traceback what Kafka denies while a fault has taken a privilege away."""
    is_library = str(event.get("logger", "")).startswith("aiokafka")
    if not is_library or "AuthorizationFailed" not in str(event.get("exception", "")).rpartition("\n")[2]:
        return False
    at = datetime.fromisoformat(event["timestamp"]).timestamp()
    taken = [one for one in faults if one.kind in _OF_PRIVILEGES and not one.error]
    return any(one.started <= at <= one.ended + _DENIED_S for one in taken)
