"""The engine alone, in float32 or bfloat16: ours, sentence-transformers and the GEMM floor, in turn."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.engine.types import Float32Array
from penstock.ops.bench.common.setup import ROUNDS, Details, Setup, shuffled_texts
from penstock.ops.bench.contestants.engine_alone import EngineAlone
from penstock.ops.bench.contestants.gemm_floor import VARIANTS, GemmFloor
from penstock.ops.bench.contestants.sentence_transformers_alone import (
    BATCHES,
    DEFAULT_BATCH,
    SentenceTransformersAlone,
)

_NUM_TEXTS = 768


def dtypes(setup: Setup) -> list[str]:
    """Those that are measured here: float32, and what `--dtype auto` chooses."""
    engine = EngineAlone(setup.model)
    engine.close()
    return list(dict.fromkeys(["float32", engine.engine.info.dtype]))


def run(setup: Setup, dtype: str) -> Details:
    """Parts `engine` and `engine-bf16`: bfloat16 only where `--dtype auto` chooses it."""
    if dtype != "float32" and dtype not in dtypes(setup):
        return {"not_applicable": f"this processor multiplies float32 faster than {dtype}"}
    texts = shuffled_texts(setup.count(_NUM_TEXTS))
    few = texts[: max(64, len(texts) // 4)]
    ours = EngineAlone(setup.model, dtype)
    theirs = SentenceTransformersAlone(setup.model, dtype, cores=setup.cores)
    floor = GemmFloor(setup.model, getattr(torch, dtype), setup.cores)
    batch_tokens, few_tokens = (ours.batch_tokens(ours.token_ids(some)) for some in (texts, few))

    ours.embed(few)  # warm-up
    tried_batches = theirs.tried(few, BATCHES)
    tried_floors = {variant: min(floor.seconds(variant, few_tokens) for _ in range(2)) for variant in VARIANTS}
    best_batch, best_floor = next(iter(tried_batches)), min(tried_floors, key=lambda variant: tried_floors[variant])

    seconds: dict[str, list[float]] = {"ours": [], "default": [], "best": [], "floor": []}
    for _ in range(ROUNDS):
        vectors, ours_s = ours.embed(texts)
        seconds["ours"].append(ours_s)
        seconds["floor"].append(floor.seconds(best_floor, batch_tokens))
        their_vectors, best_s = theirs.embed(texts, best_batch)
        seconds["best"].append(best_s)
        seconds["default"].append(best_s if best_batch == DEFAULT_BATCH else theirs.embed(texts, DEFAULT_BATCH)[1])
    ours.close()
    reference = their_vectors if dtype == "float32" else _float32_reference(setup, texts)
    rates = {name: len(texts) / statistics.median(values) for name, values in seconds.items()}
    return {
        "texts": len(texts),
        "tokens": sum(batch_tokens),
        "batches": len(batch_tokens),
        "lanes": ours.settings.lanes,
        "seconds": seconds,
        "requests_per_s": rates,
        "tried_batches_texts_per_s": tried_batches,
        "tried_floors_texts_per_s": {str(variant): len(few) / s for variant, s in tried_floors.items()},
        "cosine_to_float32": _mean_and_min(cosine(vectors, reference)),
        "cosine_to_float32_of_sentence_transformers": _mean_and_min(cosine(their_vectors, reference)),
    }


def cosine(a: Float32Array, b: Float32Array) -> Float32Array:
    """Cosine of each row of `a` with that of `b`: [n, dim], [n, dim] to [n], computed in double precision."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return np.asarray((x * y).sum(axis=1) / norms, np.float32)


def _mean_and_min(cosines: Float32Array) -> dict[str, Any]:
    return {"mean": float(cosines.mean()), "min": float(cosines.min())}


def _float32_reference(setup: Setup, texts: Sequence[str]) -> Float32Array:
    """Vectors of sentence-transformers in float32."""
    return SentenceTransformersAlone(setup.model, "float32", cores=setup.cores).embed(texts, DEFAULT_BATCH)[0]
