"""Log events in the field names of the Elastic Common Schema (ECS), version 8."""

from collections.abc import Mapping, MutableMapping
from typing import Any

MARK = "ecs.version"  # every line has it
_VERSION = "8.11.0"
_OURS = "penstock."
_NAMES = {
    "timestamp": "@timestamp",
    "level": "log.level",
    "event": "message",
    "logger": "log.logger",
    "pid": "process.pid",
    "trace_id": "trace.id",
    "span_id": "span.id",
    "service.name": "service.name",
    "service.version": "service.version",
    "service.instance.id": "service.node.name",
    "error": "error.message",
    "code": "error.code",
    "exception": "error.stack_trace",
}


def to_ecs(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor, before the renderer. Fields that ECS does not know are put below `penstock`."""
    ecs: dict[str, Any] = {_NAMES[name]: event[name] for name in _NAMES if name in event}
    ecs[MARK] = _VERSION
    if str(event.get("logger", "")).startswith(_OURS):
        ecs["event.dataset"], ecs["event.action"] = "penstock.worker", event["event"]
    own = {name: value for name, value in event.items() if name not in _NAMES}
    return ecs | ({"penstock": own} if own else {})


def from_ecs(line: Mapping[str, Any]) -> dict[str, Any]:
    """The event of a line that `to_ecs` made. Called by `penstock logs`, of any line that has `MARK`."""
    event = {name: line[known] for name, known in _NAMES.items() if known in line}
    own = line.get("penstock")
    return event | own if isinstance(own, dict) else event
