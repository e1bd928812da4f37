"""`penstock logs summary`: one screen about everything; and the notes that end every screen."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from rich.table import Table
from rich.text import Text

from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.screens.screens import SLOW, Parts, period_columns, shares
from penstock.ops.logs.screens.tables import DIM, LEVEL_STYLES, WARN, Column, Section, bar, curve, is_known
from penstock.ops.logs.text import clock, count, date_and_clock, duration, integer, joined, printable
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import PERCENTS, facts
from penstock.ops.logs.totals.histogram import Histogram
from penstock.ops.logs.totals.lives import sentence
from penstock.ops.logs.totals.rejections import by_count
from penstock.ops.logs.totals.series import LATE, TRIGGERS, slow_periods

_MAX_PERIODS = 5
_MAX_LIFE = 12
_MAX_NAME_CHARS = 40
_MAX_HELD_TWICE_S = 2.0  # more is said


def summary(digest: Digest) -> Parts:
    """All of its parts."""
    yield from _input(digest)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in _overview(digest):
        grid.add_row(name, text)
    yield Text()
    yield grid
    if digest.series.span_s > 1:
        _, spans = digest.series.spans(max(1, digest.series.span_s // 60))
        what, column = ("answers", "answered") if spans["answered"].any() else ("sequences", "logged_sequences")
        yield curve(spans[column].tolist(), f"{what} over time")
    for name, stages in digest.requests.stages.items():
        if len(stages["total"]):
            yield _stages(name, {stage: times for stage, times in stages.items() if len(times)})
    if digest.routes:
        yield _routes(digest)
    if every := digest.batches.all.batches:
        columns = Column("trigger", "name"), *shares(every)
        yield Section("Triggers", "why batches ran", columns, digest.batches.by("trigger")[: len(TRIGGERS)])
    if periods := slow_periods(digest.series):
        worst = sorted(sorted(periods, key=lambda one: -one.missed)[:_MAX_PERIODS])
        yield Section(f"Slow periods: {len(periods)}", SLOW, period_columns(clock), worst)
    if digest.lives.events or digest.gaps.count:
        yield _workers(digest)


def notes(digest: Digest) -> Iterator[Text]:
    """The part of the input that could not be used. Every screen ends with it."""
    said = [f"{note[:1].upper()}{note[1:]}" for note in _notes(digest)]
    said += [f"{source.name}: {note}" for source in digest.sources for note in source.notes]
    yield from (Text(printable(f"{note}."), style=WARN) for note in said)
    for example in digest.lines.examples[:1]:
        yield Text(f"  such as: {ascii(example)[1:-1]}", style=DIM, overflow="ellipsis")


def _notes(digest: Digest) -> Iterator[str]:
    lines = digest.lines
    if lines.broken:
        yield f"{integer(lines.broken)} of {integer(lines.lines)} lines are broken and were left out"
    if lines.foreign:
        yield f"{integer(lines.foreign)} lines are of other programs"
    if lines.timeless:
        yield f"{integer(lines.timeless)} events have no time"
    if digest.gaps.num_steps_back:
        yield "times of a log go back by more than 30 s: a clock was set, or files were joined out of order"
    if digest.requests.num_ahead:
        number = integer(digest.requests.num_ahead)
        yield f"{number} sampled requests were made later than they arrived: the clocks of hosts differ"
    if digest.held_twice_s > _MAX_HELD_TWICE_S:
        held = f"by their clocks, workers of two logs held one partition for {duration(digest.held_twice_s)}"
        yield f"{held}: the clocks of hosts differ, or a worker was evicted and noticed it late"


def _input(digest: Digest) -> Iterator[Text]:
    lines = digest.lines
    logs = count(len(digest.sources), "log") if len(digest.sources) > 1 else digest.sources[0].name
    models = f"; model {', '.join(sorted(digest.models))}" if digest.models else ""
    yield Text(printable(f"{logs}, {integer(lines.lines)} lines, {integer(lines.events)} events{models}"))
    if digest.gaps.span_s is not None:
        first_s, last_s = digest.gaps.span_s
        first, last = date_and_clock(first_s), date_and_clock(last_s)
        last = last[11:] if first[:10] == last[:10] else last  # the date is not repeated
        yield Text(f"{first} to {last} UTC, {duration(last_s - first_s)}")
    yield from notes(digest)


def _overview(digest: Digest) -> Iterator[tuple[str, str | Text]]:
    totals, known = digest.series.totals(), facts(digest)
    shown = {name: fact.text for (_, name), fact in known.items()}
    answered = f"{shown['answered']} answered, {shown['answered a second']}"
    yield "requests", f"{answered}; {shown['in the best 10 s']} in the best 10 s"
    if is_known(known["requests", "latency p50"].value):
        latencies = "  ".join(f"p{percent} {shown[f'latency p{percent}']}" for percent in PERCENTS)
        yield "latency", Text(latencies) + Text("  online, from arrival at the worker to the reply", DIM)
    if rejected := digest.rejections.total:
        codes = joined(f"{one.name} {integer(one.count)}" for one in by_count(digest.rejections.by_code))
        yield "rejected", Text(printable(f"{integer(rejected)}: {codes}"), WARN)
    missed = joined(f"{cause} {integer(totals[cause])}" for cause in LATE[1:] if totals[cause])
    yield "deadlines missed", Text(missed, WARN) if missed else "none"
    if totals["cached"]:
        yield "cache", f"{shown['from the cache']} of the sequences"
    if logged := digest.batches.all.batches:
        some = "all" if known["batches", "batches"].value <= logged else f"{integer(logged)} of them"
        medians = [count(known["batches", f"{noun}s p50"].value, noun) for noun in ("sequence", "token")]
        median = joined([*medians, shown["time p50"]])
        yield "batches", f"{shown['batches']} ({some} logged); median {median}"
        yield "padding avoided", f"{shown['padding avoided']} of the padded tokens"
        error = f"p50 {shown['error p50']}, p95 {shown['error p95']}"
        yield "cost error", f"{error}; predicted {shown['predicted over measured']} times the measured seconds"
    if totals["backlog_s"] or totals["queued_sequences"]:
        yield "greatest backlog", f"{shown['greatest backlog']}, {count(totals['queued_sequences'], 'sequence')}"
    if problems := by_count(digest.problems):
        names = joined(f"{_shortened(one.name)} {integer(one.count)}" for one in problems[:6])
        yield "warnings, errors", Text(printable(names), WARN)


def _stages(name: str, stages: dict[str, Histogram]) -> Section:
    greatest = max(times.percentile(95) for times in stages.values())
    columns = (
        Column("stage", lambda one: one[0]),
        *[Column(f">p{percent}", partial(_percentile, percent), duration) for percent in PERCENTS],
        Column(">greatest", lambda one: one[1].greatest, duration),
        Column("", lambda one: bar(one[1].percentile(95) / greatest if greatest else 0)),
    )
    note = f"of {integer(len(stages['total']))} requests: the first of each second of each worker"
    return Section(f"Stages, {name}", note, columns, [*stages.items()])


def _routes(digest: Digest) -> Section:
    columns = (
        Column("input topic", lambda one: one[0]),
        Column(">enriched", lambda one: one[1]["ok"], integer),
        Column(">passed", lambda one: one[1]["passed"], integer),
        Column("failed", lambda one: _failures(one[1])),
    )
    return Section("Routes", "finished records", columns, sorted(digest.routes.items()))


def _failures(outcomes: Counter[str]) -> Text:
    failed = [(code, records) for code, records in outcomes.most_common() if code not in ("ok", "passed")]
    return Text(
        printable(joined(f"{code} {integer(records)}" for code, records in failed) or "0"), WARN if failed else ""
    )


def _percentile(percent: float, one: tuple[str, Histogram]) -> float:
    return one[1].percentile(percent)


def life_columns(digest: Digest) -> tuple[Column, ...]:
    """Of starts, ends and rebalances."""
    return (
        Column("time", lambda one: clock(one.time_s)),
        Column("log", lambda one: digest.sources[one.source].name),
        Column(">worker", lambda one: one.fields.get("worker", "")),
        Column("event", lambda one: Text(printable(sentence(one)), style=LEVEL_STYLES[one.level])),
    )


def _workers(digest: Digest) -> Section:
    counts = {**digest.lives.counts, "gap": digest.gaps.count}
    figures = joined(count(number, name) for name, number in counts.items() if number)
    events = digest.lives.by_time
    shown = _most_telling(events)
    below = []
    if len(shown) < len(events):
        below.append(Text(f"{len(shown)} of {integer(len(events))}: warnings, and the latest.", style=DIM))
    for gap in digest.gaps.longest[:3]:
        text = f"{digest.sources[gap.source].name}: no line from {clock(gap.start_s)} for "
        below.append(Text(text + duration(gap.end_s - gap.start_s), style=WARN))
    return Section("Workers", figures, life_columns(digest), shown, below)


def _most_telling(events: list[Event]) -> list[Event]:
    """The latest warnings and errors, and the latest others in the room that is left, by time."""
    bad = [event for event in events if event.level not in ("debug", "info")][-_MAX_LIFE // 2 :]
    others = [event for event in events if event.level in ("debug", "info")][-(_MAX_LIFE - len(bad)) :]
    return sorted([*bad, *others], key=lambda event: event.time_s or 0.0)


def _shortened(name: str) -> str:
    """Events have names; what a library logs is a sentence."""
    return name if len(name) <= _MAX_NAME_CHARS else f"'{name[: _MAX_NAME_CHARS - 1]}…'"
