"""Reads several logs: what passes the filters, and what else the lines were."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from penstock.ops.logs.errors import NoEvents
from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.blocks import OWN, LineCounts, Part, parse_block
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.filters import Filters, check_fields, compared_fields
from penstock.ops.logs.lines.source import LogSource, origin

_TOPIC = r"^penstock\.requests\.(.+?)(?:\.bulk)?$"


class EventSelection:
    """Keeps what passes the filters, of blocks in the order of their lines."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._compared = compared_fields(filters)
        self._by_model = "model" in self._compared
        self._models: dict[str, dict[str, str]] = {}  # by log and worker
        self.absent_fields = self._compared - {"model"}  # that no event so far has
        self.fields = self._compared | ({"topic"} if self._by_model else set())  # that rows need

    def keep(self, part: Part, log: str) -> Part:
        """The events that pass. `log`: the name that the log has kept through its rotations.

        Of a load also the rejections of which lines of request_refused would pass, as far as a load has their fields:
        those lines are limited, and its counts are not.
        """
        self.absent_fields -= {key for key in self.absent_fields - {*OWN} if part.rows[key].count()}
        compared = [pl.col(key).is_not_null() for key in self._compared - {"model", *OWN}]
        passes = pl.all_horizontal(pl.lit(True), *[term.holds() for term in self._filters])
        of_load = (passes & (pl.col("counted") == 0)).any().over("place") & ("code" not in self._compared)
        of_line = pl.all_horizontal(passes, *compared)
        is_kept = pl.when(pl.col("counted") > 0).then(of_load | of_line).otherwise(passes)
        return part._replace(rows=self._with_models(part.rows, log).filter(is_kept))

    def _with_models(self, rows: Any, log: str) -> Any:
        """`model` is that of the worker where a line has none: the latest that a line of the worker names."""
        if not self._by_model:
            return rows
        models = self._models.setdefault(log, {"": ""})
        is_start = pl.col("event").is_in(["worker_ready", "model_loaded"])
        named = pl.when(is_start).then(pl.col("model")).otherwise(pl.col("topic").str.extract(_TOPIC))
        worker = pl.col("worker").cast(pl.String).fill_null("?")
        workers = rows.select(worker, named=named.forward_fill().over(worker))
        before = workers["worker"].replace_strict(models, default=None, return_dtype=pl.String)
        models.update(workers.drop_nulls("named").group_by("worker").agg(pl.col("named").last()).iter_rows())
        return rows.with_columns(pl.coalesce("model", workers["named"], before))


class LogReader:
    """One pass over logs, in bounded memory."""

    def __init__(
        self, sources: Sequence[LogSource], filters: Filters, progress: Callable[[int], None] | None = None
    ) -> None:
        """`progress` is called after each block, with the bytes that have been read of all sources."""
        self.sources = sources
        self._progress = progress
        self.counts = LineCounts()
        self.num_kept = 0  # events that passed the filters
        self.selection = EventSelection(filters)

    def parts(self) -> Iterator[Part]:
        """Read everything, one source after another. Raises NoEvents at the end if no line was an event.

        And BadFilter if a filter is by a field that neither an event has nor a worker logs.
        """
        for index, source in enumerate(self.sources):
            for parsed in self._parsed_ahead(index, source):
                part = self.selection.keep(parsed, self.origin(index))
                self.num_kept += part.rows["place"].n_unique()
                yield part
                if self._progress is not None:
                    self._progress(sum(one.num_bytes for one in self.sources))
            self.counts.broken += source.num_long_lines
            self.counts.lines += source.num_long_lines
        if not self.counts.events:
            raise NoEvents(self._why_nothing())
        check_fields(self.selection.absent_fields)

    def origin(self, source: int) -> str:
        """The name that a log has kept through its rotations: worker.log for worker.log.2.gz."""
        return origin(self.sources[source].name)

    def _parsed_ahead(self, index: int, source: LogSource) -> Iterator[Part]:
        """A source's blocks, parsed one ahead in a thread, on another core."""
        blocks = source.blocks()

        def parse_next() -> Part | None:
            block = next(blocks, None)
            return None if block is None else parse_block(block, index, self.counts, self.selection.fields)

        with ThreadPoolExecutor(1) as thread, closing(source):
            ahead = thread.submit(parse_next)
            while (parsed := ahead.result()) is not None:
                ahead = thread.submit(parse_next)
                yield parsed

    def _why_nothing(self) -> str:
        names = ", ".join(source.name for source in self.sources[:3]) + (" …" if len(self.sources) > 3 else "")
        notes = "".join(f" {source.name}: {note}." for source in self.sources for note in source.notes)
        if not self.counts.lines:
            return f"{names}: no line.{notes}"
        return (
            f"{names}: none of {self.counts.lines:,} lines is an event of penstock.{notes} A worker logs JSON with "
            "PENSTOCK_LOG_FORMAT=json, and where its stderr is no terminal."
        )


def in_order(events: Iterable[Event]) -> list[Event]:
    """Events of several sources by time. One without a time follows the line before it."""
    last: dict[int, float] = {}
    keyed = []
    for number, event in enumerate(events):
        last[event.source] = last.get(event.source, 0.0) if event.time_s is None else event.time_s
        keyed.append((last[event.source], number, event))
    return [event for _, _, event in sorted(keyed, key=lambda one: one[:2])]
