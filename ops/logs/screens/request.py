"""`penstock logs request`: one request as a chart: its stages, what else names it, and what happened meanwhile."""

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.columns import BATCH, DONE, STAGES
from penstock.ops.logs.lines.event import Event, clock, date_and_clock, duration, printable
from penstock.ops.logs.lines.parser import Part
from penstock.ops.logs.lines.reader import in_order
from penstock.ops.logs.lines.source import LogSource
from penstock.ops.logs.screens.event_line import event_line
from penstock.ops.logs.screens.tables import BAR, DIM, WARN, count, heading, joined
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
    """Collects events in one pass; then `show` prints them."""

    def __init__(self, text: str) -> None:
        """A correlation id as the worker logs it (text, or hexadecimal with or without dashes), or a position:
        TOPIC-PARTITION-OFFSET or PARTITION:OFFSET."""
        is_uuid = _UUID.fullmatch(text) is not None
        match = None if is_uuid else _POSITION.fullmatch(text)
        self._id = text.replace("-", "").lower() if is_uuid else text
        self._topic = match[1] if match is not None else None  # None: any
        self._place = (int(match[2]), int(match[3])) if match is not None else None  # partition and offset
        self.found: list[Event] = []
        self._before: Event | None = None  # the nearest sampled requests of the partition, by offset
        self._after: Event | None = None
        self._notable: deque[Event] = deque(maxlen=_MAX_KEPT)

    def add(self, part: Part) -> None:
        """All events of a block but batches."""
        for place in part.rows.filter(pl.col("event") != BATCH)["place"].to_list():
            event = part.event(place)
            fields = event.fields
            is_near = self._place is not None and fields.get("partition") == self._place[0]
            is_near = is_near and self._topic in (None, fields.get("topic"))
            if fields.get("correlation_id") == self._id or (is_near and fields.get("offset") == self._offset):
                self.found.append(event)
            elif event.name in NAMES or event.level not in ("debug", "info"):
                self._notable.append(event)
            elif event.name == DONE and is_near:
                self._note_neighbour(event)

    def show(self, console: Console, sources: Sequence[LogSource]) -> None:
        """Print what is known."""
        if not self.found:
            console.print(Text(f"No line names request {printable(self._id)}. {_SAMPLED}", style=WARN), soft_wrap=True)
            self._show_neighbours(console)
            return
        console.print(Text(f"request {printable(self._name)}", style="bold"), soft_wrap=True)
        sample = next((event for event in self.found if event.name == DONE), None)  # if it was sampled
        if sample is not None:
            _show_way(console, sample, sources)
        of_batch = [event for event in self._notable if sample is not None and _is_of_one_batch(event, sample)]
        others = [event for event in self.found if event is not sample]
        for title, events in (("Lines that name it", others), ("Failures of its batch", of_batch)):
            if events:
                heading(console, title)
            for event in in_order(events):
                console.print(event_line(event, sources), soft_wrap=True)
        if sample is None:
            self._show_neighbours(console)
        if meanwhile := self._meanwhile(sample):
            heading(console, "Meanwhile", "within two seconds")
        for event in meanwhile[:_MAX_MEANWHILE]:
            text = f"{clock(event.time_s, ms=True)}  {sources[event.source].name}  {printable(sentence(event))}"
            console.print(Text(text), soft_wrap=True)

    @property
    def _offset(self) -> int | None:
        return self._place[1] if self._place is not None else None

    @property
    def _name(self) -> str:
        """Its place, as its lines tell it."""
        for event in self.found:
            topic, partition, offset = (event.fields.get(key) for key in ("topic", "partition", "offset"))
            if isinstance(topic, str) and isinstance(partition, int) and isinstance(offset, int):
                return f"{topic}-{partition}-{offset}"
        return self._id if self._place is None else f"{self._topic}-{self._place[0]}-{self._place[1]}"

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
        if offset < own and (self._before is None or offset > self._before.fields["offset"]):
            self._before = event
        if offset > own and (self._after is None or offset < self._after.fields["offset"]):
            self._after = event

    def _show_neighbours(self, console: Console) -> None:
        """Answers of the records around it: it was answered at the same time, or is behind."""
        for event, where in ((self._before, "before"), (self._after, "after")):
            if event is not None:
                about = (
                    f"{where} it, offset {event.fields['offset']}, was answered by {date_and_clock(event.time_s)} UTC"
                )
                console.print(Text(f"The next sampled record {about}."), soft_wrap=True)


def _is_of_one_batch(event: Event, sample: Event) -> bool:
    of_both = [
        (one.source, one.fields.get("pid"), one.fields.get("worker"), one.number("batch")) for one in (event, sample)
    ]
    return of_both[0] == of_both[1] and sample.number("batch") is not None


def _show_way(console: Console, sample: Event, sources: Sequence[LogSource]) -> None:
    fields, way = sample.fields, _stages(sample)
    worker = f" worker {fields['worker']}" if "worker" in fields else ""
    about = joined(
        (
            str(fields.get("class", "")),
            f"{count(sample.number('sequences') or 0, 'sequence')}, {fields.get('cached')} from the cache",
            f"correlation id {fields['correlation_id']}" if fields.get("correlation_id") else "",
            f"{sources[sample.source].name}{worker}",
        )
    )
    console.print(Text(printable(about), style=DIM), soft_wrap=True)
    if not way:
        return
    start_s, end_s = way[0].start_s, (sample.time_s or 0.0) - _seconds(sample, "ago")
    console.print()
    console.print(Text(f"{date_and_clock(start_s)[:10]} {clock(start_s, ms=True)} UTC  produced"))
    for stage in way:
        console.print(_bar(stage, start_s, max(end_s - start_s, 1e-9)))
    total_s = _seconds(sample, "total")
    left = sample.number("left_ms")
    deadline = (
        "" if left is None else f", {duration(abs(left) / 1e3)} {'before' if left >= 0 else 'after'} its deadline"
    )
    took = f"{duration(total_s)} after it arrived, {duration(end_s - start_s)} after it was produced{deadline}"
    console.print(Text(f"{clock(end_s, ms=True)} UTC  reply made, {took}"), soft_wrap=True)
    if fields.get("trigger"):
        size = f"{count(sample.number('batch_sequences') or 0, 'sequence')} and {fields.get('batch_tokens')} tokens"
        number = "a batch" if sample.number("batch") is None else f"batch {fields['batch']},"
        console.print(Text(printable(f"It ran in {number} of {size}, by {fields['trigger']}."), style=DIM))
    if _seconds(sample, "kafka") < 0:
        console.print(
            Text("Its producer's clock is ahead of the worker's, so the time in Kafka is not known.", style=WARN)
        )


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
