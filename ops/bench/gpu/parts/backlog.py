"""Thousands of requests that are all there: requests a second, the host's work included, nothing waited for in between.

Every contestant makes hidden states of all tokens from token ids on the host: batching, packing or padding, and upload
are in its time. The floor is the products over all tokens at once, in chunks of one budget, without any host work.

A contestant has one or more ways to batch. Each way runs twice without being timed, then twice timed. The fastest way
of each contestant runs twice more without being timed, then in five rounds in turn with the others. All are kept.
"""

import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock.ops.bench.common.lengths import Lengths, squad, uniform
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Ways, contestants
from penstock.ops.bench.gpu.request_batches import random_requests
from penstock.ops.bench.gpu.timing import UNTIMED_PASSES, in_turn_s, wall_s

REQUESTS = 4096
ROUNDS = 5


def workloads(seed: int) -> dict[str, Lengths]:
    """Name and lengths of each backlog."""
    return {
        "2-100": uniform(2, 100, REQUESTS, seed),
        "5-500": uniform(5, 500, REQUESTS, seed),
        "SQuAD slice": squad(seed),
    }


def run(bench: Bench) -> dict[str, Any]:
    """About 50 s."""
    return {"workloads": [_workload(bench, name, lengths) for name, lengths in workloads(bench.seed).items()]}


def _workload(bench: Bench, name: str, lengths: Lengths) -> dict[str, Any]:
    requests = random_requests(lengths, bench.bert.vocab_size, bench.seed)
    where, not_run = f"backlog {name}", {}
    tried: dict[str, dict[str, float]] = {}
    fastest = {}
    for contestant in contestants():
        if contestant.backlog is None:
            continue
        label, make = contestant.backlog
        if (reason := contestant.missing()) is not None:
            not_run[label] = reason
            continue
        with bench.guarded(label, where):
            ways = make(bench, requests)
            tried[label] = _fastest_first(ways)
            fastest[label] = ways[next(iter(tried[label]))]
    rounds_s = in_turn_s(fastest, ROUNDS, partial(bench.guarded, where=where))
    return {
        "name": name,
        "requests": len(requests),
        "tokens": int(lengths.sum()),
        "seconds": medians(rounds_s),
        "rounds_s": rounds_s,
        "tried": tried,
        "not_run": not_run,
    }


def medians(rounds_s: Mapping[str, list[float]]) -> dict[str, float]:
    """Of each contestant that has a round."""
    return {label: statistics.median(values) for label, values in rounds_s.items() if values}


def _fastest_first(ways: Ways) -> dict[str, float]:
    """Seconds of each way, the better of two passes after those that are not timed."""
    seconds = {}
    for name, work in ways.items():
        for _ in range(UNTIMED_PASSES):
            work()
        seconds[name] = min(wall_s(work) for _ in range(2))
    return dict(sorted(seconds.items(), key=lambda item: item[1]))
