"""Memory over 1,000 random lengths beside torch's caching allocator, after TurboTransformers' Figures 11 to 13."""

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.engine.memory import MemoryPlanner
from penstock.engine.model.program import record
from penstock.engine.types import Int32Array, PackedBatch
from penstock.ops.bench.common.lengths import uniform
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants import packed_torch
from penstock.ops.bench.gpu.models import DTYPE
from penstock.ops.bench.gpu.request_batches import pack, random_requests
from penstock.ops.bench.gpu.timing import wall_s

REQUESTS = 1000
WARM_UP = 200  # of them; figures a request are of the others
_STATS = {
    "tensors_allocated": "allocation.all.allocated",
    "tensor_bytes_allocated": "allocated_bytes.all.allocated",
    "device_bytes_allocated": "reserved_bytes.all.allocated",
    "device_bytes_freed": "reserved_bytes.all.freed",
    "device_allocations": "num_device_alloc",
}


def run(bench: Bench) -> dict[str, Any]:
    """About 12 s."""
    lengths = uniform(5, 500, REQUESTS, bench.seed)
    requests = random_requests(lengths, bench.bert.vocab_size, bench.seed)
    encoder = bench.prepared
    contestants: dict[str, Callable[[], Callable[[list[Int32Array]], object]]] = {
        "planned": lambda: _engine(bench, graphs=False),
        "planned, with graphs": lambda: _engine(bench, graphs=True),
        "torch's caching allocator": lambda: lambda batch: packed_torch.one_forward(encoder, batch)(),
    }
    figures: dict[str, Any] = {}
    for name, make in contestants.items():
        with bench.guarded(f"memory, {name}", "memory"):
            figures[name] = _measure(make(), requests)
    lifetimes = record(encoder, lambda dense: dense.width, DTYPE.itemsize).lifetimes
    batches = [pack([request]) for request in requests] + _random_batches(bench, REQUESTS)
    return {
        "requests": REQUESTS,
        "warm_up": WARM_UP,
        "contestants": figures,
        "planner": {"buffers": len(lifetimes), **_planning(MemoryPlanner(lifetimes, cached_plans=0), batches)},
    }


def _engine(bench: Bench, graphs: bool) -> Callable[[list[Int32Array]], object]:
    encoder = bench.bert.encoder(graphs=graphs)
    return lambda batch: encoder.run(pack(batch))


def _measure(work: Callable[[list[Int32Array]], object], requests: list[Int32Array]) -> dict[str, Any]:
    """Requests one by one. The footprint is the peak of tensors above what weights and other models hold.

    Memory that torch has reserved is shared by all contestants of the process, so its peak says nothing about one.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    allocated = torch.cuda.memory_allocated()
    milliseconds, warm = [], {}
    for index, request in enumerate(requests):
        if index == WARM_UP:
            warm = torch.cuda.memory_stats()
        milliseconds.append(1e3 * wall_s(partial(work, [request])))
    after = torch.cuda.memory_stats()
    measured = len(requests) - WARM_UP
    return {
        "peak_tensor_bytes": torch.cuda.max_memory_allocated() - allocated,
        "latency_p50_ms": statistics.median(milliseconds[WARM_UP:]),
        "per_request": {name: (after[key] - warm[key]) / measured for name, key in _STATS.items()},
    }


def _planning(planner: MemoryPlanner, batches: list[PackedBatch]) -> dict[str, Any]:
    """Every batch planned anew, into the chunks that the batches before it have left."""
    microseconds, shares = [], []
    chunks: tuple[int, ...] = ()
    for batch in batches:
        tokens, sequences = len(batch.token_ids), len(batch.cu_seqlens) - 1
        started = time.perf_counter_ns()
        plan = planner.plan(tokens, sequences, chunks)
        microseconds.append((time.perf_counter_ns() - started) / 1e3)
        chunks = plan.chunk_bytes
        shares.append(plan.lower_bound_bytes / plan.used_bytes)
    return {
        "batches": len(batches),
        "p50_us": float(np.percentile(microseconds, 50)),
        "p99_us": float(np.percentile(microseconds, 99)),
        "min_lower_bound_over_used": min(shares),
        "mean_lower_bound_over_used": statistics.fmean(shares),
    }


def _random_batches(bench: Bench, count: int) -> list[PackedBatch]:
    """Of 1 to 20 requests of 5 to 500 tokens."""
    sizes = uniform(1, 20, count, bench.seed)
    requests = random_requests(uniform(5, 500, int(sizes.sum()), bench.seed), bench.bert.vocab_size, bench.seed)
    ends = np.cumsum(sizes).tolist()
    return [pack(requests[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True)]
