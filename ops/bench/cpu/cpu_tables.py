"""Figures and tables of the kept runs on CPUs: rates in texts or requests a second, latencies in ms."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, From, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets, each

PARTS = ("end-to-end", "latency", "null", "memory")
_DTYPES = ("float32", "bfloat16")
WAYS = ("records shared", "a record each")  # one record for many concurrent calls, or one for each
_CALLS = {"lists": "bulk", "one text a call": "single"}
_ALONE = "end to end *, engine alone, texts/s"


def largest_change(samples: Sequence[int]) -> float:
    """The farthest that any sample is from the first, as a share of the first."""
    return max(abs(sample - samples[0]) for sample in samples) / samples[0]


def _echo(runs: Sequence[Mapping[str, Any]]) -> float:
    return statistics.median(float(run["requests_per_s"]) for run in runs)


SUITE = Suite(
    "cpu",
    (
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
            for dtype in _DTYPES
            for row in each(
                _CALLS,
                f"through Kafka, {dtype}, *, texts/s",
                f"{{end to end {dtype}, *, texts/s}}",
                f"{_FASTSTREAM}: {{end to end {dtype}, FastStream, texts/s}}",
                f"engine alone, same rounds: {{end to end {dtype}, engine alone, texts/s}}",
            )
        ],
        *[
            row
            for dtype in _DTYPES
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
TABLES = {
    "cpu-headline": Table(SUITE, PARTS, [HEADLINE]),
    "cpu-targets": Table(SUITE, PARTS, [Targets("cpu")]),
}
