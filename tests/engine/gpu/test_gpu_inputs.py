"""How a batch is described to the device, and which graph's shape it gets. No GPU needed."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.gpu.buckets import GRAPH_ROWS, GRAPH_SEQUENCES, graph_shape, likely_batches
from penstock.engine.gpu.choice import AttentionKernel, LongAttention, choose_kernel
from penstock.engine.gpu.inputs import Inputs, Shape, describe, exact_shape, views
from penstock.engine.model.weights import PlainAttention
from penstock.engine.types import PackedBatch
from tests.engine.helpers import pack, random_sequences

plain = partial(choose_kernel, PlainAttention(), 64, shared_bytes=227 << 10)
on_hopper = partial(plain, long=LongAttention.of(AttentionKernel.LONG_192, 64, is_causal=False, has_windows=False))

lengths_of_batches = st.lists(st.integers(1, 130), min_size=1, max_size=40)


def shape_of(
    batch: PackedBatch,
    max_tokens: int,
    *,
    has_types: bool = True,
    choose: Callable[[int, int], AttentionKernel] = plain,
) -> Shape | None:
    """The shape of the batch's graph."""
    size = len(batch.token_ids), len(batch.cu_seqlens) - 1, batch.max_seqlen
    return graph_shape(*size, max_tokens=max_tokens, choose=choose, has_types=has_types)


def described(batch: PackedBatch, shape: Shape) -> Inputs:
    values = np.full(shape.num_values, -7, np.int32)
    describe(batch, shape, values)
    return views(torch.from_numpy(values), shape)


@given(lengths=lengths_of_batches)
def test_an_exact_description_is_the_batch(lengths: list[int]) -> None:
    batch = pack(random_sequences(lengths))
    inputs = described(batch, exact_shape(batch, AttentionKernel.PACKED_64))
    assert inputs.token_ids.tolist() == batch.token_ids.tolist()
    assert inputs.cu_seqlens.tolist() == batch.cu_seqlens.tolist()
    assert inputs.positions.tolist() == [position for length in lengths for position in range(length)]
    assert inputs.token_types is None


@given(lengths=lengths_of_batches)
def test_spare_rows_are_sequences_of_token_0_and_the_other_spare_sequences_are_empty(lengths: list[int]) -> None:
    sequences = random_sequences(lengths)
    batch = pack(sequences, types=[np.ones(len(s), np.int32) for s in sequences])
    shape = shape_of(batch, 130)
    assert shape is not None
    inputs = described(batch, shape)
    cu_seqlens, num_tokens = inputs.cu_seqlens.numpy(), len(batch.token_ids)
    assert cu_seqlens[: len(lengths) + 1].tolist() == batch.cu_seqlens.tolist()
    assert len(cu_seqlens) == shape.sequences + 1
    assert cu_seqlens[-1] == shape.rows == len(inputs.token_ids)
    of_sequences = np.diff(cu_seqlens)
    assert of_sequences.min() >= 0
    assert of_sequences.max() <= shape.max_seqlen
    assert not inputs.token_ids[num_tokens:].any()
    assert inputs.token_types is not None
    assert inputs.token_types.tolist() == [1] * num_tokens + [0] * (shape.rows - num_tokens)
    assert inputs.positions.numpy().max() < max(130, shape.max_seqlen)
    assert (inputs.positions.numpy() == np.concatenate([np.arange(n) for n in of_sequences])).all()


@given(lengths=lengths_of_batches)
def test_a_graph_wastes_little(lengths: list[int]) -> None:
    shape = shape_of(pack(random_sequences(lengths)), 130)
    assert shape is not None
    assert shape.rows < sum(lengths) + max(32, sum(lengths) / 8 + 1)
    assert shape.max_seqlen <= 130


def test_there_are_few_shapes() -> None:
    rng = np.random.default_rng(0)
    batches = [pack(random_sequences(rng.integers(2, 100, rng.integers(1, 75)).tolist())) for _ in range(2000)]
    assert len({shape_of(batch, 512) for batch in batches}) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("choose", [plain, on_hopper], ids=["plain", "on Hopper"])
@pytest.mark.parametrize(("low", "high", "share"), [(2, 100, 0.98), (5, 500, 0.96), (2, 30, 0.85)])
def test_most_batches_of_texts_are_of_a_likely_shape(
    low: int, high: int, share: float, choose: Callable[[int, int], AttentionKernel]
) -> None:
    packs = (pack(random_sequences(lengths)) for lengths in likely_batches(GRAPH_ROWS, 512))
    likely = {shape_of(batch, 512, choose=choose) for batch in packs}
    assert len(likely) < 600
    rng = np.random.default_rng(0)
    most = np.log(GRAPH_ROWS * 2 / (low + high))
    counts = np.exp(rng.uniform(0, most, 500)).astype(int)  # small batches as often as large ones
    batches = [pack(random_sequences(rng.integers(low, high + 1, count).tolist())) for count in counts]
    shapes = [shape for batch in batches if (shape := shape_of(batch, 512, choose=choose)) is not None]
    assert np.mean([shape in likely for shape in shapes]) >= share


@given(max_rows=st.integers(1, 2000), max_tokens=st.integers(1, 600))
def test_likely_batches_keep_to_the_caps(max_rows: int, max_tokens: int) -> None:
    for lengths in likely_batches(max_rows, max_tokens):
        assert min(lengths) >= 1
        assert max(lengths) <= max_tokens
        assert sum(lengths) <= max_rows


def test_a_batch_without_token_types_shares_the_graph_of_those_with_them() -> None:
    sequences = random_sequences([5, 40, 7])
    plain_batch, typed_batch = pack(sequences), pack(sequences, types=[np.ones(len(s), np.int32) for s in sequences])
    shape = shape_of(plain_batch, 130)
    assert shape is not None
    assert shape == shape_of(typed_batch, 130)
    types = described(plain_batch, shape).token_types
    assert types is not None
    assert types.tolist() == [0] * shape.rows


def test_a_model_without_token_types_is_told_none() -> None:
    sequences = random_sequences([5, 40, 7])
    batch = pack(sequences, types=[np.zeros(len(s), np.int32) for s in sequences])
    shape = shape_of(batch, 130, has_types=False)
    assert shape is not None
    assert described(batch, shape).token_types is None


def test_large_batches_have_no_graph() -> None:
    assert shape_of(pack(random_sequences([130] * (GRAPH_ROWS // 130 + 1))), 130) is None
    assert shape_of(pack(random_sequences([1] * (GRAPH_SEQUENCES + 1))), 130) is None


def test_a_batch_that_does_not_fit_its_shape_is_a_bug() -> None:
    batch = pack(random_sequences([5, 6]))
    with pytest.raises(ValueError, match="This is a bug"):
        described(batch, Shape(rows=64, sequences=2, max_seqlen=32, has_types=False, kernel=AttentionKernel.SHORT))
