"""Distance of our fp16 from transformers in float32 on the same device, beside that of transformers' own fp16."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.engine.gpu import GpuEncoder
from penstock.engine.types import Int32Array
from penstock.ops.bench.common.lengths import Lengths, around_mean, uniform
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.models import padded_inputs
from penstock.ops.bench.gpu.request_batches import pack, random_requests

LENGTHS = (1, 2, 127, 128, 129, 512)  # around kernel block sizes


def workloads(seed: int) -> dict[str, Lengths]:
    """Name and lengths of each batch."""
    return {
        **{f"one request of {tokens}": np.array([tokens]) for tokens in LENGTHS},
        "16 x at most 128": around_mean(128, 0.6, 16, seed),
        "16 x at most 512": around_mean(512, 0.6, 16, seed),
        "8 x at most 1024": around_mean(1024, 0.6, 8, seed),
        "320 x 2-100": uniform(2, 100, 320, seed),
        "64 x 5-500": uniform(5, 500, 64, seed),
    }


def run(bench: Bench) -> dict[str, Any]:
    """About 8 s."""
    exact = bench.bert.on_device("sdpa", torch.float32)
    rows = []
    for name, lengths in workloads(bench.seed).items():
        with bench.guarded("parity", name):
            requests = random_requests(lengths, bench.bert.vocab_size, bench.seed)
            rows.append({"name": name, **errors(bench.ours, bench.sdpa, exact, requests)})
    return {"model": "BERT-base", "rows": rows}


def errors(ours: GpuEncoder, theirs: nn.Module, exact: nn.Module, requests: list[Int32Array]) -> dict[str, Any]:
    """Distances of our fp16 and of transformers' to transformers in float32.

    A batch runs three times: the second captures its graph, the third replays it.
    """
    reference = _valid_rows(exact, requests)
    batch = pack(requests)
    for _ in range(3):
        hidden = ours.run(batch)
    return {
        "tokens": len(batch.token_ids),
        "ours": distance(hidden.float(), reference),
        "transformers fp16": distance(_valid_rows(theirs, requests), reference),
    }


def distance(rows: Tensor, reference: Tensor) -> dict[str, float]:
    """Of hidden states [T, H]. `max_relative` is the largest difference over the largest value of the reference."""
    cosines = F.cosine_similarity(rows.double(), reference.double(), dim=1)
    difference = (rows - reference).double()
    return {
        "min_cosine": cosines.min().item(),
        "mean_cosine": cosines.mean().item(),
        "max_relative": (difference.abs().max() / reference.abs().max()).item(),
        "norm_relative": (difference.norm() / reference.double().norm()).item(),
    }


def _valid_rows(model: nn.Module, requests: list[Int32Array]) -> Tensor:
    """[T, H] float32: the hidden states of the tokens, padding left out."""
    hidden = model(**padded_inputs(requests)).last_hidden_state
    return torch.cat([hidden[row, : len(request)] for row, request in enumerate(requests)]).float()
