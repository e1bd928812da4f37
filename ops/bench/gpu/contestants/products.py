"""The floor: the products over all tokens, without any host work."""

from collections.abc import Mapping

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import MakeWork, Requests
from penstock.ops.bench.gpu.gpu_tables import FLOOR
from penstock.ops.bench.gpu.timing import Work


def _graph(bench: Bench, requests: Requests) -> Work:
    return bench.floor.graph(sum(map(len, requests)))


CONTESTANTS: Mapping[str, MakeWork] = {FLOOR: _graph}
