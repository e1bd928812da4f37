"""`penstock logs summary`: one screen about everything."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.ops.logs.lines.event import Event, clock, date_and_clock, duration, printable
from penstock.ops.logs.screens.tables import (
    BAD,
    DIM,
    WARN,
    bar,
    count,
    curve,
    heading,
    is_known,
    joined,
    row,
    show,
    table,
)
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import PERCENTS, best_rate, integer, rate, share, short
from penstock.ops.logs.totals.histogram import Histogram
from penstock.ops.logs.totals.lives import sentence
from penstock.ops.logs.totals.series import LATE, TRIGGERS, latency_percentile_s
from penstock.ops.logs.totals.slow_periods import slow_periods

_MAX_PERIODS = 5
_MAX_LIFE = 12
_MAX_NAME_CHARS = 40
_MAX_HELD_TWICE_S = 2.0  # more is said


def show_summary(console: Console, digest: Digest) -> None:
    """Print it."""
    _show_input(console, digest)
    _show_overview(console, digest)
    _show_stages(console, digest)
    _show_triggers(console, digest)
    _show_slow_periods(console, digest)
    _show_workers(console, digest)


def show_notes(console: Console, digest: Digest) -> None:
    """The part of the input that could not be used. Every command ends with it."""
    lines, notes = digest.lines, []
    if lines.broken:
        notes.append(f"{integer(lines.broken)} of {integer(lines.lines)} lines are broken and were left out")
    if lines.foreign:
        notes.append(f"{integer(lines.foreign)} lines are of other programs")
    if lines.timeless:
        notes.append(f"{integer(lines.timeless)} events have no time")
    if digest.gaps.num_steps_back:
        notes.append("times of a log go back by more than 30 s: a clock was set, or files were joined out of order")
    if digest.requests.num_ahead:
        number = integer(digest.requests.num_ahead)
        notes.append(f"{number} sampled requests were made later than they arrived: the clocks of hosts differ")
    if (held_s := digest.held_twice_s) > _MAX_HELD_TWICE_S:
        held = f"by their clocks, workers of two logs held one partition for {duration(held_s)}"
        notes.append(f"{held}: the clocks of hosts differ, or a worker was evicted and noticed it late")
    notes = [f"{note[:1].upper()}{note[1:]}" for note in notes]
    notes += [f"{source.name}: {note}" for source in digest.sources for note in source.notes]
    for note in notes:
        console.print(Text(printable(f"{note}."), style=WARN), soft_wrap=True)
    for example in lines.examples[:1]:
        console.print(Text(f"  such as: {ascii(example)[1:-1]}", style=DIM), overflow="ellipsis", no_wrap=True)


def _show_input(console: Console, digest: Digest) -> None:
    starts = list(digest.gaps.first_s.values())
    ends = list(digest.gaps.last_s.values())
    lines = digest.lines
    logs = count(len(digest.sources), "log") if len(digest.sources) > 1 else digest.sources[0].name
    head = f"{logs}, {integer(lines.lines)} lines, {integer(lines.events)} events"
    if digest.models:
        head += f"; model {', '.join(sorted(digest.models))}"
    console.print(Text(printable(head)), soft_wrap=True)
    if starts:
        span = duration(max(ends) - min(starts))
        console.print(Text(f"{date_and_clock(min(starts))} to {_end(min(starts), max(ends))} UTC, {span}"))
    show_notes(console, digest)


def _end(start_s: float, end_s: float) -> str:
    """The date is not repeated."""
    first, last = date_and_clock(start_s), date_and_clock(end_s)
    return last[11:] if first[:10] == last[:10] else last


def _show_overview(console: Console, digest: Digest) -> None:
    totals, batches = digest.series.totals(), digest.batches
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    answered, span_s = totals["answered"], max(digest.series.span_s, 1)
    grid.add_row("requests", f"{integer(answered)} answered, {rate(answered / span_s)}; {_best(digest)}")
    if is_known(latency_percentile_s(totals, 50)):
        shown = [f"p{percent} {duration(latency_percentile_s(totals, percent))}" for percent in PERCENTS]
        grid.add_row("latency", Text("  ".join(shown)) + Text("  online, from arrival at the worker to the reply", DIM))
    if rejected := digest.rejections.total:
        refused = sorted(digest.rejections.by_code.items(), key=lambda one: -one[1].count)
        codes = joined(f"{code} {integer(one.count)}" for code, one in refused)
        grid.add_row("rejected", Text(printable(f"{integer(rejected)}: {codes}"), WARN))
    missed = joined(f"{cause} {integer(totals[cause])}" for cause in LATE[1:] if totals[cause])
    grid.add_row("deadlines missed", Text(missed, WARN) if missed else "none")
    if totals["cached"]:
        grid.add_row("cache", f"{share(totals['cached'] / (totals['cached'] + totals['sequences']))} of the sequences")
    if batches.all.batches:
        _add_batches(grid, digest)
    if totals["backlog_s"] or totals["queued_sequences"]:
        queued = f"{duration(totals['backlog_s'])}, {count(totals['queued_sequences'], 'sequence')}"
        grid.add_row("greatest backlog", queued)
    problems = sorted(digest.problems.items(), key=lambda one: -one[1].count)
    if problems:
        grid.add_row(
            "warnings, errors",
            Text(printable(joined(f"{_shortened(name)} {integer(one.count)}" for name, one in problems[:6])), WARN),
        )
    console.print()
    console.print(grid)
    if digest.series and digest.series.span_s > 1:
        _, columns = digest.series.spans(max(1, digest.series.span_s // 60))
        values = columns["answered"] if answered else columns["logged_sequences"]
        what = "answers" if answered else "sequences"
        console.print(curve(values.tolist(), f"{what} over time"))


def _best(digest: Digest) -> str:
    best = best_rate(digest)
    return f"{rate(best)} in the best 10 s" if is_known(best) else ""


def _add_batches(grid: Table, digest: Digest) -> None:
    batches, totals = digest.batches, digest.series.totals()
    number = max(totals["batches"], batches.all.batches)
    logged = "all logged" if number <= batches.all.batches else f"{integer(batches.all.batches)} of them logged"
    sizes = f"{count(batches.sequences.percentile(50), 'sequence')}, {count(batches.tokens.percentile(50), 'token')}"
    grid.add_row("batches", f"{integer(number)} ({logged}); median {sizes}, {duration(batches.seconds.percentile(50))}")
    grid.add_row("padding avoided", f"{share(batches.all.padding_avoided)} of the padded tokens")
    error = f"p50 {share(batches.all.ratios.deviation(50))}, p95 {share(batches.all.ratios.deviation(95))}"
    grid.add_row("cost error", f"{error}; predicted {short(1 + batches.all.bias)} times the measured seconds")


def _show_stages(console: Console, digest: Digest) -> None:
    for name, stages in digest.requests.stages.items():
        if len(stages["total"]):
            _show_stages_of(console, name, stages)


def _show_stages_of(console: Console, name: str, stages: dict[str, Histogram]) -> None:
    number = integer(len(stages["total"]))
    heading(console, f"Stages, {name}", f"of {number} requests: the first of each second of each worker")
    made = table("stage", *[f">p{percent}" for percent in PERCENTS], ">greatest", "")
    greatest = max(times.percentile(95) for times in stages.values() if len(times))
    for stage, times in stages.items():
        if len(times):
            shown = [duration(times.percentile(percent)) for percent in PERCENTS]
            row(made, stage, *shown, duration(times.greatest), bar(times.percentile(95) / greatest if greatest else 0))
    show(console, made)


def _show_triggers(console: Console, digest: Digest) -> None:
    every = digest.batches.all.batches
    if not every:
        return
    heading(console, "Triggers", "why batches ran")
    made = table("trigger", ">batches", ">share", "")
    for trigger, group in sorted(digest.batches.by("trigger").items(), key=lambda one: -one[1].batches)[
        : len(TRIGGERS)
    ]:
        row(made, trigger, integer(group.batches), share(group.batches / every), bar(group.batches / every))
    show(console, made)


def _show_slow_periods(console: Console, digest: Digest) -> None:
    periods = slow_periods(digest.series)
    if not periods:
        return
    note = "requests late or rejected for lateness, or a p95 over three times the usual"
    heading(console, f"Slow periods: {len(periods)}", note)
    made = table("from", ">for", ">p95", ">answered", ">missed", ">backlog")
    worst = sorted(periods, key=lambda one: -one.missed)[:_MAX_PERIODS]
    for one in sorted(worst):
        p95 = duration(one.p95_s) if is_known(one.p95_s) else "-"
        span, backlog = duration(one.end_s - one.start_s), duration(one.backlog_s)
        row(made, clock(one.start_s), span, p95, integer(one.answered), integer(one.missed), backlog)
    show(console, made)


def _show_workers(console: Console, digest: Digest) -> None:
    counts = digest.lives.counts
    if not digest.lives.events and not digest.gaps.count:
        return
    figures = joined(
        count(number, name)
        for number, name in (
            (counts["start"], "start"),
            (counts["restart"], "restart"),
            (counts["death"], "death"),
            (counts["rebalance"], "rebalance"),
            (digest.gaps.count, "gap"),
        )
        if number
    )
    heading(console, "Workers", figures)
    made = table("time", "log", ">worker", "event")
    events = sorted(digest.lives.events, key=lambda event: event.time_s or 0.0)
    shown = _most_telling(events)
    for event in shown:
        worker, name = event.fields.get("worker", ""), digest.sources[event.source].name
        style = BAD if event.level in ("error", "critical") else WARN if event.level == "warning" else ""
        row(made, clock(event.time_s), name, worker, Text(printable(sentence(event)), style=style))
    show(console, made)
    if len(shown) < len(events):
        console.print(Text(f"{len(shown)} of {integer(len(events))}: warnings, and the latest.", style=DIM))
    for gap in digest.gaps.longest[:3]:
        text = f"{digest.sources[gap.source].name}: no line from {clock(gap.start_s)} for "
        console.print(Text(text + duration(gap.end_s - gap.start_s), style=WARN))


def _most_telling(events: list[Event]) -> list[Event]:
    """The latest warnings and errors, and the latest others in the room that is left, by time."""
    bad = [event for event in events if event.level not in ("debug", "info")][-_MAX_LIFE // 2 :]
    others = [event for event in events if event.level in ("debug", "info")][-(_MAX_LIFE - len(bad)) :]
    return sorted([*bad, *others], key=lambda event: event.time_s or 0.0)


def _shortened(name: str) -> str:
    """Events have names; what a library logs is a sentence."""
    return name if len(name) <= _MAX_NAME_CHARS else f"'{name[: _MAX_NAME_CHARS - 1]}…'"
