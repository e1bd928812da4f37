"""torch.compile, on its own and last: compiling takes longer than everything else, and may take too long."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants import ours, padded
from penstock.ops.bench.gpu.gpu_tables import COMPILED, FLOOR, OURS
from penstock.ops.bench.gpu.parts.backlog import medians, workloads
from penstock.ops.bench.gpu.parts.grid import grid_requests
from penstock.ops.bench.gpu.request_batches import num_tokens, random_requests
from penstock.ops.bench.gpu.timing import DeadlinePassed, Work, in_turn_s, wall_s

POINTS = ((8, 64), (8, 128), (8, 512), (16, 128), (16, 256), (16, 512), (16, 1024), (1, 128), (1, 512))
COMPILE_S = 90  # of compiling, after which no further point is begun
_BACKLOGS = ("2-100", "5-500")
_ROUNDS = 3
_BUDGET_TOKENS = 16_384  # of our batches


def run(bench: Bench) -> dict[str, Any]:
    """About 75 s. One dynamic compilation serves all padded batches; single requests, without a mask, take another."""
    compiled = torch.compile(bench.sdpa, dynamic=True)
    started, compile_s = time.monotonic(), 0.0
    points: list[dict[str, Any]] = []
    backlogs: list[dict[str, Any]] = []
    try:
        for name in _BACKLOGS:
            first_s, backlog = _backlog(bench, compiled, name)
            compile_s += first_s
            backlogs.append(backlog)
        for batch, max_tokens in POINTS:
            if compile_s > COMPILE_S:
                break
            requests = grid_requests(bench, batch, max_tokens, draw=0)
            where = f"compile {batch} x {max_tokens}"
            compile_s += _first_s(bench, where, padded.one_forward(compiled, requests))
            contestants: dict[str, Callable[[], Work]] = {
                "torch.compile": partial(padded.one_forward, compiled, requests),
                FLOOR: partial(bench.floor.graph, num_tokens(requests)),
            }
            point = {"batch": batch, "max_tokens": max_tokens, "draw": 0, "tokens": num_tokens(requests)}
            points.append({**point, "ms": bench.compare(where, contestants)})
    except DeadlinePassed as error:  # what was measured until then counts
        bench.failures["torch.compile"] = {"error": str(error), "where": "compile", "count": 1}
    return {
        "first_calls_s": compile_s,
        "seconds": time.monotonic() - started,
        "points": points,
        "backlogs": backlogs,
    }


def _backlog(bench: Bench, compiled: Any, name: str) -> tuple[float, dict[str, Any]]:
    """Seconds of the first pass, and rounds of later ones in turn with ours."""
    requests = random_requests(workloads(bench.seed)[name], bench.bert.vocab_size, bench.seed)
    contestants: dict[str, Work] = {
        COMPILED: partial(padded.one_pass, compiled, requests),
        OURS: partial(ours.one_pass, bench, requests, _BUDGET_TOKENS),
    }
    where = f"compile, backlog {name}"
    first_s = _first_s(bench, where, contestants[COMPILED])
    rounds_s = in_turn_s(contestants, _ROUNDS, partial(bench.guarded, where=where))
    figures = {"name": name, "requests": len(requests), "rounds_s": rounds_s}
    return first_s, {**figures, "seconds": medians(rounds_s).get(COMPILED)}


def _first_s(bench: Bench, where: str, work: Work) -> float:
    """Seconds of the first call, which compiles; 0 if it fails."""
    with bench.guarded(COMPILED, where):
        return wall_s(work)
    return 0.0
