"""The plans of packed and of short attention, and what their launches refuse: no GPU needed."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.kernels import long_attention as long
from penstock.engine.kernels import packed_attention as packed
from penstock.engine.kernels import short_attention as short
from penstock.engine.model.weights import Heads

HOPPER, ADA = 227 << 10, 99 << 10  # bytes of shared memory that a CTA can ask for

LENGTHS = st.lists(st.integers(0, 700), max_size=60)
SHORT_LENGTHS = st.lists(st.integers(0, 128), max_size=80)


def cumulate(lengths: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


@given(LENGTHS, st.sampled_from((64, 128, 192)), st.booleans(), st.integers(0, 300), st.integers(0, 5))
def test_each_tile_of_queries_is_planned_once_within_its_buckets_capacity(
    lengths: list[int], queries: int, is_causal: bool, spare_tokens: int, spare_sequences: int
) -> None:
    cu_seqlens = cumulate(lengths)
    capacity = packed.plan_capacity(sum(lengths) + spare_tokens, len(lengths) + spare_sequences, queries)
    items = packed.plan_items(cu_seqlens, capacity, queries, is_causal=is_causal)
    assert items.shape == (capacity, 2)
    assert items.dtype == np.int32
    planned = [(start, word & 0xFFFF, word >> 16) for start, word in items.tolist() if word]
    starts = cu_seqlens.tolist()
    wanted = [(s, n, tile) for s, n in zip(starts, lengths, strict=False) for tile in range(-(-n // queries))]
    assert sorted(planned) == sorted(wanted)
    assert not items[len(planned) :].any()  # the work comes first
    costs = [
        (min(length, (tile + 1) * queries) if is_causal else length) * -(-min(queries, length - tile * queries) // 64)
        for _, length, tile in planned
    ]
    assert costs == sorted(costs, reverse=True)  # and of that, what takes longest


def test_the_longest_sequence_that_a_plan_can_name() -> None:
    items = packed.plan_items(cumulate([65_535]), packed.plan_capacity(65_535, 1, 64), 64)
    assert items[-1].tolist() == [0, 65_535 | 1023 << 16]


def test_too_long_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="a sequence of 65536 tokens"):
        packed.plan_items(cumulate([3, 65_536]), 10_000)


def test_a_capacity_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity 3"):
        packed.plan_items(cumulate([129, 128, 1]), 3)


def test_what_packed_attention_supports() -> None:
    assert [packed.supports(d, 1024, 128, HOPPER) for d in (32, 48, 64, 128, 256)] == [True, False, True, True, False]
    assert not packed.supports(64, 65_536, 128, HOPPER)


def test_heads_of_128_need_more_shared_memory_than_smaller_devices_have() -> None:
    assert [packed.supports(d, 1024, 64, ADA) for d in (32, 64, 128)] == [True, True, False]
    between = 113 << 10  # of such a device there is none: but the choice should not depend on it
    assert packed.supports(128, 1024, 64, between)
    assert not packed.supports(128, 1024, 128, between)


@pytest.mark.parametrize("last", [1, 64, 65, 128, 300])
def test_a_table_of_biases_is_constant_beyond_the_last_distance_and_at_its_ends(last: int) -> None:
    bias = torch.randn(3, 2 * last + 1, generator=torch.Generator().manual_seed(last)).half()
    table = packed.distance_table(bias, 0.125)
    reach = table.shape[1] // 2
    assert (table.dtype, packed.table_bytes(bias)) == (torch.float32, 4 * (2 * reach + 1))
    assert reach >= 128  # the longest short sequence
    assert torch.equal(table[:, reach - last : reach + last + 1], 8 * bias.float())
    width = max(63, reach - last)
    assert (table[:, :width] == table[:, :1]).all()
    assert (table[:, -width:] == table[:, -1:]).all()


@given(SHORT_LENGTHS, st.integers(0, 300), st.integers(0, 5))
def test_each_short_tile_of_queries_is_planned_once_within_its_buckets_capacity(
    lengths: list[int], spare_tokens: int, spare_sequences: int
) -> None:
    cu_seqlens = cumulate(lengths)
    capacity = short.plan_capacity(sum(lengths) + spare_tokens, len(lengths) + spare_sequences)
    items = short.plan_items(cu_seqlens, capacity)
    assert items.shape == (capacity, 2)
    assert items.dtype == np.int32
    planned = sorted((start, word & 0xFFFF, word >> 16) for start, word in items.tolist() if word)
    starts = cu_seqlens.tolist()
    wanted = [(s, n, tile) for s, n in zip(starts, lengths, strict=False) for tile in range((n + 15) // 16)]
    assert planned == sorted(wanted)
    assert not items[len(planned) :].any()  # the work comes first


@given(SHORT_LENGTHS)
def test_a_sequences_tiles_are_neighbours_in_order(lengths: list[int]) -> None:
    words = short.plan_items(cumulate(lengths), short.plan_capacity(sum(lengths), len(lengths)))[:, 1].tolist()
    for before, after in pairwise(words):
        if after >> 16:
            assert after == before + (1 << 16)


@pytest.mark.parametrize(
    "lengths", [[128] * 5, [100, 10] * 7, [90, 20] * 6, [70, 40] * 9, [64] * 8, [16] * 3, [128, 50, 60]]
)
def test_sequences_that_fill_a_cta_together_share_one(lengths: list[int]) -> None:
    items = short.plan_items(cumulate(lengths), short.plan_capacity(sum(lengths), len(lengths)))
    ctas = items.reshape(-1, 8, 2)
    for start in cumulate(lengths)[:-1]:
        assert ((ctas[:, :, 0] == start) & (ctas[:, :, 1] > 0)).any(axis=1).sum() == 1


def test_too_long_a_short_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="a sequence of 129 tokens"):
        short.plan_items(cumulate([3, 129]), 64)


@pytest.mark.parametrize("capacity", [8, 20])
def test_a_capacity_too_small_or_uneven_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity {capacity}"):
        short.plan_items(cumulate([128, 128]), capacity)


def test_what_short_attention_supports() -> None:
    assert [short.supports(d, 128) for d in (32, 48, 64, 128, 256)] == [True, False, True, True, False]
    assert not short.supports(64, 129)


@pytest.mark.parametrize(("capability", "is_hopper"), [((8, 9), False), ((9, 0), True), ((10, 0), False)])
def test_what_long_attention_supports(
    capability: tuple[int, int], is_hopper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert [d for d in (32, 48, 64, 128, 256) if long.supports(d, 0)] == ([64, 128] if is_hopper else [])
    assert all(long.shared_bytes(*form) <= HOPPER for form in ((64, 128), (64, 192), (128, 128)))


@pytest.mark.parametrize(
    ("launch", "changes", "message"),
    [
        *[
            (launch, changes, message)
            for launch in (packed.packed_attention, short.short_attention)
            for changes, message in (
                ({"num_heads": 5}, "5 heads of 51.2"),
                ({"num_heads": 1}, "1 heads of 256"),
                ({"scale": 0.0}, "scale must be positive"),
                ({}, "on a CUDA device"),
            )
        ],
        (packed.packed_attention, {"plan": torch.zeros(65_536, 2, dtype=torch.int32)}, "at most 65535 rows, not 65536"),
        (packed.packed_attention, {"queries": 96}, "96 queries"),
        (
            short.short_attention,
            {"plan": torch.zeros(9, 2, dtype=torch.int32)},
            "multiple of 8 and at most 524280 rows, not 9",
        ),
        (short.short_attention, {"bias": torch.zeros(4, 255)}, "reach 128 tokens, not 127"),
    ],
)
def test_wrong_arguments_are_refused(launch: Callable[..., object], changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "out": torch.zeros(4, 256, dtype=torch.float16),
        "qkv": torch.zeros(4, 768, dtype=torch.float16),
        "plan": torch.zeros(8, 2, dtype=torch.int32),
        "num_heads": 4,
        "scale": 0.125,
    }
    with pytest.raises(ValueError, match=message):
        launch(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": Heads(5, 5, 64)}, "5 heads of 51.2"),
        ({"heads": Heads(1, 1, 256)}, "1 heads of 256"),
        ({}, "on a CUDA device"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"queries": 64}, "no block of heads of 64"),
        ({"queries": 192, "is_causal": True}, "no block of causal heads of 64"),
        ({"queries": 192, "heads": Heads(2, 2, 128)}, "no block of heads of 128"),
    ],
)
def test_wrong_arguments_of_long_attention_are_refused(changes: dict[str, object], message: str) -> None:
    launch: Callable[..., object] = long.long_attention
    arguments: dict[str, object] = {
        "out": torch.zeros(4, 256, dtype=torch.float16),
        "qkv": torch.zeros(4, 768, dtype=torch.float16),
        "plan": torch.zeros(8, 2, dtype=torch.int32),
        "heads": Heads(4, 4, 64),
        "scale": 0.125,
    }
    with pytest.raises(ValueError, match=message):
        launch(**(arguments | changes))
