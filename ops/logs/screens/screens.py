"""The screens of `penstock logs` that are tables over all events: a screen is added here, and is then a command."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from penstock.ops.logs.lines.blocks import CLASSES, STAGES
from penstock.ops.logs.lines.event import SHOWN_APART, Event
from penstock.ops.logs.screens.tables import DIM, LEVEL_STYLES, WARN, Column, Section, bar, curve
from penstock.ops.logs.text import clock, date_and_clock, duration, integer, printable, share, short
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.rejections import by_count
from penstock.ops.logs.totals.series import slow_periods

Parts = Iterator[Section | Text | Table]

_MAX_ROWS = 40
_BIASED = 0.2  # from here on the predicted times are worth measuring again
_SAMPLED = {
    "online": "of each worker the slowest of each second is logged",
    "bulk": "of each worker the first request of each second is logged, where it is of a job",
}
_LOGGED = "of each worker 20 a second are logged, and up to 100 after a rest"
SLOW = "requests late or rejected for lateness, or a p95 over three times the usual"


class Screen(NamedTuple):
    """A command of `penstock logs`."""

    help: str
    parts: Callable[[Digest, int], Parts]  # with the number of rows that is asked for
    num_rows: int = 0  # without being asked; 0: it is no option


def _number(key: str) -> Callable[[Event], float | None]:
    return partial(Event.number, key=key)


def _milliseconds(value: float) -> str:
    return duration(value / 1e3)


_TIME = Column("time", lambda one: clock(one.time_s))
_FIRST_AND_LAST = (
    Column("first", lambda one: clock(one.span_s and one.span_s[0])),
    Column("last", lambda one: clock(one.span_s and one.span_s[1])),
)
_STAGES = tuple(Column(f">{stage}", _number(f"{stage}_ms"), _milliseconds) for stage in ("total", *STAGES[:-1]))
_BATCHES = Column(">batches", "batches", integer)
_SIZE = Column("tokens", "name", lambda size: "1" if size == 0 else f"{2 ** (size - 1) + 1:,}-{2**size:,}")
_MEANS = (
    Column(">sequences", lambda one: one.sequences / one.batches, short),
    Column(">tokens", lambda one: one.tokens / one.batches, short),
    Column(">time", lambda one: one.device_s / one.batches, duration),
    Column(">padding avoided", "padding_avoided", share),
)
_COSTS = (
    _BATCHES,
    Column(">predicted", lambda one: one.predicted_s / one.batches, duration),
    Column(">measured", lambda one: one.device_s / one.batches, duration),
    Column(">bias", lambda one: f"{one.bias * 100:+.1f} %"),
    Column(">error p50", lambda one: one.ratios.deviation(50), share),
    Column(">p95", lambda one: one.ratios.deviation(95), share),
    Column("", lambda one: bar(one.ratios.deviation(95) / 2, 12)),
)


def shares(every: int) -> tuple[Column, ...]:
    """Batches of groups, as numbers and shares of all."""
    part = Column(">share", lambda one: one.batches / every, share)
    return _BATCHES, part, Column("", lambda one: bar(one.batches / every))


def period_columns(start: Callable[[float], str]) -> list[Column]:
    """Of slow periods. `start`: how the time of one is shown."""
    return [
        Column("from", "start_s", start),
        Column(">for", lambda one: one.end_s - one.start_s, duration),
        Column(">p95", "p95_s", duration),
        Column(">answered", "answered", integer),
        Column(">missed", "missed", integer),
        Column(">backlog", "backlog_s", duration),
    ]


def _log_columns(digest: Digest) -> list[Column]:
    """Which log an event is of, where there are several."""
    return [Column("log", lambda one: digest.sources[one.source].name)] if len(digest.sources) > 1 else []


def _errors(digest: Digest, _: int) -> Parts:
    """Rejected requests by code, then warnings and errors by event."""
    refused, problems = digest.rejections.by_code, digest.problems
    if not refused and not problems:
        yield Text("No request was rejected, and nothing was logged as a warning or an error.")
    if refused:
        most = max(one.count for one in refused.values())
        columns: Sequence[Column] = (
            Column("code", "name"),
            Column(">requests", "count", integer),
            Column("", lambda one: bar(one.count / most, 12)),
            *_FIRST_AND_LAST,
            Column("the latest, and why", lambda one: _reason(one.example)),
        )
        spans = digest.series.spans(max(1, digest.series.span_s // 60))[1]
        below = [curve(spans["refused"].tolist(), "rejected over time")]
        yield Section(
            "Rejected requests", integer(digest.rejections.total), columns, by_count(refused)[:_MAX_ROWS], below
        )
    if problems:
        columns = (
            Column("event", lambda one: one.name[:36]),
            Column(">lines", "count", integer),
            Column("level", lambda one: Text(one.example.level, style=LEVEL_STYLES[one.example.level])),
            *_FIRST_AND_LAST,
            Column("logs", lambda one: ", ".join(digest.sources[index].name for index in sorted(one.sources)[:3])),
            Column("the latest", lambda one: _details(one.example)),
        )
        lines = sum(one.count for one in problems.values())
        yield Section("Warnings and errors", integer(lines), columns, by_count(problems)[:_MAX_ROWS])


def _reason(event: Event | None) -> str:
    return "no line of it is here" if event is None else f"{_position(event)}: {event.fields.get('reason', '')}"


def _details(event: Event) -> str:
    name = event.name if " " in event.name else ""  # a library's sentence
    return " ".join([name, *[f"{key}={value}" for key, value in event.fields.items() if key not in SHOWN_APART]])[:300]


def _position(event: Event) -> str:
    return "-".join(str(event.fields.get(key)) for key in ("topic", "partition", "offset"))


def _slow(digest: Digest, num_rows: int) -> Parts:
    """The slowest requests, slow periods, and the batches that took longest."""
    slowest = {name: requests for name in CLASSES if (requests := digest.requests.slowest[name].events[:num_rows])}
    for name, requests in slowest.items():
        yield _slowest(digest, name, requests)
    if not slowest:
        yield Text("No answered request is in the logs (request_done).")
    if periods := slow_periods(digest.series):
        yield Section("Slow periods", SLOW, period_columns(date_and_clock), periods[:_MAX_ROWS])
    yield from _longest_batches(digest, num_rows)


def _slowest(digest: Digest, name: str, requests: list[Event]) -> Section:
    topics = {str(event.fields.get("topic")) for event in requests}
    topic = f"; all of {printable(topics.pop())}" if len(topics) == 1 else ""
    columns = (
        _TIME,
        *_STAGES,
        Column(">batch", _number("batch_tokens"), lambda tokens: f"{integer(tokens)} tok"),
        Column("trigger", lambda one: one.fields.get("trigger", "-")),
        *_log_columns(digest),
        Column("request", lambda one: _position(one).removeprefix(f"{one.fields.get('topic')}-").replace("-", ":"))
        if topic
        else Column("request", _position),
    )
    return Section(f"Slowest {name} requests", _SAMPLED[name] + topic, columns, requests)


def _longest_batches(digest: Digest, num_rows: int) -> Parts:
    columns = (
        _TIME,
        Column(">measured", _number("device_s"), duration),
        Column(">predicted", _number("predicted_s"), duration),
        Column(">sequences", _number("sequences"), integer),
        Column(">tokens", _number("tokens"), integer),
        Column(">longest", _number("max_seqlen"), integer),
        Column("trigger", lambda one: one.text("trigger")),
        Column("partition", lambda one: one.text("partition")),
        *_log_columns(digest),
        Column(">worker", lambda one: one.fields.get("worker", "")),
    )
    if longest := digest.batches.longest.events[:num_rows]:
        yield Section("Longest batches", _LOGGED, columns, longest)


def _batches(digest: Digest, _: int) -> Parts:
    """Triggers, partitions, sizes and padding."""
    batches, every = digest.batches, digest.batches.all.batches
    if not every:
        yield Text("No batch is in the logs (batch_done).")
        return
    total = max(digest.series.totals()["batches"], every)
    title, note = "Batches", f"{integer(total)}, of which {integer(every)} are logged: {_LOGGED}"
    for key in ("trigger", "partition"):
        yield Section(title, note, (Column(key, "name"), *shares(every), *_MEANS), batches.by(key))
        title = ""
    sizes = batches.by("size")
    most = max(group.batches for group in sizes)
    bars = Column("", lambda one: bar(one.batches / most))
    speed = Column(">tokens/s", lambda one: one.tokens / one.device_s if one.device_s else 0.0, integer)
    gains = batches.histograms["dp_gain"]
    gain = f"p50 {share(gains.percentile(50))}, p95 {share(gains.percentile(95))}"
    below = [Text(f"Predicted saving of batches by the dynamic program: {gain}.", style=DIM)] if len(gains) else []
    yield Section("", "", (_SIZE, _BATCHES, bars, *_MEANS, speed), sizes, below)
    yield from _longest_batches(digest, 10)


def _costs(digest: Digest, _: int) -> Parts:
    """Predicted against measured seconds."""
    batches, every = digest.batches, digest.batches.all
    if not every.batches:
        yield Text("No batch is in the logs (batch_done).")
        return
    size = Column("tokens", lambda one: "all" if one is every else _SIZE.text(one))
    rows, note = [*batches.by("size"), every], f"of {integer(every.batches)} logged batches"
    yield Section("Predicted against measured", note, (size, *_COSTS), rows, bold=every)
    yield Section("", "", (Column("trigger", "name"), *_COSTS), batches.by("trigger"))
    if abs(every.bias) > _BIASED:
        more = "more" if every.bias > 0 else "less"
        advice = "`penstock calibrate` measures them again."
        yield Text(f"Batches take {more} in the prediction than on the device: {advice}", style=WARN)


SCREENS = {
    "slow": Screen("Show the slowest requests, slow periods and the longest batches.", _slow, 20),
    "errors": Screen("Show rejected requests by code, and warnings and errors by event.", _errors),
    "batches": Screen("Show triggers, partitions, sizes and padding of batches.", _batches),
    "costs": Screen("Compare the predicted seconds of batches with the measured ones.", _costs),
}
