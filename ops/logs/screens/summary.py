"""`penstock logs summary`: one screen about everything."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.ops.logs.lines.event import Event, clock, date_and_clock, duration, printable
from penstock.ops.logs.screens.screens import SLOW, Parts, period_columns, shares
from penstock.ops.logs.screens.tables import BAD, DIM, WARN, Column, Section, bar, count, curve, is_known, joined, show
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import PERCENTS, best_rate, integer, rate, share, short
from penstock.ops.logs.totals.histogram import Histogram
from penstock.ops.logs.totals.lives import sentence
from penstock.ops.logs.totals.series import LATE, TRIGGERS, latency_percentile_s
from penstock.ops.logs.totals.slow_periods import slow_periods

_MAX_PERIODS = 5
_MAX_LIFE = 12
_MAX_NAME_CHARS = 40
_STYLES = {"debug": "", "info": "", "warning": WARN, "error": BAD, "critical": BAD}
_MAX_HELD_TWICE_S = 2.0  # more is said


def show_summary(console: Console, digest: Digest) -> None:
    """Print it."""
    _show_input(console, digest)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in _overview(digest):
        grid.add_row(name, text)
    console.print()
    console.print(grid)
    if digest.series.span_s > 1:
        _, spans = digest.series.spans(max(1, digest.series.span_s // 60))
        what, column = ("answers", "answered") if spans["answered"].any() else ("sequences", "logged_sequences")
        console.print(curve(spans[column].tolist(), f"{what} over time"))
    show(console, _sections(digest))


def show_notes(console: Console, digest: Digest) -> None:
    """The part of the input that could not be used. Every command ends with it."""
    notes = [f"{note[:1].upper()}{note[1:]}" for note in _notes(digest)]
    notes += [f"{source.name}: {note}" for source in digest.sources for note in source.notes]
    for note in notes:
        console.print(Text(printable(f"{note}."), style=WARN), soft_wrap=True)
    for example in digest.lines.examples[:1]:
        console.print(Text(f"  such as: {ascii(example)[1:-1]}", style=DIM), overflow="ellipsis", no_wrap=True)


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
    if (held_s := digest.held_twice_s) > _MAX_HELD_TWICE_S:
        held = f"by their clocks, workers of two logs held one partition for {duration(held_s)}"
        yield f"{held}: the clocks of hosts differ, or a worker was evicted and noticed it late"


def _show_input(console: Console, digest: Digest) -> None:
    lines = digest.lines
    logs = count(len(digest.sources), "log") if len(digest.sources) > 1 else digest.sources[0].name
    head = f"{logs}, {integer(lines.lines)} lines, {integer(lines.events)} events"
    if digest.models:
        head += f"; model {', '.join(sorted(digest.models))}"
    console.print(Text(printable(head)), soft_wrap=True)
    if digest.gaps.span_s is not None:
        first_s, last_s = digest.gaps.span_s
        first, last = date_and_clock(first_s), date_and_clock(last_s)
        last = last[11:] if first[:10] == last[:10] else last  # the date is not repeated
        console.print(Text(f"{first} to {last} UTC, {duration(last_s - first_s)}"))
    show_notes(console, digest)


def _overview(digest: Digest) -> Iterator[tuple[str, str | Text]]:
    totals = digest.series.totals()
    best = best_rate(digest)
    best_text = f"{rate(best)} in the best 10 s" if is_known(best) else ""
    answered = f"{integer(totals['answered'])} answered, {rate(totals['answered'] / max(digest.series.span_s, 1))}"
    yield "requests", f"{answered}; {best_text}"
    if is_known(latency_percentile_s(totals, 50)):
        shown = "  ".join(f"p{percent} {duration(latency_percentile_s(totals, percent))}" for percent in PERCENTS)
        yield "latency", Text(shown) + Text("  online, from arrival at the worker to the reply", DIM)
    if rejected := digest.rejections.total:
        refused = sorted(digest.rejections.by_code.items(), key=lambda one: -one[1].count)
        codes = joined(f"{code} {integer(one.count)}" for code, one in refused)
        yield "rejected", Text(printable(f"{integer(rejected)}: {codes}"), WARN)
    missed = joined(f"{cause} {integer(totals[cause])}" for cause in LATE[1:] if totals[cause])
    yield "deadlines missed", Text(missed, WARN) if missed else "none"
    if totals["cached"]:
        yield "cache", f"{share(totals['cached'] / (totals['cached'] + totals['sequences']))} of the sequences"
    yield from _overview_of_batches(digest, totals["batches"])
    if totals["backlog_s"] or totals["queued_sequences"]:
        yield "greatest backlog", f"{duration(totals['backlog_s'])}, {count(totals['queued_sequences'], 'sequence')}"
    if problems := sorted(digest.problems.items(), key=lambda one: -one[1].count):
        shown = joined(f"{_shortened(name)} {integer(one.count)}" for name, one in problems[:6])
        yield "warnings, errors", Text(printable(shown), WARN)


def _overview_of_batches(digest: Digest, counted: float) -> Iterator[tuple[str, str]]:
    batches, every = digest.batches, digest.batches.all
    if not every.batches:
        return
    number = max(counted, every.batches)
    logged = "all logged" if number <= every.batches else f"{integer(every.batches)} of them logged"
    sizes = f"{count(batches.sequences.percentile(50), 'sequence')}, {count(batches.tokens.percentile(50), 'token')}"
    yield "batches", f"{integer(number)} ({logged}); median {sizes}, {duration(batches.seconds.percentile(50))}"
    yield "padding avoided", f"{share(every.padding_avoided)} of the padded tokens"
    error = f"p50 {share(every.ratios.deviation(50))}, p95 {share(every.ratios.deviation(95))}"
    yield "cost error", f"{error}; predicted {short(1 + every.bias)} times the measured seconds"


def _sections(digest: Digest) -> Parts:
    for name, stages in digest.requests.stages.items():
        if len(stages["total"]):
            yield _stages(name, {stage: times for stage, times in stages.items() if len(times)})
    if every := digest.batches.all.batches:
        columns = Column("trigger", lambda one: one.name), *shares(every)
        yield Section("Triggers", "why batches ran", columns, digest.batches.by("trigger")[: len(TRIGGERS)])
    if periods := slow_periods(digest.series):
        worst = sorted(sorted(periods, key=lambda one: -one.missed)[:_MAX_PERIODS])
        yield Section(f"Slow periods: {len(periods)}", SLOW, period_columns(lambda one: clock(one.start_s)), worst)
    if digest.lives.events or digest.gaps.count:
        yield _workers(digest)


def _stages(name: str, stages: dict[str, Histogram]) -> Section:
    greatest = max(times.percentile(95) for times in stages.values())
    columns = (
        Column("stage", lambda one: one[0]),
        Column(">p50", lambda one: duration(one[1].percentile(50))),
        Column(">p95", lambda one: duration(one[1].percentile(95))),
        Column(">p99", lambda one: duration(one[1].percentile(99))),
        Column(">greatest", lambda one: duration(one[1].greatest)),
        Column("", lambda one: bar(one[1].percentile(95) / greatest if greatest else 0)),
    )
    note = f"of {integer(len(stages['total']))} requests: the first of each second of each worker"
    return Section(f"Stages, {name}", note, columns, [*stages.items()])


def _workers(digest: Digest) -> Section:
    counts = {**digest.lives.counts, "gap": digest.gaps.count}
    figures = joined(count(number, name) for name, number in counts.items() if number)
    events = digest.lives.by_time
    shown = _most_telling(events)
    columns = (
        Column("time", lambda one: clock(one.time_s)),
        Column("log", lambda one: digest.sources[one.source].name),
        Column(">worker", lambda one: one.fields.get("worker", "")),
        Column("event", lambda one: Text(printable(sentence(one)), style=_STYLES[one.level])),
    )
    below = []
    if len(shown) < len(events):
        below.append(Text(f"{len(shown)} of {integer(len(events))}: warnings, and the latest.", style=DIM))
    for gap in digest.gaps.longest[:3]:
        text = f"{digest.sources[gap.source].name}: no line from {clock(gap.start_s)} for "
        below.append(Text(text + duration(gap.end_s - gap.start_s), style=WARN))
    return Section("Workers", figures, columns, shown, below)


def _most_telling(events: list[Event]) -> list[Event]:
    """The latest warnings and errors, and the latest others in the room that is left, by time."""
    bad = [event for event in events if event.level not in ("debug", "info")][-_MAX_LIFE // 2 :]
    others = [event for event in events if event.level in ("debug", "info")][-(_MAX_LIFE - len(bad)) :]
    return sorted([*bad, *others], key=lambda event: event.time_s or 0.0)


def _shortened(name: str) -> str:
    """Events have names; what a library logs is a sentence."""
    return name if len(name) <= _MAX_NAME_CHARS else f"'{name[: _MAX_NAME_CHARS - 1]}…'"
