"""torch.compile, on its own and last: compiling takes longer than everything else, and may take too long."""

import time
from typing import Any

import torch

from penstock.ops.bench.gpu.batches import by_length, random_requests
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import transformers_work
from penstock.ops.bench.gpu.part_backlog import transformers_pass, workloads
from penstock.ops.bench.gpu.part_grid import grid_requests
from penstock.ops.bench.gpu.timing import DeadlinePassed, wall_s

POINTS = ((8, 64), (8, 128), (8, 512), (16, 128), (16, 256), (16, 512), (16, 1024), (1, 128), (1, 512))
COMPILE_S = 150  # of compiling, after which the points that are left are not begun
_BACKLOGS = ("2-100", "5-500")
_ROUNDS = 2


def run(bench: Bench) -> dict[str, Any]:
    """Some 110 s. One dynamic compilation serves all padded batches; single requests, without a mask, take another."""
    compiled = torch.compile(bench.sdpa, dynamic=True)
    started, compile_s = time.monotonic(), 0.0
    points: list[dict[str, Any]] = []
    backlogs: list[dict[str, Any]] = []
    try:
        for index, (batch, max_tokens) in enumerate(POINTS):
            if index == len(POINTS) - 2:  # the backlogs before single requests, which need another compilation
                backlogs = [_backlog(bench, compiled, name) for name in _BACKLOGS]
            if compile_s > COMPILE_S:
                break
            requests = grid_requests(bench, batch, max_tokens, draw=0)
            compile_s += wall_s(transformers_work(compiled, requests))
            contestants = {
                "torch.compile": lambda requests=requests: transformers_work(compiled, requests),
                "floor": lambda requests=requests: bench.floor.graph(sum(map(len, requests))),
            }
            point = {"batch": batch, "max_tokens": max_tokens, "draw": 0, "tokens": sum(map(len, requests))}
            points.append({**point, "ms": bench.compare(f"compile {batch} x {max_tokens}", contestants)})
    except DeadlinePassed as error:  # what was measured until then counts
        bench.failures["torch.compile"] = {"error": str(error), "where": "compile", "count": 1}
    return {
        "first_calls_s": compile_s,
        "seconds": time.monotonic() - started,
        "points": points,
        "backlogs": backlogs,
    }


def _backlog(bench: Bench, compiled: Any, name: str) -> dict[str, Any]:
    """Sorted, in batches of 256."""
    requests = random_requests(workloads(bench.seed)[name], bench.bert.vocab_size, bench.seed)
    ordered = by_length(requests)
    seconds = [wall_s(lambda: transformers_pass(compiled, ordered, 256)) for _ in range(1 + _ROUNDS)]
    return {"name": name, "requests": len(requests), "seconds": min(seconds[1:])}
