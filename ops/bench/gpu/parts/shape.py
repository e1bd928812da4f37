"""A model of another shape than BERT-base, against transformers, with its parity."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from penstock.ops.bench.common.lengths import around_mean
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.ours import resident
from penstock.ops.bench.gpu.contestants.padded import one_forward
from penstock.ops.bench.gpu.gpu_tables import FLOOR, FROM_HOST, OURS
from penstock.ops.bench.gpu.models import random_model
from penstock.ops.bench.gpu.parts.parity import errors
from penstock.ops.bench.gpu.request_batches import pack, random_requests
from penstock.ops.bench.gpu.timing import Work

POINTS = ((1, 128), (8, 256), (16, 256), (16, 512))
MEAN_RATIO = 0.6


def run(bench: Bench, shape: str) -> dict[str, Any]:
    """About 10 s. The inputs of `ours` and `transformers` are on the device already."""
    model = random_model(shape, bench.seed)
    ours, theirs = model.encoder(), model.on_device("eager")
    floor, exact = bench.floor_of(model), model.on_device("eager", torch.float32)
    points, parity = [], []
    for batch_size, max_tokens in POINTS:
        lengths = around_mean(max_tokens, MEAN_RATIO, batch_size, bench.seed + max_tokens)
        requests = random_requests(lengths, model.vocab_size, bench.seed)
        batch = pack(requests)
        contestants: dict[str, Callable[[], Work]] = {
            OURS: partial(resident, ours, batch),
            f"{OURS}{FROM_HOST}": partial(partial, ours.run, batch),
            "transformers": partial(one_forward, theirs, requests),
            FLOOR: partial(floor.graph, len(batch.token_ids)),
        }
        point = {"batch": batch_size, "max_tokens": max_tokens, "tokens": len(batch.token_ids)}
        points.append({**point, "ms": bench.compare(f"{shape} {batch_size} x {max_tokens}", contestants)})
        with bench.guarded(f"{shape} parity", f"{batch_size} x {max_tokens}"):
            parity.append({"name": f"{batch_size} x {max_tokens}", **errors(ours, theirs, exact, requests)})
    return {"mean_ratio": MEAN_RATIO, "points": points, "parity": parity}
