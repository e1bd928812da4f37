"""transformers with padded batches, by SDPA."""

from collections.abc import Mapping

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import MakeWork, Requests
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, SDPA
from penstock.ops.bench.gpu.models import padded_inputs
from penstock.ops.bench.gpu.timing import Work


def _resident(bench: Bench, requests: Requests) -> Work:
    inputs = padded_inputs(requests)
    return lambda: bench.sdpa(**inputs).last_hidden_state


def _hosted(bench: Bench, requests: Requests) -> Work:
    return lambda: bench.sdpa(**padded_inputs(requests)).last_hidden_state


CONTESTANTS: Mapping[str, MakeWork] = {SDPA: _resident, f"{SDPA}{FROM_HOST}": _hosted}
