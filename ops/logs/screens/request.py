"""`penstock logs request`: one request as a chart: its stages, what else names it, and what happened meanwhile."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from penstock.ops.logs.lines.blocks import BATCH, DONE, STAGES, Part
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.reader import in_order
from penstock.ops.logs.lines.source import LogSource
from penstock.ops.logs.screens.screens import Parts
from penstock.ops.logs.screens.tables import BAR, DIM, WARN, Section, event_line
from penstock.ops.logs.text import clock, count, date_and_clock, duration, joined, printable
from penstock.ops.logs.totals.lives import NAMES, sentence

_POSITION = re.compile(r"(?:(.+)-)?(\d+)[-:](\d+)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MAX_KEPT = 20_000
_MEANWHILE_S = 2.0  # before and after
_MAX_MEANWHILE = 20
_WIDTH = 56
_COLOURS = {"kafka": "blue", "tokenize": "magenta", "cache": "green", "schedule": "yellow", "compute": BAR}
_SAMPLED = (
    "Logs name two answered requests of each second of each worker (the first, and the slowest online one), and the "
    "first of requests that are rejected together."
)


class _StageTime(NamedTuple):
    """A part of a request's way, in Unix seconds."""

    name: str
    start_s: float
    seconds: float


class RequestStory:
    """Collects events in one pass; then `parts` tells them."""

    def __init__(self, text: str) -> None:
        """A correlation id as the worker logs it (text, or hexadecimal with or without dashes), or a position:
        TOPIC-PARTITION-OFFSET or PARTITION:OFFSET."""
        is_uuid = _UUID.fullmatch(text) is not None
        match = None if is_uuid else _POSITION.fullmatch(text)
        self._id = text.replace("-", "").lower() if is_uuid else text
        self._topic = match[1] if match is not None else None  # None: any
        self._partition = int(match[2]) if match is not None else None
        self._offset = int(match[3]) if match is not None else None
        self.found: list[Event] = []
        self._neighbours: dict[str, Event] = {}  # the nearest sampled requests of the partition, by offset
        self._notable: deque[Event] = deque(maxlen=_MAX_KEPT)

    def add(self, part: Part) -> None:
        """All events of a block but batches."""
        for event in part.kept(BATCH):
            fields = event.fields
            is_near = self._partition is not None and fields.get("partition") == self._partition
            is_near = is_near and self._topic in (None, fields.get("topic"))
            if fields.get("correlation_id") == self._id or (is_near and fields.get("offset") == self._offset):
                self.found.append(event)
            elif event.name in NAMES or event.level not in ("debug", "info"):
                self._notable.append(event)
            elif event.name == DONE and is_near:
                self._note_neighbour(event)

    def parts(self, sources: Sequence[LogSource]) -> Parts:
        """Its way through the stages as far as lines tell it, and what was logged around it."""
        if not self.found:
            yield Text(f"No line names request {printable(self._id)}. {_SAMPLED}", style=WARN)
            yield from self._around()
            return
        yield Text(f"request {printable(self._name)}", style="bold")
        sample = next((event for event in self.found if event.name == DONE), None)  # if it was sampled
        of_batch = []
        if sample is not None:
            yield from _way(sample, sources)
            batch = _batch_of(sample)
            of_batch = [event for event in self._notable if batch is not None and _batch_of(event) == batch]
        others = [event for event in self.found if event is not sample]
        for title, events in (("Lines that name it", others), ("Failures of its batch", of_batch)):
            if events:
                yield Section(title, "", (), (), [event_line(event, sources) for event in in_order(events)])
        if sample is None:
            yield from self._around()
        if meanwhile := self._meanwhile(sample)[:_MAX_MEANWHILE]:
            lines = [
                (clock(one.time_s, ms=True), sources[one.source].name, printable(sentence(one))) for one in meanwhile
            ]
            yield Section("Meanwhile", "within two seconds", (), (), [Text("  ".join(line)) for line in lines])

    @property
    def _name(self) -> str:
        """Its place, as its lines tell it."""
        for event in self.found:
            topic, partition, offset = (event.fields.get(key) for key in ("topic", "partition", "offset"))
            if isinstance(topic, str) and isinstance(partition, int) and isinstance(offset, int):
                return f"{topic}-{partition}-{offset}"
        return self._id if self._offset is None else f"{self._topic}-{self._partition}-{self._offset}"

    def _meanwhile(self, sample: Event | None) -> list[Event]:
        """Starts, ends, rebalances and warnings from shortly before it was produced until shortly after its end."""
        times = [event.time_s for event in self.found if event.time_s is not None]
        if not times:
            return []
        starts = [stage.start_s for stage in _stages(sample)] if sample is not None else []
        first, last = min([*times, *starts]) - _MEANWHILE_S, max(times) + _MEANWHILE_S
        return in_order(event for event in self._notable if event.time_s and first <= event.time_s <= last)

    def _note_neighbour(self, event: Event) -> None:
        offset, own = event.fields.get("offset"), self._offset
        if own is None or not isinstance(offset, int):
            return
        where = "before" if offset < own else "after"
        nearest = self._neighbours.get(where)
        if nearest is None or abs(offset - own) < abs(nearest.fields["offset"] - own):
            self._neighbours[where] = event

    def _around(self) -> Iterator[Text]:
        """Answers of the records around it: it was answered at the same time, or is behind."""
        for where, event in sorted(self._neighbours.items(), reverse=True):
            about = f"{where} it, offset {event.fields['offset']}, was answered by {date_and_clock(event.time_s)} UTC"
            yield Text(f"The next sampled record {about}.")


