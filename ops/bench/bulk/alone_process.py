"""The engine without Kafka over the texts of a file: `python -m …alone_process <spec as JSON>` prints its rates.

A process of its own, so that the device and the memory are free for the workers.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyarrow import parquet

from penstock.engine import Engine, EngineLanes, load_engine, warm_up
from penstock.ops.bench.cpu.engine_alone import fifo_batches, pack
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.worker.resolved_settings import ResolvedSettings, resolve
from penstock.worker.settings import WorkerSettings

_POLL_TEXTS = 512  # tokenized at once: the lanes start while the rest is tokenized
_UNTIMED = 0.3  # of the texts, before the first pass
_PAUSE_S = 0.2  # before each pass: an idle GPU captures the shapes that it has seen


def main() -> None:
    """`spec`: model, file (Parquet with a column `text`), device, rounds (passes of each kind)."""
    spec = json.loads(sys.argv[1])
    engine = load_engine(spec["model"], device=spec["device"], dtype="auto")
    given = {"model": spec["model"], "device": spec["device"]}
    settings = resolve(WorkerSettings.model_validate(given), engine.info)
    warm_up(engine, max_sequences=settings.max_batch_sequences, max_tokens=settings.max_batch_tokens)
    texts = parquet.read_table(spec["file"], columns=["text"]).column("text").to_pylist()
    print(json.dumps(asyncio.run(_measure(engine, settings, texts, spec["rounds"]))))


async def _measure(engine: Engine, settings: ResolvedSettings, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Seconds of every pass over the texts: of their ids alone, and with their tokenization."""
    tokenizer = Tokenizer.from_directory(Path(settings.model))
    lanes = EngineLanes(engine, settings.lanes)
    begun = time.perf_counter()
    encoded = tokenizer.encode(texts, truncate=False)
    tokenize_s = time.perf_counter() - begun
    seconds: dict[str, list[float]] = {"of_ids": [], "of_texts": []}
    cpu_s: list[float] = []  # of the passes over texts
    try:
        await _run_ids(lanes, encoded[: int(_UNTIMED * len(encoded))], settings)
        for _ in range(rounds):
            await asyncio.sleep(_PAUSE_S)
            seconds["of_ids"].append(await _run_ids(lanes, encoded, settings))
            before_s = time.process_time()
            seconds["of_texts"].append(await _run_texts(lanes, tokenizer, texts, settings))
            cpu_s.append(time.process_time() - before_s)
    finally:
        await lanes.close()
        tokenizer.close()
    return {
        "dtype": engine.info.dtype,
        "device": engine.info.device,
        "lanes": settings.lanes,
        "rows": len(texts),
        "tokens": sum([len(sequence.ids) for sequence in encoded]),
        "tokenize_s": tokenize_s,
        "seconds": seconds,
        "cpu_s": cpu_s,
    }


async def _run_ids(lanes: EngineLanes, encoded: Sequence[Encoded], settings: ResolvedSettings) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*[lanes.submit(pack(batch)) for batch in fifo_batches(encoded, settings)])
    return time.perf_counter() - begun


async def _run_texts(
    lanes: EngineLanes, tokenizer: Tokenizer, texts: Sequence[str], settings: ResolvedSettings
) -> float:
    begun = time.perf_counter()
    futures = []
    underfull: list[Encoded] = []
    for start in range(0, len(texts), _POLL_TEXTS):
        encoded = await tokenizer.encode_async(texts[start : start + _POLL_TEXTS], truncate=False)
        *full, underfull = fifo_batches(underfull + encoded, settings)
        futures += [lanes.submit(pack(batch)) for batch in full]
    futures.append(lanes.submit(pack(underfull)))
    await asyncio.gather(*futures)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
