"""One request at a time, as it comes: 64 draws of each range of lengths."""

from typing import Any

from penstock.ops.bench.common.lengths import uniform
from penstock.ops.bench.gpu.batches import random_requests
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.part_grid import contestants_for

RANGES = ((2, 100), (5, 500))
DRAWS = 64


def run(bench: Bench) -> dict[str, Any]:
    """Some 40 s: 128 draws, of which each makes three graphs and is timed 20 times for each of four contestants."""
    workloads = []
    for low, high in RANGES:
        points = []
        for request in random_requests(uniform(low, high, DRAWS, bench.seed), bench.bert.vocab_size, bench.seed):
            milliseconds = bench.compare(f"single {len(request)} tokens", contestants_for(bench, [request]))
            points.append({"tokens": len(request), "ms": milliseconds})
        workloads.append({"low": low, "high": high, "points": points})
    return {"workloads": workloads}
