"""Zipf(1.0) over 100,000 texts: the hit rate of the store beside that of an ideal LRU of the same bytes."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.cache import KEY_BYTES, ResponseCache
from penstock.cache.rows import CHECKSUM_BYTES, ROW_OVERHEAD_BYTES
from penstock.ops.bench.cache.in_process import open_cache
from penstock.ops.bench.common.comparison import Comparison, PartResult
from penstock.ops.bench.common.setup import Setup

NUM_TEXTS = 100_000
SHARES = (0.1, 0.3)  # of the bytes of all texts' results
_NUM_REQUESTS = 300_000
_WARM_UP = 1 / 3  # of the requests, which are not counted: both caches are full by then
_PER_LOOK_UP = 256  # as in a slice of single records
_VALUE_BYTES = 1536  # a vector of MiniLM
_ROW_BYTES = _VALUE_BYTES + CHECKSUM_BYTES + ROW_OVERHEAD_BYTES


def run_zipf(setup: Setup) -> PartResult:
    """Part `zipf`: look up, and store what was missing, a slice at a time."""
    draws = zipf_draws(setup.count(_NUM_REQUESTS))
    found = {f"{share:g}": asyncio.run(_measure(setup, draws, share)) for share in SHARES}
    comparisons = [
        Comparison(
            work=f"Zipf(1.0) over {NUM_TEXTS:,} texts, a cache of {float(share):.0%} of their bytes: hit rate",
            ours=f"{rates['ours']:.2%}",
            baseline=f"ideal LRU {rates['ideal']:.2%}",
            ratio=rates["ours"] / rates["ideal"],
        )
        for share, rates in found.items()
    ]
    return PartResult(comparisons, (), {"requests": len(draws), "hit_rates": found})


def zipf_draws(count: int) -> list[int]:
    """Numbers of texts, the most popular first, with probabilities in proportion to 1 / rank."""
    weights = 1 / np.arange(1, NUM_TEXTS + 1)
    drawn: list[int] = np.random.default_rng(7).choice(NUM_TEXTS, size=count, p=weights / weights.sum()).tolist()
    return drawn


def ideal_hits(draws: Sequence[int], capacity: int) -> list[bool]:
    """Whether each draw is a hit in an LRU that holds `capacity` texts."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for number in draws:
        hits.append(number in held)
        held[number] = None
        held.move_to_end(number)
        if len(held) > capacity:
            held.popitem(last=False)
    return hits


async def _measure(setup: Setup, draws: Sequence[int], share: float) -> dict[str, Any]:
    max_bytes = int(NUM_TEXTS * share * _ROW_BYTES)
    first = int(len(draws) * _WARM_UP)
    ideal = ideal_hits(draws, max_bytes // _ROW_BYTES)
    async with await open_cache(setup.logs / f"zipf-{share:g}.db", max_bytes) as cache:
        cpu = time.process_time()
        ours = [hit async for hit in _hits(cache, draws)]
        cpu_s = time.process_time() - cpu
    return {
        "ours": sum(ours[first:]) / len(ours[first:]),
        "ideal": sum(ideal[first:]) / len(ideal[first:]),
        "max_bytes": max_bytes,
        "cpu_us": cpu_s / len(draws) * 1e6,
    }


async def _hits(cache: ResponseCache, draws: Sequence[int]) -> AsyncIterator[bool]:
    """Whether each draw is a hit. A text that is drawn twice in a slice is computed once, and is no hit then."""
    for numbers in _slices(draws):
        keys = [number.to_bytes(KEY_BYTES, "big") for number in numbers]
        found = await cache.get_many(keys)
        missing = {key: key * (_VALUE_BYTES // KEY_BYTES) for key in keys if key not in found}
        await cache.put_many(missing)
        for key in keys:
            yield key in found


def _slices(draws: Sequence[int]) -> Iterator[Sequence[int]]:
    return (draws[start : start + _PER_LOOK_UP] for start in range(0, len(draws), _PER_LOOK_UP))
