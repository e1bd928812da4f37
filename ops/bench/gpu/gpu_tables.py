"""The figures of the kept GPU runs: by name, as targets.json has them, and as tables for README.md and the notes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.measures import At, From, Suite, results
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.tables import Figures, Grid, Table, Targets
from penstock.ops.bench.common.verdicts import Spread

OURS, FLOOR, SDPA, PACKED = "ours", "floor", "transformers SDPA", "packed torch"
FROM_HOST = ", from the host"
_RANGES = ("2-100", "5-500")

Point = Mapping[str, Any]  # has "ms": contestant -> milliseconds


def _single(record: Record) -> Measures:
    """`over the floor`: what a stream of such requests would take, over what it must."""
    found: dict[str, float] = {}
    for workload in results(record).get("single", {}).get("workloads", []):
        work, points = f"one request, {workload['low']}-{workload['high']} tokens", workload["points"]
        found |= {f"{work}, {name}, ms": _mean_ms(points, name) for name in _contestants(points)}
        for name in (OURS, f"{OURS}{FROM_HOST}"):
            found[f"{work}, {name}, over the floor"] = _mean_ms(points, name) / _mean_ms(points, FLOOR)
    return found


_KERNEL, _ATTENTION = "kernels.rows.[kernel,tokens]", "kernels.attention.[tokens,lengths]"
_THOUSANDS = "{:,}".format
GPU = Suite(
    "gpu",
    (
        _single,
        At(f"{_KERNEL}.share_of_copy", "kernel, *, * tokens, share of the copy", keys=(str, _THOUSANDS)),
        At(f"{_KERNEL}.us", "kernel, *, * tokens, µs", keys=(str, _THOUSANDS)),
        At(f"{_KERNEL}.torch_us", "kernel, *, * tokens, torch, µs", keys=(str, _THOUSANDS)),
        At(f"{_KERNEL}.copy_us", "kernel, *, * tokens, copy, µs", keys=(str, _THOUSANDS)),
        At(f"{_ATTENTION}.us", "kernel, attention, * tokens of *, µs", keys=(_THOUSANDS, str)),
        At(f"{_ATTENTION}.flash_us", "kernel, attention, * tokens of *, FlashAttention-2, µs", keys=(_THOUSANDS, str)),
        At(f"{_ATTENTION}.byte_floor_us", "kernel, attention, * tokens of *, byte floor, µs", keys=(_THOUSANDS, str)),
        From(
            "kernel, attention, *, time over FlashAttention-2",
            ("kernel, attention, *, µs", "kernel, attention, *, FlashAttention-2, µs"),
        ),
    ),
)


def _headline(figures: Figures, runs: Sequence[Run]) -> str:
    rows = [row for lengths in _RANGES for row in _single_rows(figures, lengths)]
    columns = ["work", "penstock", "best alternative of the run", "transformers SDPA", "cuBLAS products alone"]
    return table(columns, rows) if rows else ""


def _single_rows(figures: Figures, lengths: str) -> list[list[str]]:
    prefix = f"one request, {lengths} tokens, "
    if f"{prefix}{OURS}, ms" not in figures:
        return []
    rows = []
    for work, suffix in (("inputs on the device", ""), ("from the host", FROM_HOST)):
        best = best_of(figures, prefix, f"{suffix}, ms")
        beside = "not measured" if best is None else f"{best[0]}: {best[1]}"
        names = (f"{OURS}{suffix}", f"{SDPA}{suffix}", FLOOR)
        shown, theirs, floor = (str(figures.get(f"{prefix}{name}, ms", "")) for name in names)
        rows.append([f"{prefix}{work}, ms", shown, beside, theirs, floor])
    return rows


def best_of(figures: Figures, prefix: str, unit: str) -> tuple[str, Spread] | None:
    """The alternative with the best median: neither ours nor the floor."""
    named = {name: one for name, one in _named(figures, prefix, unit).items() if not name.endswith(FROM_HOST)}
    others = {name: one for name, one in named.items() if not name.startswith(OURS) and name != FLOOR}
    return min(others.items(), key=lambda item: item[1].median) if others else None


def _named(figures: Figures, prefix: str, suffix: str) -> dict[str, Spread]:
    """By what stands between the two."""
    return {
        name.removeprefix(prefix).removesuffix(suffix): one
        for name, one in figures.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }


def _beside(work: str, figure: str, names: Sequence[str]) -> list[str]:
    """A row of one work: a figure for each name, which stands for `@`."""
    return [work, *("{" + figure.replace("@", name) + "}" for name in names)]


_KERNELS = Grid(
    ["kernel", "µs", "copy of as many bytes, µs", "torch, µs", "share of the copy ceiling"],
    [_beside("*, * tokens", "kernel, *, * tokens, @", ["µs", "copy, µs", "torch, µs", "share of the copy"])],
)
_KERNELS_OF_ATTENTION = Grid(
    ["attention, one layer", "µs", "FlashAttention-2, µs", "byte floor, µs"],
    [_beside("attention, *", "kernel, attention, *, @", ["µs", "FlashAttention-2, µs", "byte floor, µs"])],
)
TABLES = {
    "gpu-headline": Table(GPU, ["single"], [_headline]),
    "gpu-kernels": Table(GPU, ["kernels"], [_KERNELS, _KERNELS_OF_ATTENTION]),
    "gpu-targets": Table(GPU, ["single", "kernels"], [Targets("gpu")]),
}


def _contestants(points: Sequence[Point]) -> list[str]:
    """All that appear, the floor last."""
    names = dict.fromkeys(name for point in points for name in point["ms"])
    return [name for name in names if name != FLOOR] + [FLOOR] * (FLOOR in names)


def _mean_ms(points: Sequence[Point], contestant: str) -> float:
    """Mean over the points that have it; NaN of nothing."""
    values = [point["ms"][contestant] for point in points if contestant in point["ms"]]
    return statistics.fmean(values) if values else math.nan
