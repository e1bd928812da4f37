"""The floor: the products over all tokens, without any host work."""

from collections.abc import Mapping

from penstock.engine.types import Int32Array
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants import MakeWork
from penstock.ops.bench.gpu.gpu_tables import FLOOR
from penstock.ops.bench.gpu.timing import Work


def _graph(bench: Bench, request: Int32Array) -> Work:
    return bench.floor.graph(len(request))


CONTESTANTS: Mapping[str, MakeWork] = {FLOOR: _graph}
