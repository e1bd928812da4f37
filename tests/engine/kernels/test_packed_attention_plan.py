"""The plan of packed attention, and what its launch refuses: no GPU needed."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.kernels.packed_attention import (
    QUERIES,
    distance_table,
    packed_attention,
    plan_capacity,
    plan_items,
    supports,
    table_bytes,
)

HOPPER, ADA = 227 << 10, 99 << 10  # bytes of shared memory that a CTA can ask for

LENGTHS = st.lists(st.integers(0, 700), max_size=60)


def cumulate(lengths: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


@given(LENGTHS, st.sampled_from(QUERIES), st.integers(0, 300), st.integers(0, 5))
def test_each_tile_of_queries_is_planned_once_within_its_buckets_capacity(
    lengths: list[int], queries: int, spare_tokens: int, spare_sequences: int
) -> None:
    cu_seqlens = cumulate(lengths)
    capacity = plan_capacity(sum(lengths) + spare_tokens, len(lengths) + spare_sequences, queries)
    items = plan_items(cu_seqlens, capacity, queries)
    assert items.shape == (capacity, 2)
    assert items.dtype == np.int32
    planned = [(start, word & 0xFFFF, word >> 16) for start, word in items.tolist() if word]
    starts = cu_seqlens.tolist()
    wanted = [(s, n, tile) for s, n in zip(starts, lengths, strict=False) for tile in range(-(-n // queries))]
    assert sorted(planned) == sorted(wanted)
    assert not items[len(planned) :].any()  # the work comes first
    assert all(before >= after for (_, before, _), (_, after, _) in pairwise(planned))  # and of that, the longest


def test_the_longest_sequence_that_a_plan_can_name() -> None:
    items = plan_items(cumulate([65_535]), plan_capacity(65_535, 1, 64), 64)
    assert items[-1].tolist() == [0, 65_535 | 1023 << 16]


def test_too_long_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="a sequence of 65536 tokens"):
        plan_items(cumulate([3, 65_536]), 10_000)


def test_a_capacity_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity 3"):
        plan_items(cumulate([129, 128, 1]), 3)


def test_what_is_supported() -> None:
    assert [supports(d, 1024, 128, HOPPER) for d in (32, 48, 64, 128, 256)] == [True, False, True, True, False]
    assert not supports(64, 65_536, 128, HOPPER)


def test_heads_of_128_need_more_shared_memory_than_smaller_devices_have() -> None:
    assert [supports(d, 1024, 64, ADA) for d in (32, 64, 128)] == [True, True, False]
    assert supports(128, 1024, 64, 113 << 10)  # of such a device there is none: but the choice should not depend on it
    assert not supports(128, 1024, 128, 113 << 10)


@pytest.mark.parametrize("last", [1, 64, 65, 128, 300])
def test_a_table_of_biases_is_constant_beyond_the_last_distance_and_at_its_ends(last: int) -> None:
    bias = torch.randn(3, 2 * last + 1, generator=torch.Generator().manual_seed(last)).half()
    table = distance_table(bias, 0.125)
    reach = table.shape[1] // 2
    assert (table.dtype, table_bytes(bias)) == (torch.float32, 4 * (2 * reach + 1))
    assert reach >= 128  # the longest short sequence
    assert torch.equal(table[:, reach - last : reach + last + 1], 8 * bias.float())
    width = max(63, reach - last)
    assert (table[:, :width] == table[:, :1]).all()
    assert (table[:, -width:] == table[:, -1:]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "5 heads of 51.2"),
        ({"num_heads": 1}, "1 heads of 256"),
        ({"plan": torch.zeros(65_536, 2, dtype=torch.int32)}, "at most 65535 rows, not 65536"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"queries": 96}, "96 queries"),
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
        packed_attention(**(arguments | changes))  # type: ignore[arg-type]  # a mapping of mixed types
