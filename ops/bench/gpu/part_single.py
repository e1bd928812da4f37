"""One request at a time, as it comes: draws of two ranges of lengths."""

from typing import Any

from penstock.ops.bench.common.draws import uniform
from penstock.ops.bench.gpu.bench import Bench, random_requests
from penstock.ops.bench.gpu.contestants import of_request

RANGES = ((2, 100), (5, 500))
DRAWS = 40


def run(bench: Bench) -> dict[str, Any]:
    """About 32 s: 80 draws, of which each makes three graphs and times seven contestants 20 times."""
    workloads = []
    for low, high in RANGES:
        points = []
        for request in random_requests(uniform(low, high, DRAWS, bench.seed), bench.weights.vocab_size, bench.seed):
            contestants = of_request(bench, request)
            milliseconds = bench.compare(f"single {len(request)} tokens", contestants)
            points.append({"tokens": len(request), "ms": milliseconds})
        workloads.append({"low": low, "high": high, "points": points})
    return {"workloads": workloads}