def _batch_of(event: Event) -> tuple[object, ...] | None:
    """An identity of the event's batch, unique over all logs."""
    number = event.number("batch")
    return None if number is None else (event.source, event.fields.get("pid"), event.fields.get("worker"), number)


def _way(sample: Event, sources: Sequence[LogSource]) -> Iterator[Text]:
    fields, way = sample.fields, _stages(sample)
    worker = f" worker {fields['worker']}" if "worker" in fields else ""
    size = f"{count(sample.number('sequences') or 0, 'sequence')}, {fields.get('cached')} from the cache"
    known_as = f"correlation id {fields['correlation_id']}" if fields.get("correlation_id") else ""
    about = joined((str(fields.get("class", "")), size, known_as, f"{sources[sample.source].name}{worker}"))
    yield Text(printable(about), style=DIM)
    if not way:
        return
    start_s, end_s = way[0].start_s, (sample.time_s or 0.0) - _seconds(sample, "ago")
    yield Text()
    yield Text(f"{date_and_clock(start_s)[:10]} {clock(start_s, ms=True)} UTC  produced")
    yield from (_bar(stage, start_s, max(end_s - start_s, 1e-9)) for stage in way)
    took = f"{duration(_seconds(sample, 'total'))} after it arrived, {duration(end_s - start_s)} after it was produced"
    if (left_ms := sample.number("left_ms")) is not None:
        took += f", {duration(abs(left_ms) / 1e3)} {'before' if left_ms >= 0 else 'after'} its deadline"
    yield Text(f"{clock(end_s, ms=True)} UTC  reply made, {took}")
    if fields.get("trigger"):
        size = f"{count(sample.number('batch_sequences') or 0, 'sequence')} and {fields.get('batch_tokens')} tokens"
        number = "a batch" if sample.number("batch") is None else f"batch {fields['batch']},"
        yield Text(printable(f"It ran in {number} of {size}, by {fields['trigger']}."), style=DIM)
    if _seconds(sample, "kafka") < 0:
        ahead = "Its producer's clock is ahead of the worker's, so the time in Kafka is not known."
        yield Text(ahead, style=WARN)


def _bar(stage: _StageTime, start_s: float, span_s: float) -> Text:
    first = round((stage.start_s - start_s) / span_s * _WIDTH)
    last = round((stage.start_s + stage.seconds - start_s) / span_s * _WIDTH)
    line = Text(f"  {stage.name:<9}{duration(stage.seconds):>9}  ")
    line.append(" " * min(first, _WIDTH - 1))
    return line.append("█" * (last - first) or "▏", style=_COLOURS[stage.name])


def _stages(sample: Event) -> list[_StageTime]:
    """The way of a sampled request, from its producer to the reply. Empty without the times."""
    if sample.time_s is None or sample.number("total_ms") is None:
        return []
    at_s = sample.time_s - _seconds(sample, "ago") - _seconds(sample, "total")
    kafka_s = max(0.0, _seconds(sample, "kafka"))
    way = [_StageTime("kafka", at_s - kafka_s, kafka_s)]
    for name in STAGES[1:-1]:
        if sample.number(f"{name}_ms") is not None:
            way.append(_StageTime(name, at_s, _seconds(sample, name)))
            at_s += way[-1].seconds
    return way


def _seconds(sample: Event, name: str) -> float:
    return (sample.number(f"{name}_ms") or 0.0) / 1e3
