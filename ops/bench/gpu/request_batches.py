"""Requests of random tokens, and batches of them: packed or padded."""

from collections.abc import Sequence

import numpy as np

from penstock.engine import PackedBatch, TaskOptions
from penstock.engine.types import Int32Array
from penstock.ops.bench.common.draws import Lengths

_FIRST_ID = 1000  # below it are BERT's special and unused tokens
_OPTIONS = TaskOptions("embed")
_PAD_MULTIPLE = 8  # fast on tensor cores; transformers recommends it


def random_requests(lengths: Lengths, vocab_size: int, seed: int) -> list[Int32Array]:
    """Token ids of one request for each length."""
    ids = np.random.default_rng(seed).integers(_FIRST_ID, vocab_size, int(lengths.sum()), dtype=np.int32)
    return np.split(ids, np.cumsum(lengths)[:-1])


def pack(requests: Sequence[Int32Array]) -> PackedBatch:
    """A packed batch of requests."""
    return PackedBatch.of(requests, [_OPTIONS] * len(requests))


def padded_width(longest: int) -> int:
    """Columns of a padded batch."""
    return -(-longest // _PAD_MULTIPLE) * _PAD_MULTIPLE


def pad(requests: Sequence[Int32Array]) -> tuple[Int32Array, Int32Array | None]:
    """ids [B, L] and mask [B, L], 1 for a token. A single request is neither padded nor masked."""
    if len(requests) == 1:
        return requests[0][None, :], None
    ids = np.zeros((len(requests), padded_width(max(map(len, requests)))), np.int32)
    mask = np.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, : len(request)] = request
        mask[row, : len(request)] = 1
    return ids, mask
