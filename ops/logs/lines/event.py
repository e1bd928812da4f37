"""One event of a log."""

import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

# Fields that say where and when a line was written.
OF_EVERY_LINE = (
    *("timestamp", "level", "logger", "pid", "worker", "model"),
    *("service.name", "service.version", "service.instance.id"),
)
SHOWN_APART = frozenset(("event", "exception", *OF_EVERY_LINE))  # the other fields follow the name of an event
LEVELS = ("debug", "info", "warning", "error", "critical")
MOST = 1 << 28  # no number of ours is greater, and the sums and products of such numbers fit in 64 bits


class Event(NamedTuple):
    """A line that is an event of penstock, or of a library that logs through it."""

    source: int  # index of the file
    time_s: float | None  # Unix time; None where the line has none that can be read
    fields: dict[str, Any]  # the whole line

    @property
    def name(self) -> str:
        """The fixed name, such as batch_done; or a library's sentence."""
        name: str = self.fields["event"]  # the parser has looked
        return name

    @property
    def level(self) -> str:
        """One of LEVELS; an unknown one counts as info."""
        level = self.fields.get("level")
        return level if level in LEVELS else "info"

    def number(self, key: str) -> float | None:
        """A field's value if it is a finite number."""
        return number(self.fields.get(key))

    def text(self, key: str) -> str | None:
        """A field's value as text; None where there is none."""
        value = self.fields.get(key)
        return None if value is None else str(value)


def number(value: object) -> float | None:
    """A finite number, or None."""
    if type(value) is float and math.isfinite(value):  # nearly all of them
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of more than 300 digits
        return None


def parse_time(text: object) -> float | None:
    """Unix time of an ISO 8601 timestamp; one without a zone is UTC. None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
