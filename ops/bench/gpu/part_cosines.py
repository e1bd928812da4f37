"""Cosines of vectors here, in 16 bits, to those of transformers in float32, for each shape of model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from penstock.engine.types import Float32Array, Int32Array
from penstock.ops.bench.common.draws import uniform
from penstock.ops.bench.common.shapes import SHAPES as CONFIGS
from penstock.ops.bench.common.shapes import VOCAB
from penstock.ops.bench.gpu.bench import DTYPE, INITIALIZER_RANGE, Bench, pack, random_requests
from penstock.ops.bench.gpu.gpu_tables import OURS, SDPA, SHAPES
from penstock.ops.bench.gpu.part_shapes import engine_of, random_model

_REQUESTS, _LENGTHS = 64, (2, 500)

Float64Array = npt.NDArray[np.float64]


def run(bench: Bench) -> dict[str, Any]:
    """One batch of requests with random ids for each shape. About 60 s."""
    requests = random_requests(uniform(*_LENGTHS, _REQUESTS, bench.seed), VOCAB, bench.seed)
    found: dict[str, Any] = {}
    for name in SHAPES:
        with bench.guarded(OURS, f"cosines of {name}"):
            found[name] = _cosines(bench, name, requests)
        torch.cuda.empty_cache()
    return {"requests": _REQUESTS, "tokens": _LENGTHS, "shapes": found}


def _cosines(bench: Bench, name: str, requests: Sequence[Int32Array]) -> dict[str, Any]:
    """Of the normalised means of the last hidden states.

    "between": of different requests in float32, without which cosines near 1 say nothing.
    """
    config: Any = CONFIGS[name]()
    config.initializer_range = INITIALIZER_RANGE
    model, weights = random_model(bench, config)
    exact = _vectors(model, requests)
    ours = np.stack(engine_of(name, weights).run(pack(requests)).rows)
    beside = {OURS: _normalised(ours), SDPA: _vectors(model.to(DTYPE), requests)}
    between = (exact @ exact.T)[np.triu_indices(len(exact), k=1)]
    cosines = {who: np.sum(vectors * exact, axis=1) for who, vectors in beside.items()}
    return {
        "between": float(between.mean()),
        **{who: {"min": float(values.min()), "mean": float(values.mean())} for who, values in cosines.items()},
    }


def _vectors(model: nn.Module, requests: Sequence[Int32Array]) -> Float64Array:
    """[N, hidden] by transformers, each request alone."""
    rows = []
    for request in requests:
        ids = torch.from_numpy(request).long()[None].cuda()
        hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        rows.append(hidden.float().mean(dim=0).cpu().numpy())
    return _normalised(np.stack(rows))


def _normalised(vectors: Float32Array) -> Float64Array:
    """Wide, since in float32 a cosine near 1 has seven digits."""
    wide = vectors.astype(np.float64)
    rows: Float64Array = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return rows
