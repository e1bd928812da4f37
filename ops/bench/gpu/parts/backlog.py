"""Thousands of requests that are all there: requests a second, the host's work included, nothing waited for in between.

Every contestant makes hidden states of all tokens from token ids on the host: batching, packing or padding, and upload
are in its time. The floor is the products over all tokens at once, in chunks of one budget, without any host work.

A contestant has one or more ways to batch. Each way runs twice without being timed, then twice timed. The fastest way
of each contestant runs twice more without being timed, then in five rounds in turn with the others. All are kept.
"""

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import nn

from penstock.engine.model.forward import forward
from penstock.engine.types import Int32Array
from penstock.ops.bench.common.lengths import Lengths, squad, uniform
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import flattened_inputs, padded_inputs, torch_ops
from penstock.ops.bench.gpu.report.arithmetic import FLOOR, OURS, SDPA_SORTED, UNPADDED
from penstock.ops.bench.gpu.request_batches import by_budget, by_count, by_length, pack, random_requests
from penstock.ops.bench.gpu.timing import UNTIMED_PASSES, Work, in_turn_s, wall_s
from penstock.ops.bench.gpu.torch_ops import PACKED_TORCH

REQUESTS = 4096
BUDGETS = (8192, 16_384, 32_768)  # tokens a batch
ROUNDS = 5
BATCH = 256  # sequences, of contestants that pad

Requests = list[Int32Array]
Ways = dict[str, Work]


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
    tokens = int(lengths.sum())
    where = f"backlog {name}"
    makers: dict[str, Callable[[], Ways]] = {
        OURS: lambda: _ours(bench, requests),
        "packed torch": lambda: _packed_torch(bench, requests),
        FLOOR: lambda: _floor(bench, tokens),
        SDPA_SORTED: lambda: {f"batch {BATCH}": lambda: padded_pass(bench.sdpa, by_length(requests), BATCH)},
    }
    not_run = {}
    if (reason := unpadded_missing()) is None:
        makers[UNPADDED] = lambda: _unpadded(bench, requests)
    else:
        not_run[UNPADDED] = reason
    tried: dict[str, dict[str, float]] = {}
    fastest: Ways = {}
    for label, make in makers.items():
        with bench.guarded(label, where):
            ways = make()
            tried[label] = _fastest_first(ways)
            fastest[label] = ways[next(iter(tried[label]))]
    rounds_s = in_turn_s(fastest, ROUNDS, partial(bench.guarded, where=where))
    return {
        "name": name,
        "requests": len(requests),
        "tokens": tokens,
        "seconds": medians(rounds_s),
        "rounds_s": rounds_s,
        "tried": tried,
        "not_run": not_run,
    }


def medians(rounds_s: Mapping[str, list[float]]) -> dict[str, float]:
    """Of each contestant that has a round."""
    return {label: statistics.median(values) for label, values in rounds_s.items() if values}


def padded_pass(model: Callable[..., Any], requests: Requests, count: int) -> None:
    """All requests in padded batches of `count`, in the given order."""
    for batch in by_count(requests, count):
        model(**padded_inputs(batch))


def ours_pass(bench: Bench, requests: Requests, budget: int) -> None:
    """All requests in the given order, in batches of up to `budget` tokens."""
    for batch in by_budget(requests, budget):
        bench.ours.run(pack(batch))


def unpadded_missing() -> str | None:
    """Reason why sentence-transformers cannot leave the padding out here; None where it can."""
    return None if find_spec("flash_attn") is not None else "flash-attn is not installed"


def _ours(bench: Bench, requests: Requests) -> Ways:
    def once(ordered: Callable[[Requests], Requests], budget: int) -> None:
        ours_pass(bench, ordered(requests), budget)

    return {
        f"{order}, {budget} tokens a batch": partial(once, ordered, budget)
        for order, ordered in (("in order of arrival", lambda requests: requests), ("sorted by length", by_length))
        for budget in BUDGETS
    }


def _packed_torch(bench: Bench, requests: Requests) -> Ways:
    encoder = bench.prepared

    def once(budget: int) -> None:
        for group in by_budget(requests, budget):
            forward(encoder, torch_ops(encoder, pack(group), PACKED_TORCH))

    return {f"{budget} tokens a batch": partial(once, budget) for budget in BUDGETS}


def _unpadded(bench: Bench, requests: Requests) -> Ways:
    """As sentence-transformers 6 runs a model with FlashAttention-2: sorted by length, sequences laid end to end."""
    model: nn.Module = bench.bert.on_device("flash_attention_2")

    def once(count: int) -> None:
        for batch in by_count(by_length(requests), count):
            model(**flattened_inputs(batch))

    return {f"batch {count}": partial(once, count) for count in (32, BATCH, 1024)}


def _floor(bench: Bench, tokens: int) -> Ways:
    def of_budget(budget: int) -> Work:
        whole, rest = divmod(tokens, budget)
        replays = [bench.floor.graph(budget)] * whole + ([bench.floor.graph(rest)] if rest else [])

        def all_of_them() -> None:
            for replay in replays:
                replay()

        return all_of_them

    return {f"{budget} tokens a product": of_budget(budget) for budget in BUDGETS}


def _fastest_first(ways: Ways) -> dict[str, float]:
    """Seconds of each way, the better of two passes after those that are not timed."""
    seconds = {}
    for name, work in ways.items():
        for _ in range(UNTIMED_PASSES):
            work()
        seconds[name] = min(wall_s(work) for _ in range(2))
    return dict(sorted(seconds.items(), key=lambda item: item[1]))
