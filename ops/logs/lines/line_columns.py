"""Lines of one event as columns.

A worker writes the fields of an event in one order. A line of a log gives this order, by which a compiled scanner takes
the values out of the others. Lines that are laid out otherwise are left to the caller.
"""

import json
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_CONSTANT = ("event", "logger", "level")  # a worker writes them alike in all lines of an event


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


class LineLayout:
    """The order of the fields of an event, and room for the values of a block."""

    def __init__(self, kernel: ModuleType, shape: LineShape, first: dict[str, Any]) -> None:
        """`first`: a line, as `first_line` finds it."""
        self.keys = tuple((key, first[key] if key in _CONSTANT else None) for key in first)
        self._kernel = kernel
        self._shape = shape
        self._words = _layout(kernel, shape, first)
        self._min_bytes = int(self._words[2].sum()) + len(first) - len(_CONSTANT)
        self._room = np.empty((len(first), 0))

    def scan(self, block: bytes) -> tuple[Found, list[bytes]]:
        """The lines of this layout, and the others that are not empty. Never raises for what they hold."""
        kernel, num_lines = self._kernel, len(block) // self._min_bytes + 2
        if num_lines > self._room.shape[1]:
            self._room = np.empty((len(self.keys), num_lines))
        texts, places = np.zeros((kernel.MAX_TEXTS, 2), np.int64), np.empty((num_lines, 2), np.int64)
        others = np.empty((len(block) // 2 + 2, 2), np.int64)
        data, words = np.frombuffer(block, np.uint8), kernel.words_of(block)
        num_rows, num_texts, num_others = kernel.scan(data, words, *self._words, self._room, texts, places, others)
        named = zip((key for key, _ in self.keys), self._room, strict=True)
        values = {key: column[:num_rows].copy() for key, column in named if key in self._shape.fields}
        found = [block[start:end].decode("utf-8", "replace") for start, end in texts[:num_texts].tolist()]
        starts, ends = (column.tolist() for column in others[:num_others].T)  # a list a line would take twice the time
        rest = [line for start, end in zip(starts, ends, strict=True) if (line := block[start:end]).strip()]
        return Found(self._shape.event, values, found, block, places[:num_rows].copy()), rest


def _layout(kernel: ModuleType, shape: LineShape, first: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """The bytes before each value in words, the masks of the words, the sizes in bytes, and the kinds of the values."""
    kinds = {
        **dict.fromkeys(shape.integers, kernel.INTEGER),
        **dict.fromkeys(shape.floats, kernel.NUMBER),
        **dict.fromkeys(shape.texts, kernel.TEXT),
        "timestamp": kernel.TIME,
        **dict.fromkeys(_CONSTANT, kernel.NOTHING),
    }
    starts = [f"{', ' if place else '{'}{json.dumps(key)}: " for place, key in enumerate(first)]
    constants = [json.dumps(value) if key in _CONSTANT else "" for key, value in first.items()]
    encoded = [(start + constant).encode() for start, constant in zip(starts, constants, strict=True)]
    padded = [one.ljust(-(-len(one) // kernel.WORD) * kernel.WORD, b"\0") for one in encoded]
    masks = [(b"\xff" * len(one)).ljust(len(whole), b"\0") for one, whole in zip(encoded, padded, strict=True)]
    key_words, key_masks = (np.frombuffer(b"".join(one), "<u8") for one in (padded, masks))
    sizes = np.array([len(one) for one in encoded], np.int64)
    return key_words, key_masks, sizes, np.array([kinds.get(key, kernel.SKIP) for key in first], np.int64)


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
        LineLayout(line_kernel, shape, dict.fromkeys((*_CONSTANT, "timestamp"), "")).scan(
            b"\n" * (2 * line_kernel.WORD)
        )
    except Exception:  # of numba's cache: a full or read-only folder, or a damaged file. JSON takes longer
        return None
    return line_kernel
