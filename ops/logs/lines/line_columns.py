"""Lines of some events as columns.

A worker writes the fields of an event in one order. A line of a log gives this order, by which a compiled scanner takes
the values out of the others. Lines that are laid out otherwise are left to the caller.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MIN_SCANNED_BYTES = 4 << 20  # smaller blocks are parsed as JSON in less time than the scanner needs to load
_CONSTANT = ("event", "logger", "level")  # a worker writes them alike in all lines of an event
_MAX_LAYOUTS = 8  # of an event: a request has a trace or has none, and ran in a batch or did not
_END = b"\n" * 8  # the scanner leaves a line out that ends within a word of the end


class LineShape(NamedTuple):
    """The fields that are taken out of the lines of one event, beside their time."""

    event: str
    texts: tuple[str, ...]
    integers: tuple[str, ...]  # without a sign
    floats: tuple[str, ...]
    optional: frozenset[str]  # those of them that lines may lack

    @property
    def fields(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.texts, *self.integers, *self.floats, "timestamp")

    @property
    def needed(self) -> set[str]:
        """Those that a line must have."""
        return {*self.fields, *_CONSTANT} - self.optional


class Found(NamedTuple):
    """Lines of one layout, as columns."""

    event: str
    values: dict[str, npt.NDArray[np.float64]]  # [rows] by field: numbers, seconds, and the places of texts in `texts`
    texts: list[str]
    block: bytes
    places: npt.NDArray[np.int64]  # [rows, 2]: where each line is in `block`

    def line(self, row: int) -> bytes:
        """One line as it is."""
        return self.block[self.places[row, 0] : self.places[row, 1]]


class LineLayout(NamedTuple):
    """The order of the fields of an event."""

    shape: LineShape
    keys: tuple[tuple[str, Any], ...]  # with the values of those that are constant

    @classmethod
    def of(cls, shape: LineShape, first: dict[str, Any]) -> "LineLayout":
        """`first`: a line, as `first_line` finds it."""
        return cls(shape, tuple([(key, first[key] if key in _CONSTANT else None) for key in first]))

    def starts(self) -> list[bytes]:
        """The bytes before each value; of constant fields the values too."""
        names = [f"{', ' if place else '{'}{json.dumps(key)}: " for place, (key, _) in enumerate(self.keys)]
        values = [json.dumps(value) if key in _CONSTANT else "" for key, value in self.keys]
        return [(name + value).encode() for name, value in zip(names, values, strict=True)]

    def kinds(self, kernel: ModuleType) -> list[int]:
        """The kind of each value."""
        shape = self.shape
        kinds = {
            **dict.fromkeys(shape.integers, kernel.INTEGER),
            **dict.fromkeys(shape.floats, kernel.NUMBER),
            **dict.fromkeys(shape.texts, kernel.TEXT),
            "timestamp": kernel.TIME,
            **dict.fromkeys(_CONSTANT, kernel.NOTHING),
        }
        return [kinds.get(key, kernel.SKIP) for key, _ in self.keys]


class _Pass:
    """Some layouts as the scanner takes them, and room for the values of a block."""

    def __init__(self, kernel: ModuleType, layouts: Sequence[LineLayout]) -> None:
        self._kernel, self._layouts = kernel, tuple(layouts)
        starts = [layout.starts() for layout in layouts]
        all_starts = [one for of_layout in starts for one in of_layout]
        padded = [one.ljust(-(-len(one) // kernel.WORD) * kernel.WORD, b"\0") for one in all_starts]
        masks = [(b"\xff" * len(one)).ljust(len(whole), b"\0") for one, whole in zip(all_starts, padded, strict=True)]
        self._first_fields = np.cumsum([0, *map(len, starts)])
        words_before = np.cumsum([0, *[len(one) // kernel.WORD for one in padded]])
        self._arguments = (
            self._first_fields,
            words_before[self._first_fields[:-1]],
            *[np.frombuffer(b"".join(one), "<u8") for one in (padded, masks)],
            np.array(list(map(len, all_starts)), np.int64),
            np.array([kind for layout in layouts for kind in layout.kinds(kernel)], np.int64),
        )
        # A value has a byte at least.
        self._min_bytes = min([sum(map(len, one)) + len(one) - len(_CONSTANT) for one in starts])
        self._room = np.empty((len(all_starts), 0))

    def over(self, block: bytes) -> tuple[list[Found], list[bytes]]:
        """The lines of these layouts, and the others that are not empty. Never raises for what they hold."""
        kernel, num_lines = self._kernel, len(block) // self._min_bytes + 2
        if num_lines > self._room.shape[1]:
            self._room = np.empty((len(self._room), num_lines))
        texts, num_rows = np.zeros((kernel.MAX_TEXTS, 2), np.int64), np.zeros(len(self._layouts), np.int64)
        places, others = np.empty((len(num_rows), num_lines, 2), np.int64), np.empty((len(block) // 2 + 2, 2), np.int64)
        data, words = np.frombuffer(block, np.uint8), kernel.words_of(block)
        num_texts, num_others = kernel.scan(data, words, *self._arguments, self._room, texts, places, num_rows, others)
        found = [block[start:end].decode("utf-8", "replace") for start, end in texts[:num_texts].tolist()]
        starts, ends = (column.tolist() for column in others[:num_others].T)  # a list a line would take twice the time
        rest = [line for start, end in zip(starts, ends, strict=True) if (line := block[start:end]).strip()]
        return list(self._found(block, places, num_rows.tolist(), found)), rest

    def _found(
        self, block: bytes, places: npt.NDArray[np.int64], num_rows: list[int], texts: list[str]
    ) -> Iterator[Found]:
        for number, (layout, rows) in enumerate(zip(self._layouts, num_rows, strict=True)):
            if rows:
                columns = self._room[self._first_fields[number] : self._first_fields[number + 1]]
                named = zip(layout.keys, columns, strict=True)
                values = {key: column[:rows].copy() for (key, _), column in named if key in layout.shape.fields}
                yield Found(layout.shape.event, values, texts, block, places[number, :rows].copy())


class LineColumns:
    """Takes lines of some events out of the blocks of one source, in order."""

    def __init__(self, shapes: Sequence[LineShape]) -> None:
        self._shapes = shapes
        self._layouts: list[LineLayout] = []
        self._pass: _Pass | None = None  # with all of them

    def cut(self, block: bytes) -> tuple[list[Found], list[bytes]]:
        """Whole lines: columns by layout, and the other lines that are not empty. Never raises for what they hold."""
        if self._pass is None and len(block) >= MIN_SCANNED_BYTES:
            self._learn(block)
        if self._pass is None:
            return [], [line for line in block.split(b"\n") if line.strip()]
        found, others = self._pass.over(block)
        while others and (new := self._learn(rest := b"\n".join(others) + _END)) is not None:
            more, others = new.over(rest)
            found += more
        return found, others

    def _learn(self, block: bytes) -> _Pass | None:
        """A pass with the layouts of the first line of each event, unless all are known: then a value is unusual."""
        new = [layout for shape in self._shapes if (layout := self._new_layout(shape, block)) is not None]
        if not new or (kernel := load_kernel()) is None:
            return None
        self._layouts += new
        self._pass = _Pass(kernel, self._layouts)
        return _Pass(kernel, new)

    def _new_layout(self, shape: LineShape, block: bytes) -> LineLayout | None:
        known = [layout for layout in self._layouts if layout.shape == shape]
        first = first_line(shape, block) if len(known) < _MAX_LAYOUTS else {}
        layout = LineLayout.of(shape, first)
        return layout if first and layout not in known else None


def first_line(shape: LineShape, block: bytes) -> dict[str, Any]:
    """The first line of an event; empty without one, or where it lacks a field that is needed."""
    place = block.find(f'"event": "{shape.event}"'.encode())
    if place < 0:
        return {}
    start, end = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place)
    try:
        fields = json.loads(block[start : end if end >= 0 else len(block)])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict) or not shape.needed <= fields.keys():
        return {}
    return {} if any(isinstance(value, dict | list) for value in fields.values()) else fields


@cache
def load_kernel() -> ModuleType | None:
    """The compiled scanner: at once where an earlier process left it, else within seconds. None: there is none."""
    try:
        from penstock.ops.logs.lines import line_kernel

        shape = LineShape("", (), (), (), frozenset())
        layout = LineLayout.of(shape, dict.fromkeys((*_CONSTANT, "timestamp"), ""))
        _Pass(line_kernel, [layout]).over(b"\n" * (2 * line_kernel.WORD))
    except Exception:  # of numba's cache: a full or read-only folder, or a damaged file. JSON takes longer
        return None
    return line_kernel
