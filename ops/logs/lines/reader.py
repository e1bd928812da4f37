"""Reads several logs: batches and events that pass the filters, and what else the lines were."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

from penstock.ops.logs.errors import NoEvents
from penstock.ops.logs.lines.batch_columns import BATCH_COLUMNS
from penstock.ops.logs.lines.block_parser import BlockParser, LineCounts, Parsed
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.filters import Filters, check_fields
from penstock.ops.logs.lines.line_columns import Found
from penstock.ops.logs.lines.source import LogSource, in_large_blocks, origin

_TOPIC = re.compile(r"penstock\.requests\.(.+?)(\.bulk)?")
_NAMES_MODEL = ("worker_ready", "model_loaded")  # events with the model's name


class Part(NamedTuple):
    """The contents of one block of a source."""

    source: int
    batches: Any  # a polars frame with BATCH_COLUMNS
    requests: list[Found]  # without filters, of large logs: request_done and request_refused. Else they are events
    events: list[Event]


class LogReader:
    """One pass over logs, in bounded memory."""

    def __init__(
        self, sources: Sequence[LogSource], filters: Filters, progress: Callable[[int], None] | None = None
    ) -> None:
        """`progress` is called after each block, with the bytes that have been read of all sources."""
        self.sources = sources
        self._progress = progress
        self.counts = LineCounts()
        self.num_kept = 0  # batches and events that passed the filters
        self._filters = filters
        self.absent_fields = filters.fields  # of the filters, that no event so far has
        self._models: dict[str, dict[int | None, str]] = {}  # by origin and worker

    def parts(self, *, in_columns: bool = False) -> Iterator[Part]:
        """Read everything, one source after another. Raises NoEvents at the end if no line was an event.

        And BadFilter if a filter is by a field that neither an event has nor a worker logs.

        `in_columns`: requests may be columns.
        """
        in_columns = in_columns and not self._filters.is_any
        for index, source in enumerate(self.sources):
            for parsed in _parsed_ahead(source, BlockParser(index, self.counts, in_columns=in_columns)):
                yield self._filtered(index, parsed)
                if self._progress is not None:
                    self._progress(sum(one.num_bytes for one in self.sources))
            self.counts.broken += source.num_long_lines
            self.counts.lines += source.num_long_lines
        if not self.counts.events:
            raise NoEvents(self._why_nothing())
        check_fields(self.absent_fields)

    def origin(self, source: int) -> str:
        """The name that a log has kept through its rotations: worker.log for worker.log.2.gz."""
        return origin(self.sources[source].name)

    def _filtered(self, source: int, parsed: Parsed) -> Part:
        batches, requests, events = parsed
        if not self._filters.is_any:
            self.num_kept += len(events) + len(batches) + sum(len(found.rows) for found in requests)
            return Part(source, batches, requests, events)
        models = self._models.setdefault(self.origin(source), {})
        kept = []
        self.absent_fields -= set(BATCH_COLUMNS) if len(batches) else set()
        for event in events:
            self.absent_fields -= event.fields.keys()
            if (model := _model_named_by(event)) is not None:
                models[_worker(event.fields)] = model
            if (passed := self._filters.passed(event, models.get(_worker(event.fields)))) is not None:
                kept.append(passed)
        batches = self._filters.batches(batches, models)
        self.num_kept += len(kept) + len(batches)
        return Part(source, batches, [], kept)

    def _why_nothing(self) -> str:
        names = ", ".join(source.name for source in self.sources[:3]) + (" …" if len(self.sources) > 3 else "")
        notes = "".join(f" {source.name}: {note}." for source in self.sources for note in source.notes)
        if not self.counts.lines:
            return f"{names}: no line.{notes}"
        return (
            f"{names}: none of {self.counts.lines:,} lines is an event of penstock.{notes} A worker logs JSON with "
            "PENSTOCK_LOG_FORMAT=json, and where its stderr is no terminal."
        )


def _parsed_ahead(source: LogSource, parser: BlockParser) -> Iterator[Parsed]:
    """A source's blocks, parsed one ahead in a thread, on another core."""
    blocks = in_large_blocks(source.blocks())

    def parse_next() -> Parsed | None:
        block = next(blocks, None)
        return None if block is None else parser.parse(block)

    with ThreadPoolExecutor(1) as thread, closing(source):
        ahead = thread.submit(parse_next)
        while (parsed := ahead.result()) is not None:
            ahead = thread.submit(parse_next)
            yield parsed


def in_order(events: Iterable[Event]) -> list[Event]:
    """Events of several sources by time. One without a time follows the line before it."""
    last: dict[int, float] = {}
    keyed = []
    for number, event in enumerate(events):
        time_s = last.get(event.source, 0.0) if event.time_s is None else event.time_s
        last[event.source] = time_s
        keyed.append((time_s, number, event))
    return [event for _, _, event in sorted(keyed, key=lambda one: one[:2])]


def _worker(fields: Mapping[str, Any]) -> int | None:
    worker = fields.get("worker")
    return worker if isinstance(worker, int) else None


def _model_named_by(event: Event) -> str | None:
    if event.name in _NAMES_MODEL:
        return event.text("model")
    topic = event.fields.get("topic")
    match = _TOPIC.fullmatch(topic) if isinstance(topic, str) else None
    return match[1] if match is not None else None
