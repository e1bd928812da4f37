"""`batch_done` lines as columns.

Nearly all lines of a busy worker are `batch_done`, and a worker writes the fields of an event in one order. A block is
therefore read as a table whose cells end at commas, and each cell is checked for the key that the first such line has
there. That takes half of a JSON parser's time. Lines that are laid out otherwise are left to the caller.
"""

import json
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.ops.logs.event import number, parse_time
from penstock.ops.logs.libraries import polars

_MARK = b'"event": "batch_done"'
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_TEXTS = ("timestamp", "trigger", "partition")
_KINDS = {
    "worker": int,
    "dp_gain": float,
    "sequences": int,
    "tokens": int,
    "max_seqlen": int,
    "predicted_s": float,
    "device_s": float,
}
_NEEDED = (*_TEXTS, "sequences", "tokens", "max_seqlen", "predicted_s", "device_s")
BATCH_COLUMNS = ("second", "trigger", "partition", *_KINDS)


class Cut(NamedTuple):
    """A block's batches, and its other lines."""

    batches: Any  # a polars frame with BATCH_COLUMNS
    others: list[bytes]
    num_lines: int  # that are not empty


class BatchColumns:
    """Cuts the blocks of one source, in order."""

    def __init__(self) -> None:
        self._keys: list[str] = []  # of batch_done, in order
        self._starts: dict[str, str] = {}  # of the cells that are needed, by key

    def cut(self, block: bytes) -> Cut:
        """Whole lines. Never raises for what they hold."""
        if not self._keys:
            self._learn(block)
        found = self._columns(block) if self._keys else None
        if found is None:
            lines = [line for line in block.split(b"\n") if line.strip()]
            return Cut(empty_batches(), lines, len(lines))
        return found

    def _learn(self, block: bytes) -> None:
        """The order of keys, from the first line that can be cut at its commas."""
        place = block.find(_MARK)
        if place < 0:
            return
        start, end = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place)
        try:
            fields = json.loads(block[start : end if end >= 0 else len(block)])
        except (ValueError, RecursionError):
            return
        if not isinstance(fields, dict) or not set(_NEEDED) <= fields.keys():
            return
        if any("," in str(value) for value in fields.values()):
            return
        self._keys = list(fields)
        wanted = {*_NEEDED, "event", *(key for key in _KINDS if key in fields)}
        starts = {key: f' "{key}": ' for key in self._keys} | {self._keys[0]: f'{{"{self._keys[0]}": '}
        starts |= {key: starts[key] + '"' for key in _TEXTS}
        self._starts = {key: start for key, start in starts.items() if key in wanted or key == self._keys[-1]}

    def _columns(self, block: bytes) -> Cut | None:
        """None for a block that is no such table, as one with empty lines."""
        pl = polars()
        try:
            cells = pl.read_csv(
                block,
                has_header=False,
                separator=",",
                quote_char=None,
                schema=dict.fromkeys(self._keys, pl.String),
                columns=[self._keys.index(key) for key in self._starts],
                truncate_ragged_lines=True,
            )
        except pl.exceptions.PolarsError:
            return None
        typed = cells.select(self._is_laid_out().alias("fits"), *self._typed())
        fits = typed.select(pl.col("fits") & pl.all_horizontal(pl.col("second", *_NEEDED[1:]).is_not_null()))["fits"]
        lines = _lines_at(block, np.flatnonzero(~fits.to_numpy()), len(cells))
        if lines is None:
            return None
        others = [line for line in lines if line.strip()]
        batches = typed.filter(fits).select(BATCH_COLUMNS)
        return Cut(batches, others, len(batches) + len(others))

    def _is_laid_out(self) -> Any:
        pl = polars()
        starts = [pl.col(key).str.starts_with(start) for key, start in self._starts.items() if key != "event"]
        event = pl.col("event").str.starts_with(f'{self._starts["event"]}"batch_done"')
        return pl.all_horizontal(*starts, event, pl.col(self._keys[-1]).str.ends_with("}")).fill_null(False)

    def _typed(self) -> list[Any]:
        pl = polars()
        values = {key: pl.col(key).str.slice(len(start)) for key, start in self._starts.items()}
        values[self._keys[-1]] = values[self._keys[-1]].str.strip_suffix("}")
        texts = {key: values[key].str.strip_suffix('"') for key in _TEXTS}
        moment = texts["timestamp"].str.slice(0, 19).str.to_datetime(_TIME_FORMAT, strict=False)
        columns = [moment.dt.epoch("s").alias("second"), *[texts[key].alias(key) for key in _TEXTS[1:]]]
        for key, dtype in _dtypes().items():
            columns.append(values.get(key, pl.lit(None, pl.String)).cast(dtype, strict=False).alias(key))
        return columns


def _lines_at(block: bytes, rows: npt.NDArray[np.int64], num_rows: int) -> list[bytes] | None:
    """The lines of rows; None if the table's rows are not the block's lines."""
    if not len(rows):
        return []
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(block))
    if len(ends) != num_rows:
        return None
    starts = np.append(0, ends[:-1] + 1)
    return [block[start:end] for start, end in zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)]


def batches_of(rows: list[dict[str, Any]]) -> Any:
    """Batches that were parsed as JSON. A value of another type becomes null."""
    pl = polars()
    made = []
    for fields in rows:
        time_s = parse_time(fields.get("timestamp"))
        row: dict[str, Any] = {key: str(fields.get(key)) for key in _TEXTS[1:]}
        row["second"] = None if time_s is None else int(time_s // 1)
        for key, kind in _KINDS.items():
            value = number(fields.get(key))
            row[key] = None if value is None or abs(value) > 2**62 else kind(value)
        made.append({key: row[key] for key in BATCH_COLUMNS})
    return pl.DataFrame(made, schema=empty_batches().schema)


def empty_batches() -> Any:
    """A frame with BATCH_COLUMNS and no row."""
    pl = polars()
    return pl.DataFrame(schema={"second": pl.Int64, **dict.fromkeys(_TEXTS[1:], pl.String), **_dtypes()})


def _dtypes() -> dict[str, Any]:
    pl = polars()
    return {key: pl.Int64 if kind is int else pl.Float64 for key, kind in _KINDS.items()}
