"""The figures of the kept runs of cells, and their tables: each contestant at its best settings for each figure."""

from collections.abc import Mapping
from typing import Any

from penstock.ops.bench.common.measures import At, From, Measures, Record, Suite, results
from penstock.ops.bench.common.tables import Grid, Table, Targets

PARTS = {"lstm": "LSTM", "tree": "TreeLSTM"}
OURS, PADDING, GRAPH = "cellular", "padding to buckets", "graph batching"
DEPTH, AGENDA, NN_LSTM = "depth-based", "agenda-based", "nn.LSTM, packed"
_LATENCIES = ("p50", "p90", "p99")


def _best(record: Record) -> Measures:
    """The highest throughput of each contestant, and its latencies at half of saturation where its p90 is least."""
    found: dict[str, float] = {}
    for name in PARTS:
        part = results(record).get(name, {})
        for load in part.get("peaks", ()):
            peak = f"{name}, {_plain(load)}, peak, req/s"
            found[peak] = max(found.get(peak, 0.0), float(load["requests_per_s"]))
        for load in sorted(part.get("at_half", ()), key=lambda load: float(load["latency_ms"]["p90"])):
            for share in _LATENCIES:
                found.setdefault(f"{name}, {_plain(load)}, {share}, ms", float(load["latency_ms"][share]))
    return found


def _plain(load: Mapping[str, Any]) -> str:
    """A contestant's name without ", ", which parts the names of figures."""
    return str(load["contestant"]).replace(", ", " ")


_LSTM_PEAK, _LSTM_P90 = f"lstm, {OURS}, peak, req/s", f"lstm, {OURS}, p90, ms"
SUITE = Suite(
    "cellular",
    (
        _best,
        At("*.half_per_s", "*, half of saturation, req/s"),
        At("lstm.offline.requests_per_s", "lstm, sorted offline, req/s"),
        From(f"lstm, p90 at half of saturation, share of {PADDING}", (_LSTM_P90, f"lstm, {PADDING}, p90, ms")),
        From(f"lstm, peak, times {PADDING}", (_LSTM_PEAK, f"lstm, {PADDING}, peak, req/s")),
        From(f"lstm, peak, share of {NN_LSTM}, sorted offline", (_LSTM_PEAK, "lstm, sorted offline, req/s")),
        From(f"tree, peak, times {DEPTH}", (f"tree, {OURS}, peak, req/s", f"tree, {DEPTH}, peak, req/s")),
    ),
)
_CONTESTANTS = [
    Grid(
        [shown, "peak, req/s", *(f"{share} ms" for share in _LATENCIES)],
        [["*", f"{{{name}, *, peak, req/s}}", *(f"{{{name}, *, {share}, ms}}" for share in _LATENCIES)]],
    )
    for name, shown in PARTS.items()
]
_HALF = Grid(
    ["half of saturation", "req/s"],
    [[shown, f"{{{name}, half of saturation, req/s}}"] for name, shown in PARTS.items()],
)
TABLES = {
    "cellular": Table(SUITE, list(PARTS), [*_CONTESTANTS, _HALF]),
    "cellular-targets": Table(SUITE, list(PARTS), [Targets("cellular")]),
}
