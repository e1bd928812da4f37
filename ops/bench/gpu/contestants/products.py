"""The floor: the products over all tokens, without any host work."""

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Contestant, Requests
from penstock.ops.bench.gpu.gpu_tables import FLOOR
from penstock.ops.bench.gpu.request_batches import num_tokens
from penstock.ops.bench.gpu.timing import Work


def _graph(bench: Bench, requests: Requests) -> Work:
    return bench.floor.graph(num_tokens(requests))


CONTESTANTS = (Contestant(resident=(FLOOR, _graph)),)
