"""The engine without Kafka, and SentenceTransformer.encode: `python -m …alone_process <spec as JSON>` prints both.

A process of its own, so that the device is free for the workers before and after.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.engine import EngineLanes, PackedBatch, TaskOptions, load_engine, warm_up
from penstock.ops.bench.common.lengths import uniform
from penstock.ops.bench.pipeline.loads import special_tokens
from penstock.ops.bench.pipeline.payloads import sequences
from penstock.worker.resolved_settings import ResolvedSettings, resolve
from penstock.worker.settings import WorkerSettings

_UNTIMED, _ROUNDS = 2, 3
_ENOUGH_S = 15.0  # of the rounds of one workload: a slow machine runs fewer
_PAUSE_S = 0.2  # after each pass: an idle GPU captures the shapes that it has seen
_OPTIONS = TaskOptions("embed")


def main() -> None:
    """`spec`: model, workloads [name, payload, low, high, requests], batches (of SentenceTransformer; may be empty)."""
    spec = json.loads(sys.argv[1])
    model = Path(spec["model"])
    engine = load_engine(str(model), device="auto", dtype="auto")
    settings = resolve(WorkerSettings.model_validate({"model": str(model)}), engine.info)
    warm_up(engine, max_sequences=settings.max_batch_sequences, max_tokens=settings.max_batch_tokens)
    found: dict[str, Any] = {
        "dtype": engine.info.dtype,
        "device": engine.info.device,
        "max_batch_tokens": settings.max_batch_tokens,
        "max_batch_sequences": settings.max_batch_sequences,
        "lanes": settings.lanes,
        "engine": {},
        "sentence_transformers": {},
    }
    for name, payload, low, high, requests in spec["workloads"]:
        lengths = uniform(low, high, requests, 7) + special_tokens(payload)  # as many tokens as its texts have
        rows = sequences("ids", lengths, model, 7)
        found["engine"][name] = _rates(requests, _passes(engine, settings, rows))
    if spec["batches"]:
        del engine
        try:
            found |= _alternative(spec, settings.device, found["dtype"])
        except Exception as error:  # the engine's figures stay
            found["sentence_transformers_error"] = f"{type(error).__name__}: {error}"[:600]
    print(json.dumps(found))


def _passes(engine: Any, settings: ResolvedSettings, rows: Sequence[Any]) -> list[float]:
    """Seconds of each timed pass over all rows, in full batches, in the given order."""
    batches = full_batches(rows, settings.max_batch_tokens, settings.max_batch_sequences)

    async def run() -> list[float]:
        lanes = EngineLanes(engine, settings.lanes)
        seconds: list[float] = []
        try:
            while len(seconds) < _UNTIMED + _ROUNDS and not (len(seconds) > _UNTIMED and sum(seconds) > _ENOUGH_S):
                begun = time.perf_counter()
                await asyncio.gather(*[lanes.submit(batch) for batch in batches])
                seconds.append(time.perf_counter() - begun)
                await asyncio.sleep(_PAUSE_S)
        finally:
            await lanes.close()
        return seconds[_UNTIMED:]

    return asyncio.run(run())


def full_batches(rows: Sequence[Any], max_tokens: int, max_sequences: int) -> list[PackedBatch]:
    """Packed batches in order of arrival, each as full as the caps allow."""
    groups: list[list[Any]] = []
    tokens = 0
    for row in rows:
        tokens += len(row)
        if not groups or tokens > max_tokens or len(groups[-1]) == max_sequences:
            groups.append([])
            tokens = len(row)
        groups[-1].append(row)
    return [PackedBatch.of(group, [_OPTIONS] * len(group)) for group in groups]


def _rates(requests: int, seconds: Sequence[float]) -> dict[str, Any]:
    return {"requests_per_s": requests / statistics.median(seconds), "rounds_s": list(seconds)}


def _alternative(spec: Mapping[str, Any], device: str, dtype: str) -> dict[str, Any]:
    """SentenceTransformer.encode over the workloads of texts."""
    import torch
    from sentence_transformers import SentenceTransformer

    model = Path(spec["model"])
    encoder: Any = SentenceTransformer(str(model), device=device).to(getattr(torch, dtype))
    rates = {}
    for name, payload, low, high, requests in spec["workloads"]:
        if payload == "texts":
            texts = sequences("texts", uniform(low, high, requests, 8), model, 8)
            rates[name] = _best_of(encoder, texts, spec["batches"])
    most = encoder.max_seq_length  # a longer text is cut
    return {"sentence_transformers": rates, "sentence_transformers_max_tokens": most}


def _best_of(encoder: Any, texts: Sequence[str], batches: Sequence[int]) -> dict[str, Any]:
    """The fastest batch size on a quarter of the texts, and its rate over all of them; both are warm when timed."""
    few = list(texts[: max(64, len(texts) // 4)])

    def encode(some: Sequence[str], batch: int) -> float:
        begun = time.perf_counter()
        encoder.encode(list(some), batch_size=batch, show_progress_bar=False)
        return time.perf_counter() - begun

    tried = {}
    for batch in batches:
        seconds = [encode(few, batch) for _ in range(_UNTIMED + 1)]
        tried[batch] = len(few) / seconds[-1]
    best = max(tried, key=lambda batch: tried[batch])
    encode(texts, best)
    rounds: list[float] = []
    while len(rounds) < _ROUNDS and sum(rounds) < _ENOUGH_S:
        rounds.append(encode(texts, best))
    return {**_rates(len(texts), rounds), "batch": best, "tried_requests_per_s": tried}


if __name__ == "__main__":
    main()
