"""Short attention on a GPU, against float64 and against torch's own attention in the same precision."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.kernels.packed_attention import distance_table
from penstock.engine.kernels.short_attention import plan_capacity, plan_items, short_attention
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

pytestmark = pytest.mark.gpu

EDGES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128)
LAST = 40  # distance with a bias of its own


def make_bias(heads: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(99)
    return (2 * torch.randn(heads, 2 * LAST + 1, generator=generator, device="cuda")).to(dtype)


def run(qkv: Tensor, cu_seqlens: np.ndarray, heads: int, bias: Tensor | None = None) -> Tensor:
    out = untouched(qkv)
    items = plan_items(cu_seqlens, plan_capacity(int(cu_seqlens[-1]), len(cu_seqlens) - 1))
    scale = (out.shape[1] // heads) ** -0.5
    table = None if bias is None else distance_table(bias, scale)
    short_attention(out, qkv, torch.from_numpy(items).cuda(), heads, scale, table)
    return out


def torch_attention(qkv: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    """One sequence [L, 3H] to [L, H], in qkv's precision."""
    length, width = qkv.shape
    query, key, value = qkv.view(1, length, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
    mask = None
    if bias is not None:
        positions = torch.arange(length, device="cuda")
        distances = positions[None, :] - positions[:, None]
        mask = bias[None, :, distances.clamp(-LAST, LAST) + LAST].to(qkv.dtype)
    return F.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).reshape(length, width // 3)


def compare(qkv: Tensor, cu_seqlens: np.ndarray, heads: int, bias: Tensor | None = None) -> np.ndarray:
    """[N, 2]: the errors of the kernel and of torch."""
    return errors(lambda rows: torch_attention(rows, heads, bias), run(qkv, cu_seqlens, heads, bias), qkv, cu_seqlens)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_each_sequence_is_at_most_twice_as_far_from_float64_as_torch(
    head_dim: int, dtype: torch.dtype, biased: bool
) -> None:
    heads = 12
    qkv, cu_seqlens = make_qkv(EDGES, heads * head_dim, dtype, seed=head_dim)
    bias = make_bias(heads, dtype) if biased else None
    ours, theirs = compare(qkv, cu_seqlens, heads, bias).T
    assert ours.max() <= 2 * theirs.max(), (ours, theirs)  # a NaN fails too


@pytest.mark.parametrize("seed", range(100))
def test_random_packs(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 129, random.integers(1, 40)).tolist()
    lengths[0] = 1 + seed
    head_dim, dtype, heads = (32, 64, 128)[seed % 3], HALVES[seed % 2], int(random.integers(1, 5))
    qkv, cu_seqlens = make_qkv(lengths, heads * head_dim, dtype, seed)
    out = run(qkv, cu_seqlens, heads)
    ours, theirs = errors(lambda rows: torch_attention(rows, heads, None), out, qkv, cu_seqlens).max(axis=0)
    assert ours <= 2 * theirs
    assert (out[cu_seqlens[-1] :] == UNTOUCHED).all()


def test_large_scores_and_a_late_maximum() -> None:
    """Scores of several hundred, largest at the last key: the reference must move, and nothing may overflow."""
    heads, lengths = 2, (128, 100, 40)
    qkv, cu_seqlens = make_qkv(lengths, heads * 64, torch.float16, seed=5)
    for end in cu_seqlens[1:]:
        qkv[end - 3 : end, : 2 * heads * 64] *= 8
    ours, theirs = compare(qkv, cu_seqlens, heads).T
    assert (ours <= 2 * theirs).all(), (ours, theirs)


def test_a_bias_of_minus_infinity_removes_a_key() -> None:
    heads, length = 2, 37
    qkv, cu_seqlens = make_qkv((length,), heads * 64, torch.bfloat16, seed=6)
    bias = torch.zeros(heads, 2 * LAST + 1, dtype=torch.bfloat16, device="cuda")
    bias[:, : LAST - 3] = -math.inf  # keys that are more than three tokens before their query
    ours, theirs = compare(qkv, cu_seqlens, heads, bias).T
    assert (ours <= 2 * theirs).all(), (ours, theirs)


@pytest.mark.parametrize("length", EDGES)
def test_bits_do_not_depend_on_batch_mates(length: int) -> None:
    heads, head_dim = 3, 64
    lengths = (50, length, 7, 128, 0, length, 33)
    qkv, cu_seqlens = make_qkv(lengths, heads * head_dim, torch.float16, seed=length)
    assert_bits_do_not_depend_on_batch_mates(lambda qkv, bounds: run(qkv, bounds, heads), qkv, cu_seqlens)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_nan_stays_in_its_sequence(head_dim: int) -> None:
    heads, lengths = 2, (17, 5, 90, 1, 64, 31)
    qkv, cu_seqlens = make_qkv(lengths, heads * head_dim, torch.float16, seed=1)
    assert_nan_stays_in_its_sequence(lambda: run(qkv, cu_seqlens, heads), qkv, cu_seqlens)


def test_a_graph_serves_every_batch_of_its_bucket() -> None:
    heads, head_dim, tokens, sequences = 4, 64, 512, 24
    capacity = plan_capacity(tokens, sequences)
    qkv = torch.zeros(tokens, 3 * heads * head_dim, dtype=torch.float16, device="cuda")
    out = torch.zeros(tokens, heads * head_dim, dtype=torch.float16, device="cuda")
    plan = torch.zeros(capacity, 2, dtype=torch.int32, device="cuda")
    graph = captured(lambda: short_attention(out, qkv, plan, heads, 0.125))
    for seed in range(5):
        lengths = np.random.default_rng(seed).integers(0, 22, sequences).tolist()
        fresh, cu_seqlens = make_qkv(lengths, heads * head_dim, torch.float16, seed)
        total = int(cu_seqlens[-1])
        qkv[:total] = fresh[:total]
        qkv[total:] = math.nan
        plan.copy_(torch.from_numpy(plan_items(cu_seqlens, capacity)))
        out.fill_(UNTOUCHED)
        graph.replay()
        assert torch.equal(out[:total], run(fresh, cu_seqlens, heads)[:total])
        assert (out[total:] == UNTOUCHED).all()


def test_a_backlog_of_16384_tokens() -> None:
    heads, head_dim = 12, 64
    lengths = np.random.default_rng(0).integers(2, 101, 328).tolist()
    qkv, cu_seqlens = make_qkv(lengths, heads * head_dim, torch.float16, seed=0)
    ours, theirs = compare(qkv, cu_seqlens, heads).max(axis=0)
    assert ours <= 2 * theirs


def test_wrong_types_and_shapes_are_refused() -> None:
    out, qkv = (torch.zeros(4, width, dtype=torch.float16, device="cuda") for width in (256, 768))
    plan = torch.zeros(8, 2, dtype=torch.int32, device="cuda")
    for wrong in (qkv.bfloat16(), qkv[:, :767], qkv.repeat(1, 2)[:, :768]):
        with pytest.raises(ValueError, match="qkv must be"):
            short_attention(out, wrong, plan, 4, 0.125)
    with pytest.raises(ValueError, match="plan must be"):
        short_attention(out, qkv, plan.long(), 4, 0.125)
    with pytest.raises(ValueError, match="bias must be"):
        short_attention(out, qkv, plan, 4, 0.125, torch.zeros(4, 258, device="cuda"))
