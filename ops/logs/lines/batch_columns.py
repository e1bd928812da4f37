"""`batch_done` lines as columns.

Nearly all lines of a busy worker are `batch_done`, and a worker writes the fields of an event in one order. The first
such line of a log gives this order, by which a compiled scanner takes the values out of the others. Lines that are laid
out otherwise are left to the caller.
"""

import json
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.event import number, parse_time

MIN_SCANNED_BYTES = 4 << 20  # smaller blocks are parsed as JSON in less time than the scanner needs to load
_MARK = b'"event": "batch_done"'
_TEXTS = ("trigger", "partition")
_INTEGERS = ("worker", "sequences", "tokens", "max_seqlen")
_FLOATS = ("dp_gain", "predicted_s", "device_s")
_CONSTANT = ("event", "logger", "level")  # a worker writes them alike in all lines
_NEEDED = (*_TEXTS, *_INTEGERS[1:], *_FLOATS, "timestamp")
_MIN_LINE_BYTES = 160  # of a line with all these keys
BATCH_COLUMNS = ("second", *_TEXTS, *_INTEGERS, *_FLOATS)


class Cut(NamedTuple):
    """A block's batches, and its other lines."""

    batches: Any  # a polars frame with BATCH_COLUMNS
    others: list[bytes]  # that are not empty


class BatchColumns:
    """Cuts the blocks of one source, in order."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}  # the first batch_done, with its keys in order
        self._room = np.empty((0, 0))  # of the values of a block

    def cut(self, block: bytes) -> Cut:
        """Whole lines. Never raises for what they hold."""
        if not self._first and len(block) >= MIN_SCANNED_BYTES:
            self._first = _first_batch(block)
        if self._first and (kernel := _load_kernel()) is not None:
            num_lines = len(block) // _MIN_LINE_BYTES + 2
            if num_lines > self._room.shape[1]:
                self._room = np.empty((len(self._first), num_lines))
            return _scanned(kernel, block, self._first, self._room)
        return Cut(empty_batches(), [line for line in block.split(b"\n") if line.strip()])


def _first_batch(block: bytes) -> dict[str, Any]:
    """The first batch_done; empty without one, or where it lacks a field that is needed."""
    place = block.find(_MARK)
    if place < 0:
        return {}
    start, end = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place)
    try:
        fields = json.loads(block[start : end if end >= 0 else len(block)])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict) or not {*_NEEDED, *_CONSTANT} <= fields.keys():
        return {}
    return {} if any(isinstance(value, dict | list) for value in fields.values()) else fields


def _scanned(kernel: ModuleType, block: bytes, first: dict[str, Any], room: npt.NDArray[np.float64]) -> Cut:
    """`room` [fields, lines] is overwritten."""
    pl = polars()
    texts, others = np.zeros((kernel.MAX_TEXTS, 2), np.int64), np.empty((len(block) // 2 + 2, 2), np.int64)
    data, words = np.frombuffer(block, np.uint8), kernel.words_of(block)
    num_rows, num_texts, num_others = kernel.scan(data, words, *_layout(kernel, first), room, texts, others)
    values = dict(zip(first, room[:, :num_rows], strict=True))
    found = [block[start:end].decode("utf-8", "replace") for start, end in texts[:num_texts].tolist()]
    names = pl.Series(found, dtype=pl.Categorical)
    columns = {"second": pl.Series(values["timestamp"].astype(np.int64))}
    columns |= {key: names.gather(pl.Series(values[key].astype(np.uint32))) for key in _TEXTS}
    missing = pl.Series([None] * num_rows, dtype=pl.Int64) if "worker" not in values else None
    columns |= {key: pl.Series(values[key].astype(np.int64)) if key in values else missing for key in _INTEGERS}
    columns |= {key: pl.Series(values[key].copy()) for key in _FLOATS}  # polars would keep the room itself
    lines = [block[start:end] for start, end in others[:num_others].tolist()]
    return Cut(pl.DataFrame(columns).select(BATCH_COLUMNS), [line for line in lines if line.strip()])


def _layout(kernel: ModuleType, first: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """The bytes before each value in words, the masks of the words, the sizes in bytes, and the kinds of the values."""
    kinds = {
        **dict.fromkeys(_INTEGERS, kernel.INTEGER),
        **dict.fromkeys(_FLOATS, kernel.NUMBER),
        **dict.fromkeys(_TEXTS, kernel.TEXT),
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


@cache
def _load_kernel() -> ModuleType | None:
    """The compiled scanner: at once where an earlier process left it, else within seconds. None: there is none."""
    try:
        from penstock.ops.logs.lines import batch_kernel

        fields = dict.fromkeys((*_NEEDED, *_CONSTANT), "")
        _scanned(batch_kernel, b"\n" * (2 * batch_kernel.WORD), fields, np.empty((len(fields), 2)))
    except Exception:  # of numba's cache: a full or read-only folder, or a damaged file. JSON takes longer
        return None
    return batch_kernel


def batches_of(rows: list[dict[str, Any]]) -> Any:
    """Batches that were parsed as JSON. A value of another type becomes null."""
    pl = polars()
    made = []
    for fields in rows:
        time_s = parse_time(fields.get("timestamp"))
        row: dict[str, Any] = {key: str(fields.get(key)) for key in _TEXTS}
        row["second"] = None if time_s is None else int(time_s // 1)
        for key in (*_INTEGERS, *_FLOATS):
            value = number(fields.get(key))
            row[key] = value if value is None or key in _FLOATS else None if abs(value) > 2**62 else int(value)
        made.append({key: row[key] for key in BATCH_COLUMNS})
    return pl.DataFrame(made, schema=empty_batches().schema)


def empty_batches() -> Any:
    """A frame with BATCH_COLUMNS and no row."""
    pl = polars()
    integers, floats = dict.fromkeys(_INTEGERS, pl.Int64), dict.fromkeys(_FLOATS, pl.Float64)
    return pl.DataFrame(schema={"second": pl.Int64, **dict.fromkeys(_TEXTS, pl.Categorical), **integers, **floats})
