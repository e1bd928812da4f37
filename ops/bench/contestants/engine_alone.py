"""The engine without Kafka: full batches in order of arrival on a worker's lanes, with a worker's settings.

`python -m penstock.ops.bench.contestants.engine_alone <spec as JSON>` measures it in a process of its own, so that the
device and the memory are free for the workers before and after: see `measure`.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import uvloop

from penstock.engine import EngineLanes, PackedBatch, TaskOptions, load_engine, warm_up
from penstock.engine.types import Float32Array
from penstock.ops.bench.common.draws import uniform
from penstock.ops.bench.load.loads import special_tokens
from penstock.ops.bench.load.payloads import sequences
from penstock.producer.tokenization import Tokenizer
from penstock.worker.resolved_settings import resolve
from penstock.worker.settings import WorkerSettings

_POLL_TEXTS = 512  # tokenized at once, as the records of a fetch: the lanes start while the rest is tokenized
_OPTIONS = TaskOptions("embed")
_UNTIMED, _ROUNDS = 2, 3
_ENOUGH_S = 15.0  # of the rounds of one workload: a slow machine runs fewer
_PAUSE_S = 0.2  # after each pass: an idle GPU captures the shapes that it has seen

Rows = Sequence[Any]  # token ids of sequences


class EngineAlone:
    """One engine with its tokenizer. An async context manager: the lanes run within it."""

    def __init__(self, model: Path, dtype: str = "auto", device: str = "cpu") -> None:
        self.engine = load_engine(str(model), dtype=dtype, device=device)
        given = WorkerSettings.model_validate({"model": str(model), "dtype": dtype, "device": device})
        self.settings = resolve(given, self.engine.info)
        self._tokenizer = Tokenizer.from_directory(model)

    async def __aenter__(self) -> Self:
        self._lanes = EngineLanes(self.engine, self.settings.lanes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lanes.close()

    def close(self) -> None:
        self._tokenizer.close()

    def token_ids(self, texts: Sequence[str]) -> list[Any]:
        """The ids of each text."""
        return [sequence.ids for sequence in self._tokenizer.encode(texts, truncate=False)]

    def batch_tokens(self, rows: Rows) -> list[int]:
        """Tokens of each batch of these sequences."""
        return [sum([len(row) for row in group]) for group in self._groups(rows)]

    async def run_ids(self, rows: Rows) -> float:
        """Seconds from the first sequence to the last result."""
        begun = time.perf_counter()
        await asyncio.gather(*[self._lanes.submit(batch) for batch in map(_pack, self._groups(rows))])
        return time.perf_counter() - begun

    async def run_texts(self, texts: Sequence[str]) -> tuple[Float32Array, float]:
        """Vectors [n, dim] in the order of the texts, and seconds from the first text to the last vector."""
        begun = time.perf_counter()
        futures, underfull = [], list[Any]()
        for start in range(0, len(texts), _POLL_TEXTS):
            encoded = await self._tokenizer.encode_async(texts[start : start + _POLL_TEXTS], truncate=False)
            *full, underfull = self._groups([*underfull, *[sequence.ids for sequence in encoded]])
            futures += [self._lanes.submit(_pack(group)) for group in full]
        futures.append(self._lanes.submit(_pack(underfull)))
        rows = [row for future in futures for row in (await future).rows]
        return np.stack(rows), time.perf_counter() - begun

    def embed(self, texts: Sequence[str]) -> tuple[Float32Array, float]:
        """`run_texts` outside of an event loop."""

        async def run() -> tuple[Float32Array, float]:
            async with self:
                return await self.run_texts(texts)

        return uvloop.run(run())

    def _groups(self, rows: Rows) -> list[list[Any]]:
        return full_groups(rows, self.settings.max_batch_tokens, self.settings.max_batch_sequences)


def full_groups(rows: Rows, max_tokens: int, max_sequences: int) -> list[list[Any]]:
    """The sequences of each batch in order of arrival, each but the last as many as the caps allow."""
    groups: list[list[Any]] = []
    tokens = 0
    for row in rows:
        tokens += len(row)
        if not groups or tokens > max_tokens or len(groups[-1]) == max_sequences:
            groups.append([])
            tokens = len(row)
        groups[-1].append(row)
    return groups


def _pack(group: Sequence[Any]) -> PackedBatch:
    return PackedBatch.of(group, [_OPTIONS] * len(group))


def measure(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Rates of the engine and, where `batches` are given, of SentenceTransformer.encode at the fastest of them.

    `spec`: model, device, workloads [name, payload, low, high, requests], batches of SentenceTransformer (or none).
    """
    model = Path(spec["model"])
    alone = EngineAlone(model, device=spec["device"])
    settings, info = alone.settings, alone.engine.info
    warm_up(alone.engine, max_sequences=settings.max_batch_sequences, max_tokens=settings.max_batch_tokens)
    found: dict[str, Any] = {
        "dtype": info.dtype,
        "device": info.device,
        "max_batch_tokens": settings.max_batch_tokens,
        "max_batch_sequences": settings.max_batch_sequences,
        "lanes": settings.lanes,
    }
    found |= {"engine": {}, "sentence_transformers": {}}
    for name, payload, low, high, requests in spec["workloads"]:
        lengths = uniform(low, high, requests, 7) + special_tokens(payload)  # as many tokens as its texts have
        seconds = uvloop.run(_passes(alone, sequences("ids", lengths, model, 7)))
        found["engine"][name] = _rates(requests, seconds)
    alone.close()
    if spec["batches"]:
        device = settings.device
        del alone
        try:
            found |= _alternative(spec, device, found["dtype"])
        except Exception as error:  # the engine's figures stay
            found["sentence_transformers_error"] = f"{type(error).__name__}: {error}"[:600]
    return found


async def _passes(alone: EngineAlone, rows: Rows) -> list[float]:
    """Seconds of each timed pass over all rows."""
    seconds: list[float] = []
    async with alone:
        while len(seconds) < _UNTIMED + _ROUNDS and not (len(seconds) > _UNTIMED and sum(seconds) > _ENOUGH_S):
            seconds.append(await alone.run_ids(rows))
            await asyncio.sleep(_PAUSE_S)
    return seconds[_UNTIMED:]


def _alternative(spec: Mapping[str, Any], device: str, dtype: str) -> dict[str, Any]:
    """SentenceTransformer.encode over the workloads of texts."""
    from penstock.ops.bench.contestants.sentence_transformers_alone import SentenceTransformersAlone  # imports torch

    model = Path(spec["model"])
    theirs = SentenceTransformersAlone(model, dtype, device)
    rates = {}
    for name, payload, low, high, requests in spec["workloads"]:
        if payload == "texts":
            texts = sequences("texts", uniform(low, high, requests, 8), model, 8)
            tried = theirs.tried(texts[: max(64, len(texts) // 4)], spec["batches"])
            best = next(iter(tried))
            theirs.embed(texts, best)
            rounds: list[float] = []
            while len(rounds) < _ROUNDS and sum(rounds) < _ENOUGH_S:
                rounds.append(theirs.embed(texts, best)[1])
            rates[name] = {**_rates(len(texts), rounds), "batch": best, "tried_requests_per_s": tried}
    return {"sentence_transformers": rates, "sentence_transformers_max_tokens": theirs.max_tokens}


def _rates(requests: int, seconds: Sequence[float]) -> dict[str, Any]:
    return {"requests_per_s": requests / statistics.median(seconds), "rounds_s": list(seconds)}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
