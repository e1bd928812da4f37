"""transformers with padded batches, by SDPA."""

from collections.abc import Callable
from typing import Any

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Contestant, Requests
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, SDPA
from penstock.ops.bench.gpu.models import padded_inputs
from penstock.ops.bench.gpu.timing import Work


def one_forward(model: Callable[..., Any], requests: Requests) -> Work:
    """One forward of a transformers model; the inputs are on the device already."""
    inputs = padded_inputs(requests)
    return lambda: model(**inputs).last_hidden_state


def _hosted(bench: Bench, requests: Requests) -> Work:
    return lambda: bench.sdpa(**padded_inputs(requests)).last_hidden_state


CONTESTANTS = (
    Contestant(
        resident=(SDPA, lambda bench, requests: one_forward(bench.sdpa, requests)),
        hosted=(f"{SDPA}{FROM_HOST}", _hosted),
    ),
)
