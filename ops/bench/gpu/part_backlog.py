"""Thousands of requests that are all there: requests a second, the host's work included, nothing waited for in between.

Every contestant makes hidden states of all tokens from token ids on the host: batching, packing or padding, and upload
are in its time. The floor is the products over all tokens at once, in chunks of one budget, and no host's work at all.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from penstock.engine.model.forward import forward
from penstock.engine.types import Int32Array
from penstock.ops.bench.common.lengths import Lengths, squad, uniform
from penstock.ops.bench.gpu.batches import by_budget, by_count, by_length, pack, random_requests
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import padded_inputs, torch_ops
from penstock.ops.bench.gpu.timing import Work, wall_s
from penstock.ops.bench.gpu.torch_ops import PACKED_TORCH

REQUESTS = 4096
BUDGETS = (8192, 16_384, 32_768)  # tokens a batch
ROUNDS = 5
_SLOW_ROUNDS = 2

Requests = list[Int32Array]


def workloads(seed: int) -> dict[str, Lengths]:
    """Name and lengths of each backlog."""
    return {
        "2-100": uniform(2, 100, REQUESTS, seed),
        "5-500": uniform(5, 500, REQUESTS, seed),
        "SQuAD slice": squad(seed),
    }


def run(bench: Bench) -> dict[str, Any]:
    """Some 45 s."""
    return {"workloads": [_workload(bench, name, lengths) for name, lengths in workloads(bench.seed).items()]}


def _workload(bench: Bench, name: str, lengths: Lengths) -> dict[str, Any]:
    requests = random_requests(lengths, bench.bert.vocab_size, bench.seed)
    tokens = int(lengths.sum())
    tried: dict[str, dict[str, float]] = {}
    finalists: dict[str, Work] = {}
    makers: dict[str, Callable[[], dict[str, Work]]] = {
        "ours": lambda: _ours(bench, requests),
        "packed torch": lambda: _packed_torch(bench, requests),
        "floor": lambda: _floor(bench, tokens),
    }
    for label, make in makers.items():
        with bench.guarded(label, f"backlog {name}"):
            works = make()
            tried[label] = _fastest_first(works)
            finalists[label] = works[next(iter(tried[label]))]
    slow = _transformers(bench, requests)
    seconds: dict[str, list[float]] = {label: [] for label in (*finalists, *slow)}
    for turn in range(ROUNDS):
        for label, work in {**finalists, **(slow if turn < _SLOW_ROUNDS else {})}.items():
            with bench.guarded(label, f"backlog {name}"):
                seconds[label].append(wall_s(work))
    return {
        "name": name,
        "requests": len(requests),
        "tokens": tokens,
        "seconds": {label: statistics.median(values) for label, values in seconds.items() if values},
        "tried": tried,
    }


def transformers_pass(model: Callable[..., Any], requests: Requests, count: int) -> None:
    """All requests in padded batches of `count`, in the given order."""
    for batch in by_count(requests, count):
        model(**padded_inputs(batch))


def _ours(bench: Bench, requests: Requests) -> dict[str, Work]:
    def once(ordered: Callable[[Requests], Requests], budget: int) -> None:
        for batch in by_budget(ordered(requests), budget):
            bench.ours.run(pack(batch))

    return {
        f"{order}, {budget} tokens a batch": partial(once, ordered, budget)
        for order, ordered in (("in order of arrival", lambda requests: requests), ("sorted by length", by_length))
        for budget in BUDGETS
    }


def _packed_torch(bench: Bench, requests: Requests) -> dict[str, Work]:
    encoder = bench.prepared

    def once(budget: int) -> None:
        for group in by_budget(requests, budget):
            forward(encoder, torch_ops(encoder, pack(group), PACKED_TORCH))

    return {f"{budget} tokens a batch": partial(once, budget) for budget in BUDGETS}


def _floor(bench: Bench, tokens: int) -> dict[str, Work]:
    def of_budget(budget: int) -> Work:
        whole, rest = divmod(tokens, budget)
        replays = [bench.floor.graph(budget)] * whole + ([bench.floor.graph(rest)] if rest else [])

        def all_of_them() -> None:
            for replay in replays:
                replay()

        return all_of_them

    return {f"{budget} tokens a product": of_budget(budget) for budget in BUDGETS}


def _transformers(bench: Bench, requests: Requests) -> dict[str, Work]:
    model: nn.Module = bench.sdpa
    return {
        "transformers SDPA, in order of arrival, batch 20": lambda: transformers_pass(model, requests, 20),
        "transformers SDPA, sorted, batch 256": lambda: transformers_pass(model, by_length(requests), 256),
    }


def _fastest_first(works: dict[str, Work]) -> dict[str, float]:
    """Seconds of each, the better of two after one that does not count."""

    def measured() -> Iterator[tuple[str, float]]:
        for name, work in works.items():
            wall_s(work)
            yield name, min(wall_s(work) for _ in range(2))

    return dict(sorted(measured(), key=lambda item: item[1]))
