"""One request at a time, as it comes: draws of two ranges of lengths."""

from typing import Any

from penstock.engine.model.forward import forward
from penstock.engine.types import Int32Array
from penstock.ops.bench.common.lengths import uniform
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import padded_inputs, torch_ops
from penstock.ops.bench.gpu.parts.grid import Contestants, contestants_for
from penstock.ops.bench.gpu.request_batches import pack, random_requests
from penstock.ops.bench.gpu.torch_ops import PACKED_TORCH

RANGES = ((2, 100), (5, 500))
DRAWS = 40


def run(bench: Bench) -> dict[str, Any]:
    """About 32 s: 80 draws, of which each makes three graphs and times seven contestants 20 times."""
    workloads = []
    for low, high in RANGES:
        points = []
        for request in random_requests(uniform(low, high, DRAWS, bench.seed), bench.bert.vocab_size, bench.seed):
            contestants = contestants_for(bench, [request]) | _from_the_host(bench, [request])
            milliseconds = bench.compare(f"single {len(request)} tokens", contestants)
            points.append({"tokens": len(request), "ms": milliseconds})
        workloads.append({"low": low, "high": high, "points": points})
    return {"workloads": workloads}


def _from_the_host(bench: Bench, requests: list[Int32Array]) -> Contestants:
    """The alternatives from token ids on the host, on the clock of "ours, from the host"."""
    encoder = bench.prepared
    return {
        "transformers SDPA, from the host": lambda: lambda: bench.sdpa(**padded_inputs(requests)).last_hidden_state,
        "packed torch, from the host": lambda: (
            lambda: forward(encoder, torch_ops(encoder, pack(requests), PACKED_TORCH))
        ),
    }
