"""`penstock logs errors`, `slow`, `batches` and `costs`: one table after another."""

from rich.console import Console
from rich.text import Text

from penstock.ops.logs.lines.columns import CLASSES
from penstock.ops.logs.lines.event import Event, clock, date_and_clock, duration, number, printable
from penstock.ops.logs.screens.tables import BAD, DIM, WARN, bar, curve, heading, is_known, row, show, table
from penstock.ops.logs.totals.batches import BatchGroup
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import integer, share, short
from penstock.ops.logs.totals.slow_periods import slow_periods
from penstock.ops.logs.totals.tally import Tally

_MAX_ROWS = 40
_STAGES = ("total", "kafka", "tokenize", "cache", "schedule", "compute")
_BIASED = 0.2  # from here on the predicted times are worth measuring again
_SAMPLED = {
    "online": "of each worker the slowest of each second is logged",
    "bulk": "of each worker the first request of each second is logged, where it is of a job",
}
_LOGGED = "of each worker the first 100 of each second are logged"


def show_errors(console: Console, digest: Digest) -> None:
    """Rejected requests by code, then warnings and errors by event."""
    refused, problems = digest.rejections.by_code, digest.problems
    if not refused and not problems:
        console.print("No request was rejected, and nothing was logged as a warning or an error.")
    if refused:
        heading(console, "Rejected requests", integer(digest.rejections.total))
        made = table("code", ">requests", "", "first", "last", "the latest, and why")
        greatest = max(one.count for one in refused.values())
        for code, one in _by_count(refused):
            first, last = map(clock, one.span_s)
            row(made, code, integer(one.count), bar(one.count / greatest, 12), first, last, _reason(one.example))
        show(console, made)
        _, columns = digest.series.spans(max(1, digest.series.span_s // 60))
        console.print(curve(columns["refused"].tolist(), "rejected over time"))
    if problems:
        heading(console, "Warnings and errors", integer(sum(one.count for one in problems.values())))
        made = table("event", ">lines", "level", "first", "last", "logs", "the latest")
        for name, one in _by_count(problems):
            level = one.example.level if one.example is not None else ""
            style = WARN if level == "warning" else BAD
            logs = ", ".join(digest.sources[index].name for index in sorted(one.sources)[:3])
            cells = Text(level, style=style), *map(clock, one.span_s), logs, _details(one.example)
            row(made, name[:36], integer(one.count), *cells)
        show(console, made)


def show_slow(console: Console, digest: Digest, count: int) -> None:
    """The slowest requests, slow periods, and the batches that took longest."""
    slowest = {name: requests for name in CLASSES if (requests := digest.requests.slowest[name][:count])}
    for name, requests in slowest.items():
        _show_slowest(console, digest, name, requests)
    if not slowest:
        console.print("No answered request is in the logs (request_done).")
    periods = slow_periods(digest.series)
    if periods:
        heading(console, "Slow periods", "requests late or rejected for lateness, or a p95 over three times the usual")
        made = table("from", ">for", ">p95", ">answered", ">missed", ">backlog")
        for one in periods[:_MAX_ROWS]:
            p95 = duration(one.p95_s) if is_known(one.p95_s) else "-"
            span = duration(one.end_s - one.start_s)
            cells = p95, integer(one.answered), integer(one.missed), duration(one.backlog_s)
            row(made, date_and_clock(one.start_s), span, *cells)
        show(console, made)
    _show_longest_batches(console, digest, count)


def _show_slowest(console: Console, digest: Digest, name: str, requests: list[Event]) -> None:
    topics = {str(event.fields.get("topic")) for event in requests}
    topic = f"; all of {printable(topics.pop())}" if len(topics) == 1 else ""
    heading(console, f"Slowest {name} requests", _SAMPLED[name] + topic)
    stages = [f">{stage}" for stage in _STAGES]
    made = table("time", *stages, ">batch", "trigger", *_log_column(digest), "request")
    for event in requests:
        place = _place(event) if topic else _position(event)
        row(made, clock(event.time_s), *_stage_cells(event), *_log_cell(digest, event.source), place)
    show(console, made)


def show_batches(console: Console, digest: Digest) -> None:
    """Triggers, partitions, sizes and padding."""
    batches = digest.batches
    if not batches.all.batches:
        console.print("No batch is in the logs (batch_done).")
        return
    total = max(digest.series.totals()["batches"], batches.all.batches)
    heading(console, "Batches", f"{integer(total)}, of which {integer(batches.all.batches)} are logged: {_LOGGED}")
    for title, groups in (("trigger", batches.by("trigger")), ("partition", batches.by("partition"))):
        made = table(title, ">batches", ">share", "", ">sequences", ">tokens", ">time", ">padding avoided")
        for name, group in sorted(groups.items(), key=lambda one: -one[1].batches):
            part = group.batches / batches.all.batches
            row(
                made, name, integer(group.batches), share(part), bar(part), *_means(group), share(group.padding_avoided)
            )
        show(console, made)
        console.print()
    made = table("tokens", ">batches", "", ">sequences", ">tokens", ">time", ">padding avoided", ">tokens/s")
    greatest = max(group.batches for group in batches.by("size").values())
    for size, group in sorted(batches.by("size").items()):
        speed = group.tokens / group.device_s if group.device_s else 0.0
        cells = *_means(group), share(group.padding_avoided), integer(speed)
        row(made, _size(size), integer(group.batches), bar(group.batches / greatest), *cells)
    show(console, made)
    if len(batches.dp_gain):
        gain = f"p50 {share(batches.dp_gain.percentile(50))}, p95 {share(batches.dp_gain.percentile(95))}"
        console.print(Text(f"Predicted saving of batches by the dynamic program: {gain}.", style=DIM))
    _show_longest_batches(console, digest, 10)


def show_costs(console: Console, digest: Digest) -> None:
    """Predicted against measured seconds."""
    batches = digest.batches
    if not batches.all.batches:
        console.print("No batch is in the logs (batch_done).")
        return
    heading(console, "Predicted against measured", f"of {integer(batches.all.batches)} logged batches")
    made = table("tokens", ">batches", ">predicted", ">measured", ">bias", ">error p50", ">p95", "")
    for size, group in sorted(batches.by("size").items()):
        row(made, _size(size), *_cost_cells(group))
    row(made, "all", *_cost_cells(batches.all), style="bold")
    show(console, made)
    console.print()
    made = table("trigger", ">batches", ">predicted", ">measured", ">bias", ">error p50", ">p95", "")
    for name, group in sorted(batches.by("trigger").items(), key=lambda one: -one[1].batches):
        row(made, name, *_cost_cells(group))
    show(console, made)
    if abs(batches.all.bias) > _BIASED:
        direction = "more" if batches.all.bias > 0 else "less"
        text = (
            f"Batches take {direction} in the prediction than on the device: `penstock calibrate` measures them again."
        )
        console.print(Text(text, style=WARN), soft_wrap=True)


def _show_longest_batches(console: Console, digest: Digest, count: int) -> None:
    batches = digest.batches.longest[:count]
    if not batches:
        return
    heading(console, "Longest batches", _LOGGED)
    sizes = ">sequences", ">tokens", ">longest"
    made = table("time", ">measured", ">predicted", *sizes, "trigger", "partition", *_log_column(digest), ">worker")
    for one in batches:
        sizes = integer(one["sequences"]), integer(one["tokens"]), integer(one["max_seqlen"])
        worker = "" if one["worker"] is None else one["worker"]
        cells = *sizes, one["trigger"], one["partition"], *_log_cell(digest, one["source"]), worker
        row(made, clock(one["time_s"]), duration(one["device_s"]), duration(one["predicted_s"]), *cells)
    show(console, made)


def _by_count(table: dict[str, Tally]) -> list[tuple[str, Tally]]:
    return sorted(table.items(), key=lambda one: -one[1].count)[:_MAX_ROWS]


def _reason(event: Event | None) -> str:
    if event is None:
        return "no line of it is here"
    return f"{_position(event)}: {event.fields.get('reason', '')}"


def _details(event: Event | None) -> str:
    if event is None:
        return ""
    hidden = {"event", "logger", "level", "timestamp", "exception", "worker", "pid", "model"}
    sentence = event.name if " " in event.name else ""  # of a library
    return " ".join([sentence, *[f"{key}={value}" for key, value in event.fields.items() if key not in hidden]])[:300]


def _log_column(digest: Digest) -> list[str]:
    """Which log a row is of, where there are several."""
    return ["log"] if len(digest.sources) > 1 else []


def _log_cell(digest: Digest, source: int) -> list[str]:
    return [digest.sources[source].name] if len(digest.sources) > 1 else []


def _place(event: Event) -> str:
    return f"{event.fields.get('partition')}:{event.fields.get('offset')}"


def _position(event: Event) -> str:
    fields = event.fields
    return f"{fields.get('topic')}-{fields.get('partition')}-{fields.get('offset')}"


def _stage_cells(event: Event) -> list[str]:
    cells = []
    for stage in _STAGES:
        ms = event.number(f"{stage}_ms")
        cells.append("-" if ms is None else duration(ms / 1e3))
    tokens = number(event.fields.get("batch_tokens"))
    return [*cells, "-" if tokens is None else f"{integer(tokens)} tok", str(event.fields.get("trigger", "-"))]


def _size(size: int) -> str:
    return "1" if size == 0 else f"{2 ** (size - 1) + 1:,}-{2**size:,}"


def _means(group: BatchGroup) -> tuple[str, str, str]:
    count = group.batches
    return short(group.sequences / count), short(group.tokens / count), duration(group.device_s / count)


def _cost_cells(group: BatchGroup) -> tuple[object, ...]:
    count, error = group.batches, group.ratios.deviation(95)
    means = duration(group.predicted_s / count), duration(group.device_s / count)
    return (
        integer(count),
        *means,
        f"{group.bias * 100:+.1f} %",
        share(group.ratios.deviation(50)),
        share(error),
        bar(error / 2, 12),
    )
