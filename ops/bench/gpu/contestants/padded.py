"""transformers with padded batches, by SDPA."""

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import MakeWork, Requests
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, SDPA
from penstock.ops.bench.gpu.request_batches import pad
from penstock.ops.bench.gpu.timing import Work


def _inputs(requests: Requests) -> dict[str, Tensor]:
    """Arguments of a transformers model, on the device."""
    ids, mask = pad(requests)
    inputs = {"input_ids": torch.from_numpy(ids).long().cuda(non_blocking=True)}
    if mask is not None:
        inputs["attention_mask"] = torch.from_numpy(mask).long().cuda(non_blocking=True)
    return inputs


def _resident(bench: Bench, requests: Requests) -> Work:
    inputs = _inputs(requests)
    return lambda: bench.sdpa(**inputs).last_hidden_state


def _hosted(bench: Bench, requests: Requests) -> Work:
    return lambda: bench.sdpa(**_inputs(requests)).last_hidden_state


CONTESTANTS: Mapping[str, MakeWork] = {SDPA: _resident, f"{SDPA}{FROM_HOST}": _hosted}
