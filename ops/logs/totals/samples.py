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
        values, num_rows = found.values, len(found.places)
        is_first, is_bulk = _is_text(found, "sample", "first"), _is_text(found, "class", "bulk")
        stages_ms = {stage: values.get(f"{stage}_ms", np.full(num_rows, np.nan)) for stage in STAGES}
        return cls(values["timestamp"], is_first, is_bulk, stages_ms, lambda row: event_of(found, row, source))


def _is_text(found: Found, name: str, text: str) -> npt.NDArray[np.bool_]:
    """Of each row, whether the field has this text."""
    is_it = np.array([*[one == text for one in found.texts], False])
    rows: npt.NDArray[np.bool_] = is_it[found.values[name].astype(np.int64)]
    return rows


def event_of(found: Found, row: int, source: int) -> Event:
    """A scanned line as an event."""
    fields = json.loads(found.line(row).decode("utf-8", "replace"))
    return Event(source, parse_time(fields["timestamp"]), fields)
