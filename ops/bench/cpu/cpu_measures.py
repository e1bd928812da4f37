"""The figures of one kept run of the pipeline by name, from the raw values of its parts."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record

DTYPES = ("float32", "bfloat16")
_ENGINE_PARTS = {"float32": "engine", "bfloat16": "engine-bf16"}
WAYS = ("records shared", "a record each")  # one record for many concurrent calls, or one for each


def measures(record: Record) -> Measures:
    """Rates in texts or requests a second, latencies in ms, ratios within the run. What was not measured is absent."""
    parts = record["parts"]
    found: dict[str, float] = {}
    for dtype in DTYPES:
        found |= _engine(parts, dtype)
        found |= _end_to_end(parts, dtype)
    found |= dict(_latency(parts))
    found |= _null(parts)
    if "memory" in parts:
        samples = parts["memory"]["details"]["rss_bytes"]["worker"]
        found["memory of the null worker, largest change"] = largest_change(samples)
    return found


def largest_change(samples: Sequence[int]) -> float:
    """The farthest that any sample is from the first, as a share of the first."""
    return max(abs(sample - samples[0]) for sample in samples) / samples[0]


def _engine(parts: Mapping[str, Any], dtype: str) -> Measures:
    details = parts.get(_ENGINE_PARTS[dtype], {}).get("details", {})
    if "requests_per_s" not in details:  # not measured, or not applicable
        return {}
    rates = details["requests_per_s"]
    best = max(rates["best"], rates["default"])
    name = f"engine {dtype}"
    return {
        f"{name}, texts/s": rates["ours"],
        f"{name}, sentence-transformers, texts/s": best,
        f"{name}, floor, texts/s": rates["floor"],
        f"{name}, share of the floor": rates["ours"] / rates["floor"],
        f"{name}, times sentence-transformers": rates["ours"] / best,
        f"{name}, smallest cosine to float32": details["cosine_to_float32"]["min"],
    }


def _end_to_end(parts: Mapping[str, Any], dtype: str) -> Measures:
    details: dict[str, Any] = parts.get("end-to-end", {}).get("details", {}).get(dtype, {})
    if not details:
        return {}
    rates = {name: statistics.median(values) for name, values in details["requests_per_s"].items()}
    alone = statistics.median(details["engine_alone_requests_per_s"])
    name = f"end to end {dtype}"
    return {
        f"{name}, lists, texts/s": rates["bulk"],
        f"{name}, one text a call, texts/s": rates["single"],
        f"{name}, FastStream, texts/s": rates["baseline"],
        f"{name}, engine alone, texts/s": alone,
        f"{name}, lists, share of the engine alone": rates["bulk"] / alone,
        f"{name}, one text a call, share of the engine alone": rates["single"] / alone,
    }


def _latency(parts: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for pipeline, load in parts.get("latency", {}).get("details", {}).items():
        for which in ("p50", "p99"):
            if load["latency_ms"][which] is not None:  # None: so many were never answered
                yield f"latency {pipeline}, {which}, ms", load["latency_ms"][which]


def _null(parts: Mapping[str, Any]) -> Measures:
    details = parts.get("null", {}).get("details", {})
    if not details:
        return {}
    echoes = {kind: statistics.median(run["requests_per_s"] for run in runs) for kind, runs in details["echo"].items()}
    found = {
        "echo, a record each, req/s": echoes["send"],
        "echo, batches of records, req/s": echoes["batched"],
    }
    for way in WAYS:
        rate = statistics.median(details["requests_per_s"][way])
        found[f"null engine, {way}, req/s"] = rate
        found[f"null engine, {way}, share of the echo"] = rate / echoes["send"]
    return found
