"""ByteTransformer's Figure 15c: mean lengths of 0.1 to 1.0 of the maximum."""

from typing import Any

from penstock.ops.bench.common.lengths import around_mean
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import of_one_batch
from penstock.ops.bench.gpu.request_batches import random_requests

BATCH, MAX_TOKENS = 16, 512
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def run(bench: Bench) -> dict[str, Any]:
    """About 8 s."""
    points = []
    for ratio in RATIOS:
        lengths = around_mean(MAX_TOKENS, ratio, BATCH, bench.seed)
        requests = random_requests(lengths, bench.bert.vocab_size, bench.seed)
        milliseconds = bench.compare(f"fill {ratio}", of_one_batch(bench, requests))
        points.append({"ratio": ratio, "tokens": int(lengths.sum()), "ms": milliseconds})
    return {"batch": BATCH, "max_tokens": MAX_TOKENS, "points": points}
