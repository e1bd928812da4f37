"""The figures of the kept GPU runs: by name, as targets.json has them, and as tables for README.md and the notes."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record, versions
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.measures import At, From, Suite, results
from penstock.ops.bench.common.runs import Run, kept_runs, machines
from penstock.ops.bench.common.tables import Figures, Grid, Table, Targets, each
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


def _over_separate(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return geomean(row["us"]["cuBLAS and what follows"] / row["us"][OURS] for row in rows) if rows else None


def _least_cosine(side: str) -> Callable[[Sequence[Mapping[str, Any]]], float | None]:
    return lambda rows: min((row[side]["min_cosine"] for row in rows), default=None)


_KERNEL, _ATTENTION = "kernels.rows.[kernel,tokens]", "kernels.attention.[tokens,lengths]"
_FILL = "fill.points.[ratio].ms"
_THOUSANDS, _HALF = "{:,}".format, "transformers fp16"
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
        At("ceilings.copy_bytes_per_s", "copy, TB/s", of=lambda rate: rate / 1e12),
        At("ceilings.gemm_flops_per_s", "product of 8,192 x 8,192, TFLOP/s", of=lambda rate: rate / 1e12),
        At("products.rows", "products, cuBLAS and what follows over ours, geomean", of=_over_separate),
        At("parity.rows", "BERT-base, ours, smallest cosine", of=_least_cosine(OURS), decimals=6),
        At(
            "parity.rows",
            "BERT-base, transformers, smallest cosine",
            of=_least_cosine("transformers fp16"),
            decimals=6,
        ),
        *(At(f"{_FILL}.{name}", f"BERT-base, 16 x 512, *, {name}, ms") for name in (OURS, SDPA, FLOOR)),
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


def runs() -> str:
    """Table `gpu-runs`: what each kept run ran with."""
    rows = []
    for machine in machines("gpu"):
        for run in kept_runs("gpu", machine):
            driver = run.record["machine"].get("nvidia_smi", {}).get("driver_version", "not recorded")
            rows.append([run.record["started"][:16], run.commit, versions(run), driver, f"`{run.record['command']}`"])
    return table(["started", "commit", "versions", "driver", "command"], rows)


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
_OTHER_WORKS = Grid(
    ["batch x maximum", "ours, ms", "transformers, ms", "cuBLAS products alone, ms"],
    [
        _beside("BERT-base, 16 x 512, mean length * of it", "BERT-base, 16 x 512, *, @, ms", [OURS, SDPA, FLOOR]),
    ],
)
_OTHER_FIGURES = Grid(
    ["", "measured"],
    each(
        [
            "copy, TB/s",
            "product of 8,192 x 8,192, TFLOP/s",
            "products, cuBLAS and what follows over ours, geomean",
            "BERT-base, ours, smallest cosine",
            "BERT-base, transformers, smallest cosine",
        ],
        "*",
        "{*}",
    ),
)
_WITH_TARGETS = ("single", "kernels")
TABLES: Mapping[str, Callable[[], str]] = {
    "gpu-headline": Table(GPU, ["single"], [_headline]),
    "gpu-kernels": Table(GPU, ["kernels"], [_KERNELS, _KERNELS_OF_ATTENTION]),
    "gpu-others": Table(GPU, ["fill", "ceilings", "products", "parity"], [_OTHER_WORKS, _OTHER_FIGURES]),
    "gpu-targets": Table(GPU, _WITH_TARGETS, [Targets("gpu")]),
    "gpu-runs": runs,
}


def geomean(values: Iterable[float]) -> float:
    """Geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def _contestants(points: Sequence[Point]) -> list[str]:
    """All that appear, the floor last."""
    names = dict.fromkeys(name for point in points for name in point["ms"])
    return [name for name in names if name != FLOOR] + [FLOOR] * (FLOOR in names)


def _mean_ms(points: Sequence[Point], contestant: str) -> float:
    """Mean over the points that have it; NaN of nothing."""
    values = [point["ms"][contestant] for point in points if contestant in point["ms"]]
    return statistics.fmean(values) if values else math.nan
