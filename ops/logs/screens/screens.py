"""The screens of `penstock logs` that are tables over all events: a screen is added here, and is then a command."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from penstock.ops.logs.lines.columns import CLASSES
from penstock.ops.logs.lines.event import Event, clock, date_and_clock, duration, number, printable
from penstock.ops.logs.screens.event_line import SHOWN_APART
from penstock.ops.logs.screens.tables import DIM, LEVEL_STYLES, WARN, Column, Section, bar, curve, is_known
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import integer, share, short
from penstock.ops.logs.totals.slow_periods import slow_periods
from penstock.ops.logs.totals.tally import Tally

Parts = Iterator[Section | Text]

_MAX_ROWS = 40
_BIASED = 0.2  # from here on the predicted times are worth measuring again
_SAMPLED = {
    "online": "of each worker the slowest of each second is logged",
    "bulk": "of each worker the first request of each second is logged, where it is of a job",
}
_LOGGED = "of each worker the first 100 of each second are logged"
SLOW = "requests late or rejected for lateness, or a p95 over three times the usual"


class Screen(NamedTuple):
    """A command of `penstock logs`."""

    help: str
    parts: Callable[[Digest, int], Parts]  # with the number of rows that is asked for
    num_rows: int = 0  # without being asked; 0: it is no option


def _errors(digest: Digest, _: int) -> Parts:
    """Rejected requests by code, then warnings and errors by event."""
    refused, problems = digest.rejections.by_code, digest.problems
    if not refused and not problems:
        yield Text("No request was rejected, and nothing was logged as a warning or an error.")
    if refused:
        most = max(one.count for one in refused.values())
        columns: Sequence[Column] = (
            Column("code", lambda one: one[0]),
            Column(">requests", lambda one: integer(one[1].count)),
            Column("", lambda one: bar(one[1].count / most, 12)),
            *_FIRST_AND_LAST,
            Column("the latest, and why", lambda one: _reason(one[1].example)),
        )
        spans = digest.series.spans(max(1, digest.series.span_s // 60))[1]
        below = [curve(spans["refused"].tolist(), "rejected over time")]
        yield Section("Rejected requests", integer(digest.rejections.total), columns, _by_count(refused), below)
    if problems:
        columns = (
            Column("event", lambda one: one[0][:36]),
            Column(">lines", lambda one: integer(one[1].count)),
            Column("level", lambda one: _level(one[1].example)),
            *_FIRST_AND_LAST,
            Column("logs", lambda one: ", ".join(digest.sources[index].name for index in sorted(one[1].sources)[:3])),
            Column("the latest", lambda one: _details(one[1].example)),
        )
        lines = sum(one.count for one in problems.values())
        yield Section("Warnings and errors", integer(lines), columns, _by_count(problems))


_FIRST_AND_LAST = (
    Column("first", lambda one: clock(one[1].span_s[0])),
    Column("last", lambda one: clock(one[1].span_s[1])),
)


def _by_count(table: dict[str, Tally]) -> list[tuple[str, Tally]]:
    return sorted(table.items(), key=lambda one: -one[1].count)[:_MAX_ROWS]


def _level(event: Event | None) -> Text:
    return Text() if event is None else Text(event.level, style=LEVEL_STYLES[event.level])


def _reason(event: Event | None) -> str:
    return "no line of it is here" if event is None else f"{_position(event)}: {event.fields.get('reason', '')}"


def _details(event: Event | None) -> str:
    if event is None:
        return ""
    name = event.name if " " in event.name else ""  # a library's sentence
    return " ".join([name, *[f"{key}={value}" for key, value in event.fields.items() if key not in SHOWN_APART]])[:300]


def _position(event: Event) -> str:
    return "-".join(str(event.fields.get(key)) for key in ("topic", "partition", "offset"))


def _slow(digest: Digest, num_rows: int) -> Parts:
    """The slowest requests, slow periods, and the batches that took longest."""
    slowest = {name: requests for name in CLASSES if (requests := digest.requests.slowest[name][:num_rows])}
    for name, requests in slowest.items():
        yield _slowest(digest, name, requests)
    if not slowest:
        yield Text("No answered request is in the logs (request_done).")
    if periods := slow_periods(digest.series):
        yield Section(
            "Slow periods", SLOW, period_columns(lambda one: date_and_clock(one.start_s)), periods[:_MAX_ROWS]
        )
    yield from _longest_batches(digest, num_rows)


def _slowest(digest: Digest, name: str, requests: list[Event]) -> Section:
    topics = {str(event.fields.get("topic")) for event in requests}
    topic = f"; all of {printable(topics.pop())}" if len(topics) == 1 else ""
    columns = (
        Column("time", lambda one: clock(one.time_s)),
        *[_stage_column(stage) for stage in ("total", "kafka", "tokenize", "cache", "schedule", "compute")],
        Column(">batch", lambda one: _tokens(one.fields.get("batch_tokens"))),
        Column("trigger", lambda one: one.fields.get("trigger", "-")),
        *_log_column(digest, lambda one: one.source),
        Column(
            "request",
            lambda one: f"{one.fields.get('partition')}:{one.fields.get('offset')}" if topic else _position(one),
        ),
    )
    return Section(f"Slowest {name} requests", _SAMPLED[name] + topic, columns, requests)


def _stage_column(stage: str) -> Column:
    def cell(event: Event) -> str:
        ms = event.number(f"{stage}_ms")
        return "-" if ms is None else duration(ms / 1e3)

    return Column(f">{stage}", cell)


def _tokens(value: object) -> str:
    tokens = number(value)
    return "-" if tokens is None else f"{integer(tokens)} tok"


def _log_column(digest: Digest, source_of: Callable[[Any], int]) -> list[Column]:
    """Which log a row is of, where there are several."""
    return [Column("log", lambda one: digest.sources[source_of(one)].name)] if len(digest.sources) > 1 else []


def period_columns(start: Callable[[Any], str]) -> list[Column]:
    """Of slow periods. `start`: how the time of one is shown."""
    return [
        Column("from", start),
        Column(">for", lambda one: duration(one.end_s - one.start_s)),
        Column(">p95", lambda one: duration(one.p95_s) if is_known(one.p95_s) else "-"),
        Column(">answered", lambda one: integer(one.answered)),
        Column(">missed", lambda one: integer(one.missed)),
        Column(">backlog", lambda one: duration(one.backlog_s)),
    ]


def _longest_batches(digest: Digest, num_rows: int) -> Parts:
    columns = (
        Column("time", lambda one: clock(one["time_s"])),
        Column(">measured", lambda one: duration(one["device_s"])),
        Column(">predicted", lambda one: duration(one["predicted_s"])),
        Column(">sequences", lambda one: integer(one["sequences"])),
        Column(">tokens", lambda one: integer(one["tokens"])),
        Column(">longest", lambda one: integer(one["max_seqlen"])),
        Column("trigger", lambda one: one["trigger"]),
        Column("partition", lambda one: one["partition"]),
        *_log_column(digest, lambda one: one["source"]),
        Column(">worker", lambda one: "" if one["worker"] is None else one["worker"]),
    )
    if longest := digest.batches.longest[:num_rows]:
        yield Section("Longest batches", _LOGGED, columns, longest)


_BATCHES = Column(">batches", lambda one: integer(one.batches))
_SIZE = Column("tokens", lambda one: "1" if one.name == 0 else f"{2 ** (one.name - 1) + 1:,}-{2**one.name:,}")
_MEANS = (
    Column(">sequences", lambda one: short(one.sequences / one.batches)),
    Column(">tokens", lambda one: short(one.tokens / one.batches)),
    Column(">time", lambda one: duration(one.device_s / one.batches)),
    Column(">padding avoided", lambda one: share(one.padding_avoided)),
)
_COSTS = (
    _BATCHES,
    Column(">predicted", lambda one: duration(one.predicted_s / one.batches)),
    Column(">measured", lambda one: duration(one.device_s / one.batches)),
    Column(">bias", lambda one: f"{one.bias * 100:+.1f} %"),
    Column(">error p50", lambda one: share(one.ratios.deviation(50))),
    Column(">p95", lambda one: share(one.ratios.deviation(95))),
    Column("", lambda one: bar(one.ratios.deviation(95) / 2, 12)),
)


def shares(every: int) -> tuple[Column, ...]:
    """Batches of groups, as numbers and shares of all."""
    part = Column(">share", lambda one: share(one.batches / every))
    return _BATCHES, part, Column("", lambda one: bar(one.batches / every))


def _batches(digest: Digest, _: int) -> Parts:
    """Triggers, partitions, sizes and padding."""
    batches, every = digest.batches, digest.batches.all.batches
    if not every:
        yield Text("No batch is in the logs (batch_done).")
        return
    total = max(digest.series.totals()["batches"], every)
    title, note = "Batches", f"{integer(total)}, of which {integer(every)} are logged: {_LOGGED}"
    for key in ("trigger", "partition"):
        yield Section(title, note, (Column(key, lambda one: one.name), *shares(every), *_MEANS), batches.by(key))
        title = ""
    sizes = batches.by("size")
    most = max(group.batches for group in sizes)
    bars = Column("", lambda one: bar(one.batches / most))
    speed = Column(">tokens/s", lambda one: integer(one.tokens / one.device_s if one.device_s else 0.0))
    gains = batches.dp_gain
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
    size = Column("tokens", lambda one: "all" if one.name == "all" else _SIZE.cell(one))
    rows, note = [*batches.by("size"), every], f"of {integer(every.batches)} logged batches"
    yield Section(
        "Predicted against measured", note, (size, *_COSTS), rows, style=lambda one: "bold" if one is every else ""
    )
    yield Section("", "", (Column("trigger", lambda one: one.name), *_COSTS), batches.by("trigger"))
    if abs(every.bias) > _BIASED:
        direction = "more" if every.bias > 0 else "less"
        text = (
            f"Batches take {direction} in the prediction than on the device: `penstock calibrate` measures them again."
        )
        yield Text(text, style=WARN)


SCREENS = {
    "slow": Screen("Show the slowest requests, slow periods and the longest batches.", _slow, 20),
    "errors": Screen("Show rejected requests by code, and warnings and errors by event.", _errors),
    "batches": Screen("Show triggers, partitions, sizes and padding of batches.", _batches),
    "costs": Screen("Compare the predicted seconds of batches with the measured ones.", _costs),
}
