"""transformers by SDPA. A single request needs no padding and no mask."""

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.engine.types import Int32Array
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants import MakeWork
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, SDPA
from penstock.ops.bench.gpu.timing import Work


def _uploaded(request: Int32Array) -> Tensor:
    return torch.from_numpy(request[None]).long().cuda(non_blocking=True)


def _resident(bench: Bench, request: Int32Array) -> Work:
    ids = _uploaded(request)
    return lambda: bench.sdpa(input_ids=ids).last_hidden_state


def _hosted(bench: Bench, request: Int32Array) -> Work:
    return lambda: bench.sdpa(input_ids=_uploaded(request)).last_hidden_state


CONTESTANTS: Mapping[str, MakeWork] = {SDPA: _resident, f"{SDPA}{FROM_HOST}": _hosted}
