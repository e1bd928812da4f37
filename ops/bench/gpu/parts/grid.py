"""ByteTransformer's grid of batch sizes and maximum lengths, and its Figure 15c: mean lengths of 0.1 to 1.0 maximum."""

from collections.abc import Callable
from typing import Any

from penstock.engine.device_share import DeviceShare
from penstock.engine.gpu import GpuEncoder
from penstock.engine.types import Int32Array, PackedBatch
from penstock.ops.bench.common.lengths import around_mean
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import packed_torch_graph, transformers_work
from penstock.ops.bench.gpu.request_batches import pack, random_requests
from penstock.ops.bench.gpu.timing import Work
from penstock.ops.bench.gpu.torch_ops import PACKED_TORCH

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
                contestants = contestants_for(bench, requests) | _slow_contestants(bench, requests)
                where = f"grid {batch} x {max_tokens}, draw {draw}"
                point = {"batch": batch, "max_tokens": max_tokens, "draw": draw, "tokens": sum(map(len, requests))}
                points.append({**point, "ms": bench.compare(where, contestants)})
    return {"mean_ratio": MEAN_RATIO, "points": points}


def run_fill(bench: Bench) -> dict[str, Any]:
    """About 8 s."""
    points = []
    for ratio in FILL_RATIOS:
        lengths = around_mean(FILL_MAX_TOKENS, ratio, FILL_BATCH, bench.seed)
        requests = random_requests(lengths, bench.bert.vocab_size, bench.seed)
        milliseconds = bench.compare(f"fill {ratio}", contestants_for(bench, requests))
        points.append({"ratio": ratio, "tokens": int(lengths.sum()), "ms": milliseconds})
    return {"batch": FILL_BATCH, "max_tokens": FILL_MAX_TOKENS, "points": points}


def grid_requests(bench: Bench, batch: int, max_tokens: int, draw: int) -> list[Int32Array]:
    """One draw of one point of the grid."""
    seed = bench.seed + 1000 * draw + 10 * max_tokens + batch
    return random_requests(around_mean(max_tokens, MEAN_RATIO, batch, seed), bench.bert.vocab_size, seed)


Contestants = dict[str, Callable[[], Work]]


def contestants_for(bench: Bench, requests: list[Int32Array]) -> Contestants:
    """All with their inputs on the device already, and the engine once more with all of the host's work."""
    batch = pack(requests)
    return {
        "ours": lambda: resident(bench.ours, batch),
        "ours, from the host": lambda: lambda: bench.ours.run(batch),
        "transformers SDPA": lambda: transformers_work(bench.sdpa, requests),
        "packed torch, one graph": lambda: packed_torch_graph(bench.prepared, requests, PACKED_TORCH, bench.recorder),
        "floor": lambda: bench.floor.graph(len(batch.token_ids)),
    }


def resident(encoder: GpuEncoder, batch: PackedBatch) -> Work:
    """The engine's forward of a batch that is on the device already.

    The encoder has room for one description: an `encoder.run` in between must be of a batch of the same shape.
    """
    encoder.prepare(batch, DeviceShare())
    inputs = encoder.upload(batch)
    return lambda: encoder.forward(inputs)


def _slow_contestants(bench: Bench, requests: list[Int32Array]) -> Contestants:
    batch = pack(requests)
    return {
        "ours, no graphs": lambda: resident(bench.ours_eager, batch),
        "transformers eager": lambda: transformers_work(bench.eager, requests),
        "nn.TransformerEncoder nested": lambda: bench.nested.work(requests),
    }
