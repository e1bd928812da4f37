"""transformers with padded batches, by SDPA."""

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Contestant, Requests, Ways
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, SDPA
from penstock.ops.bench.gpu.models import padded_inputs
from penstock.ops.bench.gpu.request_batches import by_count, by_length
from penstock.ops.bench.gpu.timing import Work

BATCH = 256  # sequences, of a backlog


def one_forward(model: Callable[..., Any], requests: Requests) -> Work:
    """One forward of a transformers model; the inputs are on the device already."""
    inputs = padded_inputs(requests)
    return lambda: model(**inputs).last_hidden_state


def one_pass(model: Callable[..., Any], requests: Requests) -> None:
    """All requests, sorted by length, in padded batches."""
    for batch in by_count(by_length(requests), BATCH):
        model(**padded_inputs(batch))


def _hosted(bench: Bench, requests: Requests) -> Work:
    return lambda: bench.sdpa(**padded_inputs(requests)).last_hidden_state


def _ways(bench: Bench, requests: Requests) -> Ways:
    return {f"batch {BATCH}": partial(one_pass, bench.sdpa, requests)}


CONTESTANTS = (
    Contestant(
        resident=(SDPA, lambda bench, requests: one_forward(bench.sdpa, requests)),
        hosted=(f"{SDPA}{FROM_HOST}", _hosted),
        backlog=(f"{SDPA}, sorted, batch {BATCH}", _ways),
    ),
)
