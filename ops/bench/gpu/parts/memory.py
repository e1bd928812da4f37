"""The memory planner's time and waste: batches of BERT-base planned anew, one after another."""

import statistics
import time
from typing import Any

import numpy as np

from penstock.engine.memory import MemoryPlanner
from penstock.engine.model.program import record
from penstock.engine.types import PackedBatch
from penstock.ops.bench.common.lengths import uniform
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import DTYPE
from penstock.ops.bench.gpu.request_batches import pack, random_requests

BATCHES = 1000  # of one request, and as many of several


def run(bench: Bench) -> dict[str, Any]:
    """About 3 s. Each batch is planned into the chunks that the batches before it have left."""
    lifetimes = record(bench.prepared, lambda dense: dense.width, DTYPE.itemsize).lifetimes
    planner = MemoryPlanner(lifetimes, cached_plans=0)
    microseconds, shares = [], []
    chunks: tuple[int, ...] = ()
    for batch in _batches(bench):
        tokens, sequences = len(batch.token_ids), len(batch.cu_seqlens) - 1
        started = time.perf_counter_ns()
        plan = planner.plan(tokens, sequences, chunks)
        microseconds.append((time.perf_counter_ns() - started) / 1e3)
        chunks = plan.chunk_bytes
        shares.append(plan.lower_bound_bytes / plan.used_bytes)
    figures = {
        "buffers": len(lifetimes),
        "batches": len(shares),
        "p50_us": float(np.percentile(microseconds, 50)),
        "p99_us": float(np.percentile(microseconds, 99)),
        "min_lower_bound_over_used": min(shares),
        "mean_lower_bound_over_used": statistics.fmean(shares),
    }
    return {"planner": figures}


def _batches(bench: Bench) -> list[PackedBatch]:
    """Of 1 request, then of 1 to 20; of 5 to 500 tokens each."""
    sizes = np.concatenate([np.ones(BATCHES, np.int64), uniform(1, 20, BATCHES, bench.seed)])
    requests = random_requests(uniform(5, 500, int(sizes.sum()), bench.seed), bench.bert.vocab_size, bench.seed)
    ends = np.cumsum(sizes).tolist()
    return [pack(requests[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True)]
