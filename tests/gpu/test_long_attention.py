"""Long attention on a GPU of compute capability 9.0, against float64 and against torch's own in the same precision."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.kernels.long_attention import QUERIES, long_attention
from penstock.engine.kernels.packed_attention import plan_capacity, plan_items
from tests.gpu.references import (
    HALVES,
    UNTOUCHED,
    assert_bits_do_not_depend_on_batch_mates,
    assert_nan_stays_in_its_sequence,
    captured,
    errors,
    make_qkv,
    untouched,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"
    ),
]
HEAD_DIMS = (64, 128)
EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 300, 511, 512, 513, 1000, 1024)


def planned(cu_seqlens: np.ndarray, capacity: int | None = None) -> Tensor:
    if capacity is None:
        capacity = plan_capacity(int(cu_seqlens[-1]), len(cu_seqlens) - 1, QUERIES)
    return torch.from_numpy(plan_items(cu_seqlens, capacity, QUERIES)).cuda()


def run(qkv: Tensor, cu_seqlens: np.ndarray, heads: int) -> Tensor:
    out = untouched(qkv)
    long_attention(out, qkv, planned(cu_seqlens), heads, (out.shape[1] // heads) ** -0.5)
    return out


def assert_exact(qkv: Tensor, cu_seqlens: np.ndarray, heads: int) -> None:
    """The largest error is at most twice torch's, or rounding's where torch is luckier; rows after the end are left."""

    def attend(rows: Tensor) -> Tensor:
        query, key, value = rows.view(1, len(rows), 3, heads, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(len(rows), -1)

    out, total = run(qkv, cu_seqlens, heads), int(cu_seqlens[-1])
    ours, theirs = errors(attend, out, qkv, cu_seqlens).max(axis=0)
    rounding = torch.finfo(out.dtype).eps / 2 * float(out[:total].abs().max())
    assert ours <= 2 * max(theirs, rounding), (ours, theirs)  # a NaN fails too
    assert (out[total:] == UNTOUCHED).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("lengths", [EDGES, (1,), (8191,), (40, 3) * 100, (4096, 1, 2000)], ids=str)
def test_a_batch_is_at_most_twice_as_far_from_float64_as_torch(
    lengths: Sequence[int], head_dim: int, dtype: torch.dtype
) -> None:
    qkv, cu_seqlens = make_qkv(lengths, 3 * head_dim, dtype, seed=head_dim)
    assert_exact(qkv, cu_seqlens, 3)


@pytest.mark.parametrize("seed", range(80))
def test_random_packs(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, (130, 600, 2001)[seed % 3], random.integers(1, 20)).tolist()
    lengths[0] = 1 + 17 * (seed % 60)
    heads, head_dim = int(random.integers(1, 17)), HEAD_DIMS[seed // 2 % 2]
    qkv, cu_seqlens = make_qkv(lengths, heads * head_dim, HALVES[seed % 2], seed)
    assert_exact(qkv, cu_seqlens, heads)


@pytest.mark.parametrize("at", [0, -3])
def test_large_scores_of_the_first_or_the_last_keys(at: int) -> None:
    """Scores of several hundred: the reference must move, and nothing may overflow."""
    heads, lengths = 2, (500, 100, 193, 1500)
    qkv, cu_seqlens = make_qkv(lengths, heads * 64, torch.float16, seed=5)
    for edge in cu_seqlens[1:] if at else cu_seqlens[:-1]:
        qkv[edge + at : edge + at + 3, : 2 * heads * 64] *= 8
    assert_exact(qkv, cu_seqlens, heads)


@pytest.mark.parametrize("length", EDGES)
def test_bits_do_not_depend_on_batch_mates(length: int) -> None:
    qkv, cu_seqlens = make_qkv((50, length, 700, 128, 0, length, 333), 3 * 64, torch.float16, seed=length)
    assert_bits_do_not_depend_on_batch_mates(lambda qkv, bounds: run(qkv, bounds, 3), qkv, cu_seqlens)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_nan_stays_in_its_sequence(head_dim: int) -> None:
    qkv, cu_seqlens = make_qkv((170, 5, 90, 300, 64, 129, 1000, 999), 2 * head_dim, torch.float16, seed=1)
    assert_nan_stays_in_its_sequence(lambda: run(qkv, cu_seqlens, 2), qkv, cu_seqlens)


def test_many_runs_have_the_same_bits() -> None:
    lengths = np.random.default_rng(9).integers(100, 2001, 15)
    qkv, cu_seqlens = make_qkv(lengths, 16 * 64, torch.bfloat16, seed=9)
    first = run(qkv, cu_seqlens, 16)
    assert all(torch.equal(run(qkv, cu_seqlens, 16), first) for _ in range(20))


def test_a_graph_serves_every_batch_of_its_bucket() -> None:
    heads, head_dim, tokens, sequences = 4, 64, 4096, 12
    capacity = plan_capacity(tokens, sequences, QUERIES)
    qkv = torch.zeros(tokens, 3 * heads * head_dim, dtype=torch.float16, device="cuda")
    out = torch.zeros(tokens, heads * head_dim, dtype=torch.float16, device="cuda")
    plan = torch.zeros(capacity, 2, dtype=torch.int32, device="cuda")
    graph = captured(lambda: long_attention(out, qkv, plan, heads, 0.125))
    for seed in range(5):
        lengths = np.random.default_rng(seed).integers(0, 342, sequences).tolist()
        fresh, cu_seqlens = make_qkv(lengths, heads * head_dim, torch.float16, seed)
        total = int(cu_seqlens[-1])
        qkv[:total] = fresh[:total]
        qkv[total:] = math.nan
        plan.copy_(planned(cu_seqlens, capacity))
        out.fill_(UNTOUCHED)
        graph.replay()
        assert torch.equal(out[:total], run(fresh, cu_seqlens, heads)[:total])
        assert (out[total:] == UNTOUCHED).all()


def test_wrong_types_and_shapes_are_refused() -> None:
    out, qkv = (torch.zeros(4, width, dtype=torch.float16, device="cuda") for width in (256, 768))
    plan = torch.zeros(8, 2, dtype=torch.int32, device="cuda")
    for wrong in (qkv.bfloat16(), qkv[:, :767], qkv.repeat(1, 2)[:, :768]):
        with pytest.raises(ValueError, match="qkv must be"):
            long_attention(out, wrong, plan, 4, 0.125)
    with pytest.raises(ValueError, match="plan must be"):
        long_attention(out, qkv, plan.long(), 4, 0.125)
