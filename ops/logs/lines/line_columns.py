"""Lines of some events as columns.

A worker writes the fields of an event in one order. A line of a log gives this order as a regular expression, by which
polars takes the values out of the others. It matches only what a JSON parser reads alike. Lines that are laid out
otherwise are left to the caller.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.event import parse_time
from penstock.worker.telemetry.ecs import MARK

MIN_SCANNED_BYTES = 4 << 20  # smaller logs are parsed as JSON within a fraction of a second
_MAX_SCANNED_LINE = 4096  # bytes; an integer of more than 4300 digits is no JSON to Python
_MAX_PATTERN = 1 << 12  # characters; by a longer one polars takes longer than a JSON parser
_CONSTANT = ("event", "logger", "level")  # a worker writes them alike in all lines of an event
_MAX_LAYOUTS = 8  # of an event: a request has a trace or has none, and ran in a batch or did not

_TEXT = r'[^"\\\x00-\x1f]*'  # without escapes
_ASCII = r"[ !#-\[\]-~]*"  # such a text of ASCII, which is matched in two thirds of the time
_INTEGER = r"0|[1-9][0-9]{0,14}"  # without a sign
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TIME = (  # UTC, from 1970 on; the second is taken
    r'"((?:19[7-9]|[2-9][0-9]{2})[0-9]-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(?:\.[0-9]+)?Z"'
)


class LineShape(NamedTuple):
    """The fields that are taken out of the lines of one event, beside their time."""

    event: str
    texts: tuple[str, ...]
    integers: tuple[str, ...]  # without a sign
    floats: tuple[str, ...]
    optional: frozenset[str]  # those of them that lines may lack

    @property
    def fields(self) -> tuple[str, ...]:
        """All of them, without the time."""
        return (*self.texts, *self.integers, *self.floats)

    @property
    def needed(self) -> set[str]:
        """Those that a line must have."""
        return {*self.fields, "timestamp", *_CONSTANT} - self.optional

    def pattern(self, key: str, text: str) -> str:
        """A regular expression of the values of a field, with a group where they are taken. `text`: that of texts."""
        patterns = {
            **dict.fromkeys(self.texts, f'"({text})"'),
            **dict.fromkeys(self.integers, f"({_INTEGER})"),
            **dict.fromkeys(self.floats, f"({_NUMBER})"),
            "timestamp": _TIME,
        }
        return patterns.get(key, f'(?:"{text}"|{_NUMBER}|true|false|null)')

    def columns(self, texts: Any) -> list[Any]:
        """Expressions of the values in a frame of their texts; null where a text is no such value or is missing."""
        pl = polars()
        named = {key: pl.col(key) if key in texts.columns else pl.lit(None, pl.String) for key in self.fields}
        times = texts["timestamp"].unique().drop_nulls().to_list()
        seconds = [None if (time_s := parse_time(one)) is None else int(time_s) for one in times]
        floats = [named[key].cast(pl.Float64, strict=False).alias(key) for key in self.floats]
        return [
            pl.col("timestamp").replace_strict(times, seconds, default=None, return_dtype=pl.Int64).alias("second"),
            *[named[key].alias(key) for key in self.texts],
            *[named[key].cast(pl.Int64, strict=False).alias(key) for key in self.integers],
            *[pl.when(one.is_finite()).then(one) for one in floats],
        ]


class Found(NamedTuple):
    """Lines of one layout, as columns."""

    event: str
    rows: Any  # a polars frame: `second`, the fields of the shape, of which optional ones may be null, and `line`

    def line(self, row: int) -> str:
        """One line as it is."""
        line: str = self.rows["line"][row]
        return line


class LineLayout(NamedTuple):
    """The order of the fields of an event."""

    shape: LineShape
    pattern: str  # of a whole line
    taken: tuple[str, ...]  # the fields of its groups

    @classmethod
    def of(cls, shape: LineShape, first: dict[str, Any]) -> "LineLayout":
        """`first`: a line, as `_first_line` finds it."""
        text = _ASCII if all(str(value).isascii() for value in first.values()) else _TEXT
        constant = {key: re.escape(json.dumps(first[key])) for key in _CONSTANT}
        fields = [f"{re.escape(json.dumps(key))}: {constant.get(key) or shape.pattern(key, text)}" for key in first]
        taken = [key for key in first if key in (*shape.fields, "timestamp")]
        return cls(shape, rf"^\{{{', '.join(fields)}\}}\r?$", tuple(taken))

    def split(self, lines: Any) -> tuple[Found, Any]:
        """The lines of this layout, and the others. `lines`: a frame with the column `line`."""
        pl = polars()
        texts = lines["line"].str.extract_groups(self.pattern).struct.unnest()
        texts.columns = list(self.taken)
        rows = texts.select(self.shape.columns(texts)).with_columns(lines["line"])
        present = ["second", *[key for key in self.taken if key != "timestamp"]]
        is_found = rows.select(pl.all_horizontal(pl.col(present).is_not_null())).to_series()
        return Found(self.shape.event, rows.filter(is_found)), lines.filter(~is_found)


class LineColumns:
    """Takes lines of some events out of the blocks of one source, in order."""

    def __init__(self, shapes: Sequence[LineShape]) -> None:
        self._shapes = shapes
        self._layouts: list[LineLayout] = []

    def cut(self, block: bytes) -> tuple[list[Found], list[bytes]]:
        """Whole lines: columns by layout, and the other lines that are not empty. Never raises for what they hold."""
        pl, lines = polars(), [line for line in block.split(b"\n") if line.strip()]
        if not self._layouts and len(block) < MIN_SCANNED_BYTES:
            return [], lines
        found, others = [], pl.DataFrame({"line": map(_text, lines)}, {"line": pl.String}).with_row_index("place")
        layouts = tuple(self._layouts) or self._learn(others)
        while layouts:
            for layout in layouts:
                one, others = layout.split(others)
                found.append(one)
            layouts = self._learn(others)
        return [one for one in found if len(one.rows)], [lines[place] for place in others["place"].to_list()]

    def _learn(self, lines: Any) -> tuple[LineLayout, ...]:
        """The layouts of the first line of each event, unless all are known: then a value is unusual."""
        new = tuple([layout for shape in self._shapes if (layout := self._new_layout(shape, lines)) is not None])
        self._layouts += new
        return new

    def _new_layout(self, shape: LineShape, lines: Any) -> LineLayout | None:
        known = [layout for layout in self._layouts if layout.shape == shape]
        first = _first_line(shape, lines) if len(known) < _MAX_LAYOUTS else {}
        layout = LineLayout.of(shape, first) if first else None
        return None if layout is None or layout in known or len(layout.pattern) > _MAX_PATTERN else layout


def _text(line: bytes) -> str | None:
    """A line as text; None if it is too long or no UTF-8."""
    try:
        return line.decode() if len(line) <= _MAX_SCANNED_LINE else None
    except UnicodeDecodeError:
        return None


def _first_line(shape: LineShape, lines: Any) -> dict[str, Any]:
    """The first line of an event; empty without one, or where it lacks a field that is needed."""
    is_named = lines["line"].str.contains(f'"event": "{shape.event}"', literal=True)
    place = is_named.fill_null(value=False).arg_max()
    if place is None or not is_named[place]:
        return {}
    try:
        fields = json.loads(lines["line"][place])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict) or MARK in fields or not shape.needed <= fields.keys():
        return {}
    is_flat = not any(isinstance(value, dict | list) for value in fields.values())
    return fields if is_flat and fields["event"] == shape.event else {}
