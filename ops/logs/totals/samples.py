"""Sampled requests (`request_done`) as columns, from parsed events or from scanned lines."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.lines.event import Event, parse_time
from penstock.ops.logs.lines.line_columns import Found
from penstock.ops.logs.totals.columns import FloatArray, column_of

CLASSES = ("online", "bulk")
STAGES = ("kafka", "tokenize", "cache", "schedule", "compute", "total")  # the fields of request_done are STAGE_ms


class Samples(NamedTuple):
    """Requests, a row each."""

    times_s: FloatArray  # Unix time, in whole seconds at least; NaN where there is none
    is_first: npt.NDArray[np.bool_]  # the first of its second: a fair sample
    is_bulk: npt.NDArray[np.bool_]
    stages_ms: dict[str, FloatArray]  # by stage; NaN where it is not known
    event: Callable[[int], Event]  # of a row

    @classmethod
    def of_events(cls, events: Sequence[Event]) -> "Samples":
        """From events of request_done."""
        times_s = [np.nan if event.time_s is None else event.time_s for event in events]
        is_first = np.array([event.fields.get("sample") == "first" for event in events], np.bool_)
        is_bulk = np.array([event.fields.get("class") == "bulk" for event in events], np.bool_)
        stages_ms = {stage: column_of(events, f"{stage}_ms") for stage in STAGES}
        return cls(np.array(times_s, np.float64), is_first, is_bulk, stages_ms, lambda row: events[row])

    @classmethod
    def of_lines(cls, found: Found, source: int) -> "Samples":
        """From lines of request_done."""
        rows = found.rows
        is_first, is_bulk = ((rows[key] == text).to_numpy() for key, text in (("sample", "first"), ("class", "bulk")))
        stages_ms = {stage: rows[f"{stage}_ms"].to_numpy() for stage in STAGES}
        times_s = rows["second"].to_numpy().astype(np.float64)
        return cls(times_s, is_first, is_bulk, stages_ms, lambda row: event_of(found, row, source))


def event_of(found: Found, row: int, source: int) -> Event:
    """A scanned line as an event."""
    fields = json.loads(found.line(row))
    return Event(source, parse_time(fields["timestamp"]), fields)
