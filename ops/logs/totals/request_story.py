"""One request in the logs: its stages, what else names it, and what happened meanwhile."""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.reader import in_order
from penstock.ops.logs.totals.lives import NAMES

_POSITION = re.compile(r"(?:(.+)-)?(\d+)[-:](\d+)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MAX_KEPT = 20_000
_MEANWHILE_S = 2.0  # before and after


class RecordPosition(NamedTuple):
    """A record's place; the topic is None where it was not given."""

    topic: str | None
    partition: int
    offset: int

    def is_of(self, fields: dict[str, Any]) -> bool:
        """Whether an event is about this record."""
        return self.is_same_partition(fields) and fields.get("offset") == self.offset

    def is_same_partition(self, fields: dict[str, Any]) -> bool:
        return fields.get("partition") == self.partition and self.topic in (None, fields.get("topic"))


class StageTime(NamedTuple):
    """A part of a request's way, in Unix seconds."""

    name: str
    start_s: float
    seconds: float


@dataclass(slots=True)
class RequestStory:
    """Collects events in one pass; `found`, `before` and `after` are complete at its end."""

    id: str
    position: RecordPosition | None
    found: list[Event] = field(default_factory=list)
    before: Event | None = None  # the nearest sampled requests of the partition, by offset
    after: Event | None = None
    _notable: deque[Event] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT))

    @classmethod
    def of(cls, text: str) -> "RequestStory":
        """A correlation id as the worker logs it (text, or hexadecimal with or without dashes), or a position:
        TOPIC-PARTITION-OFFSET or PARTITION:OFFSET."""
        match = _POSITION.fullmatch(text)
        position = (
            RecordPosition(match[1], int(match[2]), int(match[3])) if match and not _UUID.fullmatch(text) else None
        )
        return cls(text.replace("-", "").lower() if _UUID.fullmatch(text) else text, position)

    def add(self, events: Iterable[Event]) -> None:
        """Events of a block."""
        for event in events:
            fields = event.fields
            if fields.get("correlation_id") == self.id or (self.position is not None and self.position.is_of(fields)):
                self.found.append(event)
            elif event.name in NAMES or event.level not in ("debug", "info"):
                self._notable.append(event)
            elif event.name == "request_done" and self.position is not None:
                self._note_neighbour(event, self.position)

    @property
    def sample(self) -> Event | None:
        """The line with its stages, if it was sampled."""
        return next((event for event in self.found if event.name == "request_done"), None)

    @property
    def of_batch(self) -> list[Event]:
        """Failures of the batch that it ran in."""
        if self.sample is None or self.sample.number("batch") is None:
            return []
        return [event for event in self._notable if _batch_of(event) == _batch_of(self.sample)]

    @property
    def found_position(self) -> RecordPosition | None:
        """Its place, as its lines tell it."""
        for event in self.found:
            topic, partition, offset = (event.fields.get(key) for key in ("topic", "partition", "offset"))
            if isinstance(topic, str) and isinstance(partition, int) and isinstance(offset, int):
                return RecordPosition(topic, partition, offset)
        return self.position

    def meanwhile(self) -> list[Event]:
        """Starts, ends, rebalances and warnings from shortly before it was produced until shortly after its end."""
        times = [event.time_s for event in self.found if event.time_s is not None]
        starts = [stage.start_s for stage in stages(self.sample)] if self.sample is not None else []
        if not times:
            return []
        first, last = min([*times, *starts]) - _MEANWHILE_S, max(times) + _MEANWHILE_S
        return in_order(event for event in self._notable if event.time_s and first <= event.time_s <= last)

    def _note_neighbour(self, event: Event, position: RecordPosition) -> None:
        offset = event.fields.get("offset")
        if not position.is_same_partition(event.fields) or not isinstance(offset, int):
            return
        if offset < position.offset and (self.before is None or offset > self.before.fields["offset"]):
            self.before = event
        if offset > position.offset and (self.after is None or offset < self.after.fields["offset"]):
            self.after = event


def _batch_of(event: Event) -> tuple[object, ...]:
    return event.source, event.fields.get("pid"), event.fields.get("worker"), event.number("batch")


def stages(sample: Event) -> list[StageTime]:
    """The way of a sampled request, from its producer to the reply. Empty without the times."""
    total_ms = sample.number("total_ms")
    if sample.time_s is None or total_ms is None:
        return []
    end_s = sample.time_s - (sample.number("ago_ms") or 0.0) / 1e3
    arrived_s = end_s - total_ms / 1e3
    kafka_s = max(0.0, (sample.number("kafka_ms") or 0.0) / 1e3)
    way = [StageTime("kafka", arrived_s - kafka_s, kafka_s)]
    at_s = arrived_s
    for name in ("tokenize", "cache", "schedule", "compute"):
        ms = sample.number(f"{name}_ms")
        if ms is not None:
            way.append(StageTime(name, at_s, ms / 1e3))
            at_s += ms / 1e3
    return way
