"""Packed attention on a GPU, against float64 and against torch's own attention in the same precision."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.kernels.packed_attention import QUERIES, packed_attention, plan_capacity, plan_items

pytestmark = pytest.mark.gpu

EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 300, 511, 512, 513, 1000, 1024)
HALVES = (torch.float16, torch.bfloat16)
UNTOUCHED = -7.0


def make(lengths: Sequence[int], heads: int, head_dim: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, np.ndarray]:
    """qkv with three rows of NaN after the last sequence, and cu_seqlens."""
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (int(cu_seqlens[-1]) + 3, 3 * heads * head_dim)
    qkv = torch.randn(shape, generator=generator, device="cuda").to(dtype)
    qkv[-3:] = math.nan
    return qkv, cu_seqlens


def run(qkv: Tensor, cu_seqlens: np.ndarray, heads: int, queries: int) -> Tensor:
    hidden = qkv.shape[1] // 3
    out = torch.full((len(qkv), hidden), UNTOUCHED, dtype=qkv.dtype, device="cuda")
    capacity = plan_capacity(int(cu_seqlens[-1]), len(cu_seqlens) - 1, queries)
    plan = torch.from_numpy(plan_items(cu_seqlens, capacity, queries)).cuda()
    packed_attention(out, qkv, plan, heads, (hidden // heads) ** -0.5, queries)
    return out


def torch_attention(qkv: Tensor, heads: int) -> Tensor:
    """One sequence [L, 3H] to [L, H], in qkv's precision."""
    length, width = qkv.shape
    query, key, value = qkv.view(1, length, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(length, width // 3)


def errors(out: Tensor, qkv: Tensor, cu_seqlens: np.ndarray, heads: int) -> np.ndarray:
    """[N, 2]: for each sequence the largest error of `out` and of torch in the same precision, against float64."""
    pairs = []
    for start, end in pairwise(cu_seqlens):
        if start < end:
            rows = qkv[start:end]
            exact = torch_attention(rows.double(), heads)
            results = (out[start:end], torch_attention(rows, heads))
            pairs.append([(result.double() - exact).abs().max().item() for result in results])
    return np.array(pairs)


@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_a_batch_is_at_most_twice_as_far_from_float64_as_torch(head_dim: int, dtype: torch.dtype, queries: int) -> None:
    heads = 5
    qkv, cu_seqlens = make(EDGES, heads, head_dim, dtype, seed=head_dim)
    ours, theirs = errors(run(qkv, cu_seqlens, heads, queries), qkv, cu_seqlens, heads).T
    assert ours.max() <= 2 * theirs.max(), (ours, theirs)  # a NaN fails too


@pytest.mark.parametrize("seed", range(60))
def test_random_packs(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, (130, 600)[seed % 2], random.integers(1, 20)).tolist()
    lengths[0] = 1 + 17 * seed
    head_dim, dtype, heads = (32, 64, 128)[seed % 3], HALVES[seed // 2 % 2], int(random.integers(1, 6))
    qkv, cu_seqlens = make(lengths, heads, head_dim, dtype, seed)
    out = run(qkv, cu_seqlens, heads, QUERIES[seed // 4 % 2])
    ours, theirs = errors(out, qkv, cu_seqlens, heads).max(axis=0)
    half_ulp = torch.finfo(dtype).eps / 2 * float(out[: cu_seqlens[-1]].abs().max())
    assert ours <= 2 * max(theirs, half_ulp)  # in a small pack torch may be luckier than its precision
    assert (out[cu_seqlens[-1] :] == UNTOUCHED).all()


@pytest.mark.parametrize("queries", QUERIES)
def test_large_scores_and_a_late_maximum(queries: int) -> None:
    """Scores of several hundred, largest at the last key: the reference must move, and nothing may overflow."""
    heads, lengths = 2, (500, 100, 193)
    qkv, cu_seqlens = make(lengths, heads, 64, torch.float16, seed=5)
    for end in cu_seqlens[1:]:
        qkv[end - 3 : end, : 2 * heads * 64] *= 8
    ours, theirs = errors(run(qkv, cu_seqlens, heads, queries), qkv, cu_seqlens, heads).T
    assert ours.max() <= 2 * theirs.max(), (ours, theirs)


@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("length", EDGES)
def test_bits_do_not_depend_on_batch_mates(length: int, queries: int) -> None:
    heads, head_dim = 3, 64
    lengths = (50, length, 700, 128, 0, length, 333)
    qkv, cu_seqlens = make(lengths, heads, head_dim, torch.float16, seed=length)
    together = run(qkv, cu_seqlens, heads, queries)
    for i in (1, 5):
        start, end = cu_seqlens[i : i + 2]
        alone = run(qkv[start:end].clone(), np.array([0, length], np.int32), heads, queries)
        assert torch.equal(alone, together[start:end])


@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_nan_stays_in_its_sequence(head_dim: int, queries: int) -> None:
    heads, lengths = 2, (170, 5, 90, 300, 64, 129)
    qkv, cu_seqlens = make(lengths, heads, head_dim, torch.float16, seed=1)
    clean = run(qkv, cu_seqlens, heads, queries)
    for i in range(0, len(lengths), 2):
        qkv[cu_seqlens[i] : cu_seqlens[i + 1]] = math.nan
    poisoned = run(qkv, cu_seqlens, heads, queries)
    for i, (start, end) in enumerate(pairwise(cu_seqlens)):
        if i % 2:
            assert torch.equal(poisoned[start:end], clean[start:end])
        else:
            assert poisoned[start:end].isnan().all()


@pytest.mark.parametrize("queries", QUERIES)
def test_a_graph_serves_every_batch_of_its_bucket(queries: int) -> None:
    heads, head_dim, tokens, sequences = 4, 64, 2048, 12
    capacity = plan_capacity(tokens, sequences, queries)
    qkv = torch.zeros(tokens, 3 * heads * head_dim, dtype=torch.float16, device="cuda")
    out = torch.zeros(tokens, heads * head_dim, dtype=torch.float16, device="cuda")
    plan = torch.zeros(capacity, 2, dtype=torch.int32, device="cuda")
    packed_attention(out, qkv, plan, heads, 0.125, queries)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packed_attention(out, qkv, plan, heads, 0.125, queries)
    for seed in range(5):
        lengths = np.random.default_rng(seed).integers(0, 171, sequences).tolist()
        fresh, cu_seqlens = make(lengths, heads, head_dim, torch.float16, seed)
        total = int(cu_seqlens[-1])
        qkv[:total] = fresh[:total]
        qkv[total:] = math.nan
        plan.copy_(torch.from_numpy(plan_items(cu_seqlens, capacity, queries)))
        out.fill_(UNTOUCHED)
        graph.replay()
        assert torch.equal(out[:total], run(fresh, cu_seqlens, heads, queries)[:total])
        assert (out[total:] == UNTOUCHED).all()


@pytest.mark.parametrize("queries", QUERIES)
def test_a_backlog_of_16384_tokens(queries: int) -> None:
    heads, head_dim = 12, 64
    lengths = np.random.default_rng(0).integers(5, 501, 65).tolist()
    qkv, cu_seqlens = make(lengths, heads, head_dim, torch.float16, seed=0)
    ours, theirs = errors(run(qkv, cu_seqlens, heads, queries), qkv, cu_seqlens, heads).max(axis=0)
    assert ours <= 2 * theirs


def test_one_sequence_of_8191_tokens() -> None:
    heads, head_dim = 1, 64
    qkv, cu_seqlens = make((8191,), heads, head_dim, torch.bfloat16, seed=2)
    ours, theirs = errors(run(qkv, cu_seqlens, heads, 128), qkv, cu_seqlens, heads).max(axis=0)
    assert ours <= 2 * theirs


def test_wrong_types_and_shapes_are_refused() -> None:
    out, qkv = (torch.zeros(4, width, dtype=torch.float16, device="cuda") for width in (256, 768))
    plan = torch.zeros(8, 2, dtype=torch.int32, device="cuda")
    for wrong in (qkv.bfloat16(), qkv[:, :767], qkv.repeat(1, 2)[:, :768]):
        with pytest.raises(ValueError, match="qkv must be"):
            packed_attention(out, wrong, plan, 4, 0.125)
    with pytest.raises(ValueError, match="plan must be"):
        packed_attention(out, qkv, plan.long(), 4, 0.125)
