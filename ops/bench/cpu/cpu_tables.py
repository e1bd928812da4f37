"""Figures and tables of the kept runs on CPUs: rates in texts or requests a second, latencies in ms."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, From, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets, each

LABELS = {"MiniLM-L6": "labels-minilm", "DeBERTa-v3-base": "labels-deberta"}  # each shape with its part
PARTS = ("engine", "engine-bf16", "end-to-end", "latency", "null", "memory")
DTYPES = {"float32": "engine", "bfloat16": "engine-bf16"}  # each with its part of the engine alone
WAYS = ("records shared", "a record each")  # one record for many concurrent calls, or one for each
_CALLS = {"lists": "bulk", "one text a call": "single"}
_ALONE = "end to end *, engine alone, texts/s"


def largest_change(samples: Sequence[int]) -> float:
    """The farthest that any sample is from the first, as a share of the first."""
    return max(abs(sample - samples[0]) for sample in samples) / samples[0]


def _best(rates: Mapping[str, float]) -> float:
    return max(rates["best"], rates["default"])


def _millionths_off(cosine: float) -> float:
    return 1e6 * (1 - cosine)


def _echo(runs: Sequence[Mapping[str, Any]]) -> float:
    return statistics.median(float(run["requests_per_s"]) for run in runs)


def _of_int8(name: str) -> str:
    return f"eight bits, {name}, texts per CPU second"


def _engine(dtype: str, part: str) -> tuple[At | From, ...]:
    name, rates = f"engine {dtype}", f"{part}.requests_per_s"
    ours, theirs, floor = f"{name}, texts/s", f"{name}, sentence-transformers, texts/s", f"{name}, floor, texts/s"
    return (
        At(f"{rates}.ours", ours),
        At(rates, theirs, _best),
        At(f"{rates}.floor", floor),
        From(f"{name}, share of the floor", (ours, floor)),
        From(f"{name}, times sentence-transformers", (ours, theirs)),
        At(f"{part}.cosine_to_float32.min", f"{name}, largest 1 - cosine to float32, millionths", _millionths_off),
    )


SUITE = Suite(
    "cpu",
    (
        *[one for dtype, part in DTYPES.items() for one in _engine(dtype, part)],
        At("end-to-end.*.requests_per_s.bulk", "end to end *, lists, texts/s", statistics.median),
        At("end-to-end.*.requests_per_s.single", "end to end *, one text a call, texts/s", statistics.median),
        At("end-to-end.*.requests_per_s.baseline", "end to end *, FastStream, texts/s", statistics.median),
        At("end-to-end.*.engine_alone_requests_per_s", _ALONE, statistics.median),
        *[
            From(f"end to end *, {way}, share of the engine alone", (f"end to end *, {way}, texts/s", _ALONE))
            for way in _CALLS
        ],
        At("latency.*.latency_ms.p50", "latency *, p50, ms"),
        At("latency.*.latency_ms.p99", "latency *, p99, ms"),
        *[At(f"{part}.texts_per_s.*", f"labels {shape}, *, texts/s") for shape, part in LABELS.items()],
        From("labels *, times the pipeline", ("labels *, ours, texts/s", "labels *, pipeline, texts/s")),
        At("int8.texts_per_cpu_s.*", "eight bits, *, texts per CPU second", statistics.median),
        At("int8.cosine_to_float32.*.min", "eight bits, *, least cosine", _millionths_off),
        At("int8.cosine_to_float32.*.mean", "eight bits, *, mean cosine", _millionths_off),
        At("int8.neighbours_kept.*", "eight bits, *, of the ten nearest kept"),
        *[
            From(f"eight bits, times {other}", (_of_int8("penstock int8"), _of_int8(other)))
            for other in ("penstock float32", "penstock bfloat16", "ONNX Runtime int8", "OpenVINO int8")
        ],
        At("null.echo.send", "echo, a record each, req/s", _echo),
        At("null.echo.batched", "echo, batches of records, req/s", _echo),
        At("null.requests_per_s.*", "null engine, *, req/s", statistics.median),
        *[
            From(f"null engine, {way}, share of the echo", (f"null engine, {way}, req/s", "echo, a record each, req/s"))
            for way in WAYS
        ],
        At("memory.rss_bytes.worker", "memory of the null worker, largest change", largest_change),
    ),
)
_FASTSTREAM = "FastStream and sentence-transformers"
HEADLINE = Grid(
    ["work", "penstock", "alternative", "bound"],
    [
        *[
            row
            for dtype in DTYPES
            for row in [
                *each(
                    [dtype],
                    "engine alone, *, texts/s",
                    "{engine *, texts/s}",
                    "sentence-transformers, its best batch: {engine *, sentence-transformers, texts/s}",
                    "matrix products alone: {engine *, floor, texts/s}",
                ),
                *each(
                    _CALLS,
                    f"through Kafka, {dtype}, *, texts/s",
                    f"{{end to end {dtype}, *, texts/s}}",
                    f"{_FASTSTREAM}: {{end to end {dtype}, FastStream, texts/s}}",
                    f"engine alone, same rounds: {{end to end {dtype}, engine alone, texts/s}}",
                ),
            ]
        ],
        *[
            row
            for dtype in DTYPES
            for row in each(
                ["p50", "p99"],
                f"200 texts/s, Poisson, through Kafka, {dtype}, *, ms",
                f"{{latency penstock {dtype}, *, ms}}",
                f"{_FASTSTREAM}, {dtype}: {{latency FastStream {dtype}, *, ms|not measured}}",
                "",
            )
        ],
        *each(
            WAYS,
            "no model, one sequence a call, *, req/s",
            "{null engine, *, req/s}",
            "bare aiokafka echo, a record each: {echo, a record each, req/s}",
            "echo with batches of records: {echo, batches of records, req/s}",
        ),
    ],
)
_OF_LABELS = Grid(
    ["8 labels a text, float32", "texts/s", "transformers' zero-shot pipeline, its best batch, texts/s", "times"],
    each(
        LABELS,
        "shape of *",
        "{labels *, ours, texts/s}",
        "{labels *, pipeline, texts/s}",
        "{labels *, times the pipeline}",
    ),
)
_OF_INT8 = Grid(
    [
        "one thread",
        "texts per second of processor time",
        "1 - least cosine to float32, millionths",
        "1 - mean cosine, millionths",
        "ten nearest kept",
        "penstock int8, times this",
    ],
    [
        [
            "*",
            "{eight bits, *, texts per CPU second}",
            "{eight bits, *, least cosine}",
            "{eight bits, *, mean cosine}",
            "{eight bits, *, of the ten nearest kept}",
            "{eight bits, times *|}",
        ]
    ],
)
TABLES = {
    "cpu-headline": Table(SUITE, PARTS, [HEADLINE]),
    "cpu-labels": Table(SUITE, [*LABELS.values()], [_OF_LABELS], apart=True),
    "cpu-int8": Table(SUITE, ["int8"], [_OF_INT8]),
    "cpu-targets": Table(SUITE, PARTS, [Targets("cpu")]),
}
