"""The floor: the products over all tokens, without any host work. A backlog is chunks of one budget."""

from functools import partial

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Contestant, Requests, Ways
from penstock.ops.bench.gpu.gpu_tables import FLOOR
from penstock.ops.bench.gpu.request_batches import BUDGETS, num_tokens
from penstock.ops.bench.gpu.timing import Work


def _graph(bench: Bench, requests: Requests) -> Work:
    return bench.floor.graph(num_tokens(requests))


def _ways(bench: Bench, requests: Requests) -> Ways:
    def of_budget(budget: int) -> Work:
        whole, rest = divmod(num_tokens(requests), budget)
        return partial(_all_of, [bench.floor.graph(budget)] * whole + ([bench.floor.graph(rest)] if rest else []))

    return {f"{budget} tokens a product": of_budget(budget) for budget in BUDGETS}


def _all_of(replays: list[Work]) -> None:
    for replay in replays:
        replay()


CONTESTANTS = (Contestant(resident=(FLOOR, _graph), backlog=(FLOOR, _ways)),)
