"""DeBERTa-v3-base: disentangled attention without padding, against transformers' own."""

from typing import Any

import torch

from penstock.ops.bench.common.lengths import around_mean
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import deberta_v3_base, transformers_work
from penstock.ops.bench.gpu.parts.grid import resident
from penstock.ops.bench.gpu.parts.parity import errors
from penstock.ops.bench.gpu.request_batches import pack, random_requests

POINTS = ((1, 128), (8, 256), (16, 256), (16, 512))
MEAN_RATIO = 0.6


def run(bench: Bench) -> dict[str, Any]:
    """About 10 s. The inputs of `ours` and `transformers` are on the device already."""
    model = deberta_v3_base(bench.seed)
    ours, theirs = model.encoder(), model.on_device("eager")
    floor, exact = bench.floor_of(model), model.on_device("eager", torch.float32)
    points, parity = [], []
    for batch_size, max_tokens in POINTS:
        lengths = around_mean(max_tokens, MEAN_RATIO, batch_size, bench.seed + max_tokens)
        requests = random_requests(lengths, model.vocab_size, bench.seed)
        batch = pack(requests)
        contestants = {
            "ours": lambda batch=batch: resident(ours, batch),
            "ours, from the host": lambda batch=batch: lambda: ours.run(batch),
            "transformers": lambda requests=requests: transformers_work(theirs, requests),
            "floor": lambda batch=batch: floor.graph(len(batch.token_ids)),
        }
        point = {"batch": batch_size, "max_tokens": max_tokens, "tokens": len(batch.token_ids)}
        points.append({**point, "ms": bench.compare(f"DeBERTa {batch_size} x {max_tokens}", contestants)})
        with bench.guarded("DeBERTa parity", f"{batch_size} x {max_tokens}"):
            parity.append({"name": f"{batch_size} x {max_tokens}", **errors(ours, theirs, exact, requests)})
    return {"mean_ratio": MEAN_RATIO, "points": points, "parity": parity}
