"""A few timings of the real engine, so that a scheduler's cost model starts from facts."""

import time
from dataclasses import dataclass

import numpy as np

from penstock.engine.types import Engine, PackedBatch, TaskOptions

# (count, length): from one short text to a full batch, with short and long sequences at the same number of tokens.
_SHAPES = ((1, 8), (1, 32), (8, 16), (1, 128), (32, 16), (4, 128), (64, 16), (8, 128), (2, 512))


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured batch."""

    lengths: tuple[int, ...]  # tokens of each sequence
    seconds: float  # best of the repeats


def measure(engine: Engine, *, budget_s: float = 3.0, repeats: int = 3) -> tuple[Timing, ...]:
    """Time the engine on a ladder of batches, smallest first, until the budget is spent. At least one batch is timed.

    Blocks. Run it in a lane's stead, before the lanes start. The first run of each shape warms up, uncounted.
    """
    deadline = time.perf_counter() + budget_s
    timings: list[Timing] = []
    for count, length in _SHAPES:
        length = min(length, engine.info.max_tokens)
        expected_s = timings[-1].seconds * (repeats + 1) if timings else 0.0
        if timings and time.perf_counter() + expected_s > deadline:
            break
        batch = uniform_batch(engine, count, length)
        engine.run(batch)
        timings.append(Timing((length,) * count, min(engine.run(batch).device_s for _ in range(repeats))))
    return tuple(timings)


def uniform_batch(engine: Engine, count: int, length: int) -> PackedBatch:
    """`count` sequences of `length` random token ids."""
    ids = np.random.default_rng(0).integers(0, engine.info.vocab_size, count * length, dtype=np.int32)
    return PackedBatch(
        token_ids=ids,
        cu_seqlens=np.arange(count + 1, dtype=np.int32) * np.int32(length),
        max_seqlen=length,
        token_type_ids=None,
        options=(TaskOptions("embed"),) * count,
    )
