"""Packed attention on a GPU, against float64 and against torch's own attention in the same precision."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from penstock.engine.families.t5 import distance_buckets
from penstock.engine.kernels.packed_attention import (
    QUERIES,
    distance_table,
    packed_attention,
    plan_capacity,
    plan_items,
    windowed_attention,
)
from penstock.engine.model.weights import Heads
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

EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 300, 511, 512, 513, 1000, 1024)


@dataclass(frozen=True)
class Plain:
    """Attention as the kernel computes it, and as torch does."""

    def launch(self, out: Tensor, qkv: Tensor, plan: Tensor, heads: int, queries: int) -> None:
        packed_attention(out, qkv, plan, heads, (out.shape[1] // heads) ** -0.5, queries)

    def torch(self, qkv: Tensor, heads: int) -> Tensor:
        """One sequence [L, (heads + 2 keys) * d] to [L, heads * d], in qkv's precision."""
        length, parts = len(qkv), [self.shared() * heads, heads, heads]
        query, key, value = torch.split(qkv.view(1, length, sum(parts), -1).transpose(1, 2), parts, dim=1)
        key, value = (x.repeat_interleave(self.shared(), dim=1) for x in (key, value))
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask(qkv, heads))
        return found.transpose(1, 2).reshape(length, -1)

    def shared(self) -> int:
        """Heads of queries that share one of keys."""
        return 1

    def hidden(self, heads: int, head_dim: int) -> int:
        """A third of a row, as `make_qkv` takes it. heads: of keys."""
        return (self.shared() + 2) * heads * head_dim // 3

    def mask(self, qkv: Tensor, heads: int) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Biased(Plain):
    """With a bias for each distance up to `last`, in the precision of the launch."""

    last: int

    def bias(self, heads: int, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator("cuda").manual_seed(self.last)
        return (2 * torch.randn(heads, 2 * self.last + 1, generator=generator, device="cuda")).to(dtype)

    def launch(self, out: Tensor, qkv: Tensor, plan: Tensor, heads: int, queries: int) -> None:
        scale = (out.shape[1] // heads) ** -0.5
        packed_attention(out, qkv, plan, heads, scale, queries, distance_table(self.bias(heads, HALVES[0]), scale))

    def mask(self, qkv: Tensor, heads: int) -> Tensor:
        return self.bias(heads, HALVES[0])[None, :, distances(len(qkv)).clamp(-self.last, self.last) + self.last].to(
            qkv.dtype
        )


@dataclass(frozen=True)
class Windowed(Plain):
    """Each query sees keys at most `window` tokens away, in causal attention none after it; `sharing` queries a key."""

    window: int | None = None
    is_causal: bool = False
    sharing: int = 1

    def shared(self) -> int:
        return self.sharing

    def launch(self, out: Tensor, qkv: Tensor, plan: Tensor, heads: int, queries: int) -> None:
        of = Heads(self.sharing * heads, heads, out.shape[1] // (self.sharing * heads))
        windowed_attention(out, qkv, plan, of, of.dim**-0.5, queries, self.window, is_causal=self.is_causal)

    def mask(self, qkv: Tensor, heads: int) -> Tensor:
        away, length = distances(len(qkv)), len(qkv)
        window = length if self.window is None else self.window
        return (away >= -window) & (away <= (0 if self.is_causal else window))


PLAIN = Plain()
CAUSAL, NEAR, NEAR_CAUSAL, SHARED, ALL = (
    Windowed(is_causal=True),
    Windowed(64),
    Windowed(37, is_causal=True),
    Windowed(100, is_causal=True, sharing=4),
    Windowed(sharing=7),
)
KINDS = (PLAIN, Biased(20), Biased(128), CAUSAL, NEAR, NEAR_CAUSAL, SHARED, ALL)


def distances(length: int) -> Tensor:
    """[L, L]: key - query."""
    positions = torch.arange(length, device="cuda")
    return positions[None, :] - positions[:, None]


def run(qkv: Tensor, cu_seqlens: np.ndarray, heads: int, queries: int, kind: Plain = PLAIN) -> Tensor:
    out = untouched(qkv, kind.shared() * qkv.shape[1] // (kind.shared() + 2))
    capacity = plan_capacity(int(cu_seqlens[-1]), len(cu_seqlens) - 1, queries)
    plan = torch.from_numpy(plan_items(cu_seqlens, capacity, queries)).cuda()
    kind.launch(out, qkv, plan, heads, queries)
    return out


def half_ulp(out: Tensor) -> float:
    """Of the largest value: torch may be luckier than its precision in a small pack, or where few keys are seen."""
    return torch.finfo(out.dtype).eps / 2 * float(out.abs().max())


def compare(qkv: Tensor, cu_seqlens: np.ndarray, heads: int, queries: int, kind: Plain = PLAIN) -> np.ndarray:
    """[N, 2]: the errors of the kernel and of torch."""
    out = run(qkv, cu_seqlens, heads, queries, kind)
    return errors(lambda rows: kind.torch(rows, heads), out, qkv, cu_seqlens)


@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_batch_is_at_most_twice_as_far_from_float64_as_torch(
    kind: Plain, head_dim: int, dtype: torch.dtype, queries: int
) -> None:
    heads = 5
    qkv, cu_seqlens = make_qkv(EDGES, kind.hidden(heads, head_dim), dtype, seed=head_dim)
    ours, theirs = compare(qkv, cu_seqlens, heads, queries, kind).T
    assert ours.max() <= 2 * theirs.max(), (ours, theirs)  # a NaN fails too


@pytest.mark.parametrize("seed", range(180))
def test_random_packs(seed: int) -> None:
    kind = (PLAIN, Biased(1 + 2 * seed), Windowed(seed, is_causal=seed % 5 < 2), SHARED)[seed // 3 % 4]
    random = np.random.default_rng(seed)
    lengths = random.integers(0, (130, 600)[seed % 2], random.integers(1, 20)).tolist()
    lengths[0] = 1 + 17 * (seed % 60)
    head_dim, dtype, heads = (32, 64, 128)[seed % 3], HALVES[seed // 2 % 2], int(random.integers(1, 6))
    qkv, cu_seqlens = make_qkv(lengths, kind.hidden(heads, head_dim), dtype, seed)
    out = run(qkv, cu_seqlens, heads, QUERIES[seed // 4 % 2], kind)
    ours, theirs = errors(lambda rows: kind.torch(rows, heads), out, qkv, cu_seqlens).max(axis=0)
    assert ours <= 2 * max(theirs, half_ulp(out[: cu_seqlens[-1]]))
    assert (out[cu_seqlens[-1] :] == UNTOUCHED).all()


@pytest.mark.parametrize("queries", QUERIES)
def test_large_scores_and_a_late_maximum(queries: int) -> None:
    """Scores of several hundred, largest at the last key: the reference must move, and nothing may overflow."""
    heads, lengths = 2, (500, 100, 193)
    qkv, cu_seqlens = make_qkv(lengths, heads * 64, torch.float16, seed=5)
    for end in cu_seqlens[1:]:
        qkv[end - 3 : end, : 2 * heads * 64] *= 8
    ours, theirs = compare(qkv, cu_seqlens, heads, queries).T
    assert ours.max() <= 2 * theirs.max(), (ours, theirs)


@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("length", EDGES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bits_do_not_depend_on_batch_mates(kind: Plain, length: int, queries: int) -> None:
    heads, head_dim = 3, 64
    lengths = (50, length, 700, 128, 0, length, 333)
    qkv, cu_seqlens = make_qkv(lengths, kind.hidden(heads, head_dim), torch.float16, seed=length)
    assert_bits_do_not_depend_on_batch_mates(
        lambda qkv, bounds: run(qkv, bounds, heads, queries, kind), qkv, cu_seqlens
    )


@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nan_stays_in_its_sequence(kind: Plain, head_dim: int, queries: int) -> None:
    heads, lengths = 2, (170, 5, 90, 300, 64, 129)
    qkv, cu_seqlens = make_qkv(lengths, kind.hidden(heads, head_dim), torch.float16, seed=1)
    assert_nan_stays_in_its_sequence(lambda: run(qkv, cu_seqlens, heads, queries, kind), qkv, cu_seqlens)


@pytest.mark.parametrize("queries", QUERIES)
def test_a_graph_serves_every_batch_of_its_bucket(queries: int) -> None:
    heads, head_dim, tokens, sequences = 4, 64, 2048, 12
    capacity = plan_capacity(tokens, sequences, queries)
    qkv = torch.zeros(tokens, 3 * heads * head_dim, dtype=torch.float16, device="cuda")
    out = torch.zeros(tokens, heads * head_dim, dtype=torch.float16, device="cuda")
    plan = torch.zeros(capacity, 2, dtype=torch.int32, device="cuda")
    graph = captured(lambda: packed_attention(out, qkv, plan, heads, 0.125, queries))
    for seed in range(5):
        lengths = np.random.default_rng(seed).integers(0, 171, sequences).tolist()
        fresh, cu_seqlens = make_qkv(lengths, heads * head_dim, torch.float16, seed)
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
    qkv, cu_seqlens = make_qkv(lengths, heads * head_dim, torch.float16, seed=0)
    ours, theirs = compare(qkv, cu_seqlens, heads, queries).max(axis=0)
    assert ours <= 2 * theirs


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_sequence_of_8191_tokens(kind: Plain) -> None:
    heads, head_dim = 1, 64
    qkv, cu_seqlens = make_qkv((8191,), kind.hidden(heads, head_dim), torch.bfloat16, seed=2)
    out = run(qkv, cu_seqlens, heads, 128, kind)
    ours, theirs = errors(lambda rows: kind.torch(rows, heads), out, qkv, cu_seqlens).max(axis=0)
    assert ours <= 2 * max(theirs, half_ulp(out[: cu_seqlens[-1]]))


def test_wrong_types_and_shapes_are_refused() -> None:
    out, qkv = (torch.zeros(4, width, dtype=torch.float16, device="cuda") for width in (256, 768))
    plan = torch.zeros(8, 2, dtype=torch.int32, device="cuda")
    for wrong in (qkv.bfloat16(), qkv[:, :767], qkv.repeat(1, 2)[:, :768]):
        with pytest.raises(ValueError, match="qkv must be"):
            packed_attention(out, wrong, plan, 4, 0.125)
    with pytest.raises(ValueError, match="bias must be"):
        packed_attention(out, qkv, plan, 4, 0.125, bias=torch.zeros(4, 258, device="cuda"))
    with pytest.raises(ValueError, match="qkv must be"):
        windowed_attention(out, qkv, plan, Heads(4, 2, 64), 0.125)
    with pytest.raises(ValueError, match="plan must be"):
        packed_attention(out, qkv, plan.long(), 4, 0.125)


@pytest.mark.parametrize("queries", QUERIES)
def test_a_layer_of_t5_attends_as_in_transformers(queries: int) -> None:
    """Its own buckets, up to 600 tokens; queries times sqrt(d), as T5 does not scale its scores."""
    heads, head_dim, lengths = 4, 64, (600, 1, 128, 129, 500)
    torch.manual_seed(0)
    layer: Any = T5Attention(T5Config(d_model=256, num_heads=heads, d_kv=head_dim), True, 0).cuda().eval()
    torch.nn.init.normal_(layer.relative_attention_bias.weight)
    buckets = distance_buckets(torch.arange(-128, 129, device="cuda"), 32, 128)
    bias = layer.relative_attention_bias.weight[buckets].T.detach().half()
    qkv, cu_seqlens = make_qkv(lengths, heads * head_dim, torch.float16, seed=3)
    out = torch.empty(len(qkv), heads * head_dim, dtype=torch.float16, device="cuda")
    plan = torch.from_numpy(plan_items(cu_seqlens, 32, queries)).cuda()
    packed_attention(out, qkv, plan, heads, 0.125, queries, distance_table(bias, 0.125))
    for start, end in pairwise(cu_seqlens):
        query, key, value = qkv[start:end].double().view(end - start, 3, heads, head_dim).permute(1, 2, 0, 3)
        own = layer.compute_bias(int(end - start), int(end - start), device="cuda")[0].half().double()
        exact = torch.softmax(query @ key.mT / 8 + own, -1) @ value
        got = out[start:end].view(-1, heads, head_dim).transpose(0, 1).double()
        assert (got - exact).norm() <= 1e-3 * exact.norm()
