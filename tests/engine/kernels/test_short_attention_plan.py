"""The plan of short attention, and what its launch refuses: no GPU needed."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.kernels.short_attention import plan_capacity, plan_items, short_attention, supports

LENGTHS = st.lists(st.integers(0, 128), max_size=80)


def cumulate(lengths: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


@given(LENGTHS, st.integers(0, 300), st.integers(0, 5))
def test_each_tile_of_queries_is_planned_once_within_its_buckets_capacity(
    lengths: list[int], spare_tokens: int, spare_sequences: int
) -> None:
    cu_seqlens = cumulate(lengths)
    capacity = plan_capacity(sum(lengths) + spare_tokens, len(lengths) + spare_sequences)
    items = plan_items(cu_seqlens, capacity)
    assert items.shape == (capacity, 2)
    assert items.dtype == np.int32
    planned = sorted((start, word & 0xFFFF, word >> 16) for start, word in items.tolist() if word)
    starts = cu_seqlens.tolist()
    wanted = [(s, n, tile) for s, n in zip(starts, lengths, strict=False) for tile in range((n + 15) // 16)]
    assert planned == sorted(wanted)
    assert not items[len(planned) :].any()  # the work comes first


@given(LENGTHS)
def test_a_sequences_tiles_are_neighbours_in_order(lengths: list[int]) -> None:
    words = plan_items(cumulate(lengths), plan_capacity(sum(lengths), len(lengths)))[:, 1].tolist()
    for before, after in pairwise(words):
        if after >> 16:
            assert after == before + (1 << 16)


@pytest.mark.parametrize(
    "lengths", [[128] * 5, [100, 10] * 7, [90, 20] * 6, [70, 40] * 9, [64] * 8, [16] * 3, [128, 50, 60]]
)
def test_sequences_that_fill_a_cta_together_share_one(lengths: list[int]) -> None:
    items = plan_items(cumulate(lengths), plan_capacity(sum(lengths), len(lengths)))
    ctas = items.reshape(-1, 8, 2)
    for start in cumulate(lengths)[:-1]:
        assert ((ctas[:, :, 0] == start) & (ctas[:, :, 1] > 0)).any(axis=1).sum() == 1


def test_too_long_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="a sequence of 129 tokens"):
        plan_items(cumulate([3, 129]), 64)


@pytest.mark.parametrize("capacity", [8, 20])
def test_a_capacity_too_small_or_uneven_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity {capacity}"):
        plan_items(cumulate([128, 128]), capacity)


def test_what_is_supported() -> None:
    assert [supports(d, 128) for d in (32, 48, 64, 128, 256)] == [True, False, True, True, False]
    assert not supports(64, 129)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "5 heads of 51.2"),
        ({"num_heads": 1}, "1 heads of 256"),
        ({"plan": torch.zeros(9, 2, dtype=torch.int32)}, "multiple of 8 and at most 524280 rows, not 9"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"bias": torch.zeros(4, 255)}, "reach 128 tokens, not 127"),
        ({}, "on a CUDA device"),
    ],
)
def test_wrong_arguments_are_refused(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "out": torch.zeros(4, 256, dtype=torch.float16),
        "qkv": torch.zeros(4, 768, dtype=torch.float16),
        "plan": torch.zeros(8, 2, dtype=torch.int32),
        "num_heads": 4,
        "scale": 0.125,
    }
    with pytest.raises(ValueError, match=message):
        short_attention(**(arguments | changes))  # type: ignore[arg-type]  # a mapping of mixed types
