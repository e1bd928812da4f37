"""ByteTransformer's grid of batch sizes and maximum lengths, and its Figure 15c: mean lengths of 0.1 to 1.0 maximum."""

from typing import Any

from penstock.engine.types import Int32Array
from penstock.ops.bench.common.lengths import around_mean
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import of_one_batch
from penstock.ops.bench.gpu.request_batches import num_tokens, random_requests

BATCHES = (1, 8, 16)
MAX_TOKENS = (64, 128, 256, 384, 512, 768, 1024)
MEAN_RATIO = 0.6
DRAWS = 3
FILL_BATCH, FILL_MAX_TOKENS = 16, 512
FILL_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def run_grid(bench: Bench) -> dict[str, Any]:
    """About 58 s: 63 points, of which each makes three graphs and times eight contestants 20 times."""
    points = []
    for batch in BATCHES:
        for max_tokens in MAX_TOKENS:
            for draw in range(DRAWS):
                requests = grid_requests(bench, batch, max_tokens, draw)
                where = f"grid {batch} x {max_tokens}, draw {draw}"
                milliseconds = bench.compare(where, of_one_batch(bench, requests, slow=True))
                point = {"batch": batch, "max_tokens": max_tokens, "draw": draw, "tokens": num_tokens(requests)}
                points.append({**point, "ms": milliseconds})
    return {"mean_ratio": MEAN_RATIO, "points": points}


def run_fill(bench: Bench) -> dict[str, Any]:
    """About 8 s."""
    points = []
    for ratio in FILL_RATIOS:
        lengths = around_mean(FILL_MAX_TOKENS, ratio, FILL_BATCH, bench.seed)
        requests = random_requests(lengths, bench.bert.vocab_size, bench.seed)
        milliseconds = bench.compare(f"fill {ratio}", of_one_batch(bench, requests))
        points.append({"ratio": ratio, "tokens": int(lengths.sum()), "ms": milliseconds})
    return {"batch": FILL_BATCH, "max_tokens": FILL_MAX_TOKENS, "points": points}


def grid_requests(bench: Bench, batch: int, max_tokens: int, draw: int) -> list[Int32Array]:
    """One draw of one point of the grid."""
    seed = bench.seed + 1000 * draw + 10 * max_tokens + batch
    return random_requests(around_mean(max_tokens, MEAN_RATIO, batch, seed), bench.bert.vocab_size, seed)
