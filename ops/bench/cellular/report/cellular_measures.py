"""The figures of one kept run of cells by name, as targets.json has them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record

OURS, PADDING, GRAPH = "cellular", "padding to buckets", "graph batching"
DEPTH, AGENDA, NN_LSTM = "depth-based", "agenda-based", "nn.LSTM, packed"
PARTS = ("lstm", "seq2seq", "tree")
SUITE = "cellular"
_HIGH_LOAD = 0.8  # of our peak

Part = Mapping[str, Any]
Load = Mapping[str, Any]


def measures(record: Record) -> Measures:
    """Of the parts that a run has."""
    return dict(_measures(record["parts"]))


def peak(part: Part, *names: str) -> Load | None:
    """The load of the highest throughput of these contestants; of none given, of all baselines."""
    return max(_of(part["peaks"], names), key=lambda load: float(load["requests_per_s"]), default=None)


def quickest_at_half(part: Part, *names: str) -> Load | None:
    """The load of the least p90 at half of saturation, likewise."""
    return min(_of(part["at_half"], names), key=lambda load: float(load["latency_ms"]["p90"]), default=None)


def _of(loads: Sequence[Load], names: Sequence[str]) -> list[Load]:
    return [load for load in loads if (load["contestant"] in names if names else load["contestant"] != OURS)]


def _measures(parts: Mapping[str, Part]) -> Iterator[tuple[str, float]]:
    for name in PARTS:
        part = parts.get(name)
        if part is None:
            continue
        rival = PADDING if name != "tree" else DEPTH
        ours, theirs = peak(part, OURS), peak(part, rival)
        if ours is not None:
            yield f"{name}, peak, req/s", ours["requests_per_s"]
        if ours is not None and theirs is not None:
            yield f"{name}, peak, times {rival}", ours["requests_per_s"] / theirs["requests_per_s"]
        if ours is not None and (best := peak(part)) is not None:
            yield f"{name}, peak, times the best baseline", ours["requests_per_s"] / best["requests_per_s"]
        yield from _latencies(name, part, rival)
        if ours is not None and (offline := part.get("offline")) is not None:
            yield (
                f"{name}, peak, share of {NN_LSTM}, sorted offline",
                ours["requests_per_s"] / offline["requests_per_s"],
            )


def _latencies(name: str, part: Part, rival: str) -> Iterator[tuple[str, float]]:
    ours, theirs = quickest_at_half(part, OURS), quickest_at_half(part, rival)
    if ours is not None and theirs is not None:
        yield (
            f"{name}, p90 at half of saturation, share of {rival}",
            ours["latency_ms"]["p90"] / theirs["latency_ms"]["p90"],
        )
    top = peak(part, OURS)
    for load in part["sweep"]:
        is_high = top is not None and abs(load["offered_per_s"] / top["requests_per_s"] - _HIGH_LOAD) < 1e-6
        if load["contestant"] == OURS and is_high and load.get("p99_queueing_quanta") is not None:
            yield f"{name}, p99 queueing at 80 % load, quanta", load["p99_queueing_quanta"]
