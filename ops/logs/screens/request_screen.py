"""`penstock logs request`: one request as a small chart."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from penstock.ops.logs.lines.event import Event, clock, date_and_clock, duration, printable
from penstock.ops.logs.lines.reader import in_order
from penstock.ops.logs.lines.source import LogSource
from penstock.ops.logs.screens.event_line import event_line
from penstock.ops.logs.screens.tables import BAR, DIM, WARN, count, heading, joined
from penstock.ops.logs.totals.lives import sentence
from penstock.ops.logs.totals.request_story import RequestStory, StageTime, stages

_WIDTH = 56
_COLOURS = {"kafka": "blue", "tokenize": "magenta", "cache": "green", "schedule": "yellow", "compute": BAR}
_SAMPLED = (
    "Logs name two answered requests of each second of each worker (the first, and the slowest online one), and the "
    "first of requests that are rejected together."
)


def show_request(console: Console, story: RequestStory, sources: Sequence[LogSource]) -> None:
    """Print what is known."""
    if not story.found:
        console.print(Text(f"No line names request {printable(story.id)}. {_SAMPLED}", style=WARN), soft_wrap=True)
        _show_neighbours(console, story)
        return
    position = story.found_position
    place = f"{position.topic}-{position.partition}-{position.offset}" if position else story.id
    console.print(Text(f"request {printable(place)}", style="bold"), soft_wrap=True)
    if story.sample is not None:
        _show_way(console, story.sample, sources)
    others = in_order(event for event in story.found if event is not story.sample)
    if others:
        heading(console, "Lines that name it")
        for event in others:
            console.print(event_line(event, sources), soft_wrap=True)
    if story.of_batch:
        heading(console, "Failures of its batch")
        for event in in_order(story.of_batch):
            console.print(event_line(event, sources), soft_wrap=True)
    if story.sample is None:
        _show_neighbours(console, story)
    meanwhile = story.meanwhile()
    if meanwhile:
        heading(console, "Meanwhile", "within two seconds")
        for event in meanwhile[:20]:
            text = f"{clock(event.time_s, ms=True)}  {sources[event.source].name}  {printable(sentence(event))}"
            console.print(Text(text), soft_wrap=True)


def _show_way(console: Console, sample: Event, sources: Sequence[LogSource]) -> None:
    fields, way = sample.fields, stages(sample)
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
    start_s, end_s = way[0].start_s, (sample.time_s or 0.0) - (sample.number("ago_ms") or 0.0) / 1e3
    console.print()
    console.print(Text(f"{date_and_clock(start_s)[:10]} {clock(start_s, ms=True)} UTC  produced"))
    for stage in way:
        console.print(_bar(stage, start_s, max(end_s - start_s, 1e-9)))
    total_s = (sample.number("total_ms") or 0.0) / 1e3
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
    if (sample.number("kafka_ms") or 0.0) < 0:
        console.print(
            Text("Its producer's clock is ahead of the worker's, so the time in Kafka is not known.", style=WARN)
        )


def _bar(stage: StageTime, start_s: float, span_s: float) -> Text:
    first = round((stage.start_s - start_s) / span_s * _WIDTH)
    last = round((stage.start_s + stage.seconds - start_s) / span_s * _WIDTH)
    line = Text(f"  {stage.name:<9}{duration(stage.seconds):>9}  ")
    line.append(" " * min(first, _WIDTH - 1))
    return line.append("█" * (last - first) or "▏", style=_COLOURS[stage.name])


def _show_neighbours(console: Console, story: RequestStory) -> None:
    """Answers of the records around it: it was answered at the same time, or is behind."""
    for event, where in ((story.before, "before"), (story.after, "after")):
        if event is not None:
            offset = event.fields["offset"]
            at = f"{date_and_clock(event.time_s)} UTC"
            console.print(
                Text(f"The next sampled record {where} it, offset {offset}, was answered by {at}."), soft_wrap=True
            )
