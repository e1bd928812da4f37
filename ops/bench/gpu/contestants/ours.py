"""The engine: packed batches, its own kernels, a CUDA graph for each shape."""

from collections.abc import Callable
from functools import partial

from penstock.engine.device_share import DeviceShare
from penstock.engine.gpu import GpuEncoder
from penstock.engine.types import PackedBatch
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Contestant, Requests, Ways
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, OURS
from penstock.ops.bench.gpu.request_batches import BUDGETS, by_budget, by_length, pack
from penstock.ops.bench.gpu.timing import Work


def resident(encoder: GpuEncoder, batch: PackedBatch) -> Work:
    """The engine's forward of a batch that is on the device already.

    The encoder has room for one description: an `encoder.run` in between must be of a batch of the same shape.
    """
    encoder.prepare(batch, DeviceShare())
    inputs = encoder.upload(batch)
    return lambda: encoder.forward(inputs)


def one_pass(bench: Bench, requests: Requests, budget: int) -> None:
    """All requests in the given order, in batches of up to `budget` tokens."""
    for batch in by_budget(requests, budget):
        bench.ours.run(pack(batch))


def _hosted(bench: Bench, requests: Requests) -> Work:
    return partial(bench.ours.run, pack(requests))


def _ways(bench: Bench, requests: Requests) -> Ways:
    def once(ordered: Callable[[Requests], Requests], budget: int) -> None:
        one_pass(bench, ordered(requests), budget)

    def as_they_come(requests: Requests) -> Requests:
        return requests

    orders: dict[str, Callable[[Requests], Requests]] = {
        "in order of arrival": as_they_come,
        "sorted by length": by_length,
    }
    return {
        f"{order}, {budget} tokens a batch": partial(once, ordered, budget)
        for order, ordered in orders.items()
        for budget in BUDGETS
    }


CONTESTANTS = (
    Contestant(
        resident=(OURS, lambda bench, requests: resident(bench.ours, pack(requests))),
        hosted=(f"{OURS}{FROM_HOST}", _hosted),
        backlog=(OURS, _ways),
    ),
)
