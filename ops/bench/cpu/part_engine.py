"""The engine alone, in float32 or bfloat16: ours, sentence-transformers and the GEMM floor, in turn."""

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from penstock.engine.types import Float32Array
from penstock.ops.bench.common.comparison import Comparison, Grid, PartResult
from penstock.ops.bench.common.setup import ROUNDS, Setup, shuffled_texts
from penstock.ops.bench.cpu.engine_alone import EngineAlone
from penstock.ops.bench.cpu.gemm_floor import VARIANTS, GemmFloor, Variant
from penstock.ops.bench.cpu.sentence_transformers_alone import BATCHES, DEFAULT_BATCH, SentenceTransformersAlone

_NUM_TEXTS = 768

K = TypeVar("K", bound=Hashable)


def run_float32(setup: Setup) -> PartResult:
    """Part `engine`."""
    return _run(setup, "float32")


def run_bfloat16(setup: Setup) -> PartResult:
    """Part `engine-bf16`: only where `--dtype auto` chooses bfloat16."""
    if not bfloat16_is_native(setup):
        return PartResult(details={"not_applicable": "this processor multiplies float32 faster than bfloat16"})
    return _run(setup, "bfloat16")


def bfloat16_is_native(setup: Setup) -> bool:
    """Whether `--dtype auto` chooses bfloat16 here."""
    engine = EngineAlone(setup.model, "auto")
    engine.close()
    return engine.engine.info.dtype == "bfloat16"


def _run(setup: Setup, dtype: str) -> PartResult:
    texts = shuffled_texts(setup.count(_NUM_TEXTS))
    few = texts[: max(64, len(texts) // 4)]
    ours = EngineAlone(setup.model, dtype)
    theirs = SentenceTransformersAlone(setup.model, dtype, setup.cores)
    floor = GemmFloor(setup.model, getattr(torch, dtype), setup.cores)
    batch_tokens = ours.batch_tokens(texts)
    few_tokens = ours.batch_tokens(few)

    ours.embed(few)  # warm-up
    theirs.embed(few, DEFAULT_BATCH)
    tried_batches = fastest(BATCHES, lambda batch: theirs.embed(few, batch)[1])
    tried_floors = fastest(VARIANTS, lambda variant: floor.seconds(variant, few_tokens))
    best_batch, best_floor = next(iter(tried_batches)), next(iter(tried_floors))

    seconds, vectors, their_vectors = _rounds(ours, theirs, floor, texts, best_batch, best_floor)
    tokenize_s = ours.tokenize_s(texts)
    ours.close()
    reference = their_vectors if dtype == "float32" else _float32_reference(setup, texts)
    rates = {name: len(texts) / statistics.median(values) for name, values in seconds.items()}
    cosines, their_cosines = cosine(vectors, reference), cosine(their_vectors, reference)
    return PartResult(
        comparisons=[_speed(dtype, rates, best_batch, best_floor), _agreement(dtype, cosines, their_cosines)],
        grids=[_tried(dtype, len(few), tried_batches, tried_floors, len(texts) / tokenize_s)],
        details={
            "texts": len(texts),
            "tokens": sum(batch_tokens),
            "batches": len(batch_tokens),
            "lanes": ours.lanes,
            "seconds": seconds,
            "requests_per_s": rates,
            "tokens_per_s": {name: rate * sum(batch_tokens) / len(texts) for name, rate in rates.items()},
            "tokenization_alone_texts_per_s": len(texts) / tokenize_s,
            "cosine_to_float32": _mean_and_min(cosines),
            "cosine_to_float32_of_sentence_transformers": _mean_and_min(their_cosines),
        },
    )


def _rounds(
    ours: EngineAlone,
    theirs: SentenceTransformersAlone,
    floor: GemmFloor,
    texts: Sequence[str],
    best_batch: int,
    best_floor: Variant,
) -> tuple[dict[str, list[float]], Float32Array, Float32Array]:
    """Seconds of each contestant, in turn, and the last vectors of both engines."""
    batch_tokens = ours.batch_tokens(texts)
    seconds: dict[str, list[float]] = {"ours": [], "default": [], "best": [], "floor": []}
    for _ in range(ROUNDS):
        vectors, ours_s = ours.embed(texts)
        seconds["ours"].append(ours_s)
        seconds["floor"].append(floor.seconds(best_floor, batch_tokens))
        their_vectors, best_s = theirs.embed(texts, best_batch)
        seconds["best"].append(best_s)
        seconds["default"].append(best_s if best_batch == DEFAULT_BATCH else theirs.embed(texts, DEFAULT_BATCH)[1])
    return seconds, vectors, their_vectors


def _tried(
    dtype: str,
    num_texts: int,
    tried_batches: Mapping[int, float],
    tried_floors: Mapping[Variant, float],
    tokenized_per_s: float,
) -> Grid:
    """Rates of the batch sizes and floors that were tried on a few texts."""
    return Grid(
        f"{dtype}: the fastest of each kind, tried on {num_texts} texts, is compared",
        ("what", "req/s"),
        [(f"sentence-transformers, batch {batch}", num_texts / s) for batch, s in tried_batches.items()]
        + [(f"GEMM floor: {variant}", num_texts / s) for variant, s in tried_floors.items()]
        + [("our tokenizer alone", tokenized_per_s)],
    )


def _mean_and_min(cosines: Float32Array) -> dict[str, float]:
    return {"mean": float(cosines.mean()), "min": float(cosines.min())}


def _float32_reference(setup: Setup, texts: Sequence[str]) -> Float32Array:
    """Vectors of sentence-transformers in float32."""
    return SentenceTransformersAlone(setup.model, "float32", setup.cores).embed(texts, DEFAULT_BATCH)[0]


def fastest(choices: Sequence[K], seconds_of: Callable[[K], float]) -> dict[K, float]:
    """Each choice with its seconds (the better of two), fastest first."""
    seconds = {choice: min(seconds_of(choice) for _ in range(2)) for choice in choices}
    return dict(sorted(seconds.items(), key=lambda item: item[1]))


def cosine(a: Float32Array, b: Float32Array) -> Float32Array:
    """Cosine of each row of `a` with that of `b`: [n, dim], [n, dim] to [n], computed in double precision."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return np.asarray((x * y).sum(axis=1) / norms, np.float32)


def _speed(dtype: str, rates: dict[str, float], best_batch: int, best_floor: Variant) -> Comparison:
    best = max(rates["best"], rates["default"])
    return Comparison(
        work=f"engine alone, MiniLM {dtype}, Banking77 texts",
        ours=f"{rates['ours']:,.0f} req/s",
        baseline=f"sentence-transformers {best:,.0f} req/s (batch {best_batch}; 32: {rates['default']:,.0f})",
        ratio=rates["ours"] / best,
        floor=f"GEMM {rates['floor']:,.0f} req/s ({best_floor})",
        floor_share=rates["ours"] / rates["floor"],
    )


def _agreement(dtype: str, ours: Float32Array, theirs: Float32Array) -> Comparison:
    show = "mean {:.6f}, min {:.6f}"
    return Comparison(
        work=f"cosine of {dtype} to sentence-transformers float32",
        ours=show.format(ours.mean(), ours.min()),
        baseline=f"sentence-transformers {dtype}: {show.format(theirs.mean(), theirs.min())}",
        ratio=None,
    )
