"""ByteTransformer's Figure 14: the gain of each step, launched from the host and within a CUDA graph."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.forward import forward
from penstock.engine.types import Int32Array
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import packed_torch_graph, torch_ops, torch_work
from penstock.ops.bench.gpu.parts.grid import grid_requests
from penstock.ops.bench.gpu.request_batches import pack
from penstock.ops.bench.gpu.timing import Work
from penstock.ops.bench.gpu.torch_ops import STEPS

BATCH = 16
MAX_TOKENS = (128, 256, 512, 1024)
GRAPH = "+ CUDA graph"
ENGINE = "the engine itself"


def run(bench: Bench) -> dict[str, Any]:
    """About 13 s. `in_graph_ms` is the device's work alone; `ms` includes the host's launches."""
    points = []
    for max_tokens in MAX_TOKENS:
        requests = grid_requests(bench, BATCH, max_tokens, draw=0)
        where = f"ablation {max_tokens}"
        milliseconds = bench.compare(where, _from_the_host(bench, requests))
        in_graph = bench.compare(where + ", in a graph", _in_graphs(bench, requests))
        if (last := list(STEPS)[-1]) in in_graph:
            milliseconds[GRAPH] = in_graph[last]
        points.append(
            {
                "max_tokens": max_tokens,
                "tokens": sum(map(len, requests)),
                "ms": milliseconds,
                "in_graph_ms": in_graph,
                "min_cosine_to_plain": _cosines_to_plain(bench, requests),
            }
        )
    return {"batch": BATCH, "steps": [*STEPS, GRAPH], "points": points}


def _from_the_host(bench: Bench, requests: list[Int32Array]) -> dict[str, Callable[[], Work]]:
    def launched(step: str) -> Callable[[], Work]:
        return lambda: torch_work(bench.prepared, requests, STEPS[step])

    batch = pack(requests)
    contestants = {step: launched(step) for step in STEPS}
    contestants[ENGINE] = lambda: lambda: bench.ours.run(batch)
    contestants["floor"] = lambda: bench.floor.graph(len(batch.token_ids))
    return contestants


def _in_graphs(bench: Bench, requests: list[Int32Array]) -> dict[str, Callable[[], Work]]:
    def captured(step: str) -> Callable[[], Work]:
        return lambda: packed_torch_graph(bench.prepared, requests, STEPS[step], bench.recorder)

    return {step: captured(step) for step in STEPS}


def _cosines_to_plain(bench: Bench, requests: list[Int32Array]) -> dict[str, float]:
    """Every step computes the same: the smallest cosine of a token's hidden state to that of the first step."""
    hidden: dict[str, Tensor] = {}
    for step, choices in STEPS.items():
        with bench.guarded(step, "ablation, cosine"):
            ops = torch_ops(bench.prepared, pack(requests), choices)
            hidden[step] = ops.valid_rows(forward(bench.prepared, ops)).float()
    plain = hidden[next(iter(STEPS))]
    return {step: F.cosine_similarity(rows, plain, dim=1).min().item() for step, rows in hidden.items()}
