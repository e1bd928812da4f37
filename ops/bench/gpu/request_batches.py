"""Requests of random tokens, and packed batches of them."""

from collections.abc import Sequence

import numpy as np

from penstock.engine import PackedBatch, TaskOptions
from penstock.engine.types import Int32Array
from penstock.ops.bench.common.draws import Lengths

_FIRST_ID = 1000  # below it are BERT's special and unused tokens
_OPTIONS = TaskOptions("embed")


def random_requests(lengths: Lengths, vocab_size: int, seed: int) -> list[Int32Array]:
    """Token ids of one request for each length."""
    ids = np.random.default_rng(seed).integers(_FIRST_ID, vocab_size, int(lengths.sum()), dtype=np.int32)
    return np.split(ids, np.cumsum(lengths)[:-1])


def pack(requests: Sequence[Int32Array]) -> PackedBatch:
    """A packed batch of requests."""
    return PackedBatch.of(requests, [_OPTIONS] * len(requests))
