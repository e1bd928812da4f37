"""The figures of the kept GPU runs: by name, as targets.json has them, and as tables for README.md and the notes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, From, Measures, Record, Suite, results
from penstock.ops.bench.common.tables import Grid, Table, Targets

OURS, FLOOR, SDPA, PACKED = "ours", "floor", "transformers SDPA", "packed torch"
FROM_HOST = ", from the host"
SHAPES = (  # of `common/shapes.py`
    *("MiniLM-L6", "BERT-base", "BERT-large", "bge-m3", "DeBERTa-v3-base", "MPNet-base", "ModernBERT-base"),
    *("NomicBERT", "GTE-base", "Qwen3-Embedding-0.6B", "EmbeddingGemma-300M"),
)

Point = Mapping[str, Any]  # has "ms": contestant -> milliseconds


def _single(record: Record) -> Measures:
    """`over the floor`: what a stream of such requests would take, over what it must."""
    found: dict[str, float] = {}
    for workload in results(record).get("single", {}).get("workloads", []):
        work, points = f"one request, {workload['low']}-{workload['high']} tokens", workload["points"]
        names = dict.fromkeys(name for point in points for name in point["ms"])
        found |= {f"{work}, {name}, ms": _mean_ms(points, name) for name in names}
        for name in (OURS, f"{OURS}{FROM_HOST}"):
            found[f"{work}, {name}, over the floor"] = _mean_ms(points, name) / _mean_ms(points, FLOOR)
    return found


def _shapes(record: Record) -> Measures:
    found: dict[str, float] = {}
    for name in SHAPES:
        part = results(record).get(f"shape-{name}")
        if not part:  # it was not measured, or not to its end
            continue
        found[f"shape, {name}, one request, ms"] = part["one_request_ms"]
        for load in part["loads"]:
            work, seconds = f"shape, {name}, {load['low']}-{load['high']} tokens", load["s"]
            found |= {f"{work}, {who}, req/s": load["requests"] / taken for who, taken in seconds.items()}
            if OURS in seconds:
                found[f"{work}, share of the floor"] = seconds[FLOOR] / seconds[OURS]
                others = [who for who in (SDPA, PACKED) if who in seconds]
                found |= {f"{work}, over {who}": seconds[who] / seconds[OURS] for who in others}
    return found


def _cosines(record: Record) -> Measures:
    found: dict[str, float] = {}
    for name, one in results(record).get("cosines", {}).get("shapes", {}).items():
        found[f"cosines, {name}, between requests"] = one["between"]
        found |= {f"cosines, {name}, {who}, least": one[who]["min"] for who in (OURS, SDPA)}
    return found


_KERNEL, _ATTENTION = "kernels.rows.[kernel,tokens]", "kernels.attention.[tokens,lengths]"
_THOUSANDS = "{:,}".format
GPU = Suite(
    "gpu",
    (
        _single,
        _shapes,
        _cosines,
        At("rows.shapes.*.[tokens].ms.*", "by length, *, * tokens, *, ms", keys=(str, _THOUSANDS, str)),
        From(
            "by length, *, * tokens, over the floor",
            tuple(f"by length, *, * tokens, {who}, ms" for who in (OURS, FLOOR)),
        ),
        At("labels.texts_per_s.*", "8 labels a text, DeBERTa-v3-base, *, texts/s"),
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


def _beside(work: str, figure: str, names: Sequence[str]) -> list[str]:
    """A row of one work: a figure for each name, which stands for `@`."""
    return [work, *("{" + figure.replace("@", name) + "}" for name in names)]


_HEADLINE = Grid(
    ["one request, ms", "penstock", "packed torch", "transformers SDPA", "cuBLAS products alone"],
    [
        _beside(f"* tokens, {work}", "one request, * tokens, @, ms", names)
        for work, names in (
            ("inputs on the device", [OURS, f"{PACKED}, one graph", SDPA, FLOOR]),
            ("from the host", [*(f"{name}{FROM_HOST}" for name in (OURS, PACKED, SDPA)), FLOOR]),
        )
    ],
)
_KERNELS = Grid(
    ["kernel", "µs", "copy of as many bytes, µs", "torch, µs", "share of the copy ceiling"],
    [_beside("*, * tokens", "kernel, *, * tokens, @", ["µs", "copy, µs", "torch, µs", "share of the copy"])],
)
_KERNELS_OF_ATTENTION = Grid(
    ["attention, one layer", "µs", "FlashAttention-2, µs", "byte floor, µs"],
    [_beside("attention, *", "kernel, attention, *, @", ["µs", "FlashAttention-2, µs", "byte floor, µs"])],
)
_SHAPES = Grid(
    ["shape, tokens", "req/s", "share of the floor", f"over {SDPA}", f"over {PACKED}"],
    [
        [
            "*, * tokens",
            "{shape, *, * tokens, ours, req/s}",
            "{shape, *, * tokens, share of the floor}",
            *(f"{{shape, *, * tokens, over {who}}}" for who in (SDPA, PACKED)),
        ]
    ],
)
_ONE_OF_SHAPES = Grid(["one request of 50 tokens", "ms"], [["*", "{shape, *, one request, ms}"]])
_ROWS = Grid(
    ["one request, inputs on the device", "penstock, ms", "cuBLAS products alone, ms", "over them"],
    [_beside("*, * tokens", "by length, *, * tokens, @", [f"{OURS}, ms", f"{FLOOR}, ms", "over the floor"])],
)
_LABELS = Grid(
    ["8 labels a text", "penstock, texts/s", "transformers' zero-shot pipeline, texts/s"],
    [_beside("DeBERTa-v3-base", "8 labels a text, DeBERTa-v3-base, @, texts/s", [OURS, "pipeline"])],
)
TABLES = {
    "gpu-headline": Table(GPU, ["single"], [_HEADLINE]),
    "gpu-rows": Table(GPU, ["rows"], [_ROWS]),
    "gpu-kernels": Table(GPU, ["kernels"], [_KERNELS, _KERNELS_OF_ATTENTION]),
    "gpu-shapes": Table(
        GPU, [*[f"shape-{name}" for name in SHAPES], "labels"], [_SHAPES, _ONE_OF_SHAPES, _LABELS], apart=True
    ),
    "gpu-targets": Table(GPU, ["single", "kernels"], [Targets("gpu")]),
}


def _mean_ms(points: Sequence[Point], contestant: str) -> float:
    """Mean over the points that have it; NaN of nothing."""
    values = [point["ms"][contestant] for point in points if contestant in point["ms"]]
    return statistics.fmean(values) if values else math.nan
