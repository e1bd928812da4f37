"""Long attention on a GPU of compute capability 9.0, against float64 and against torch's own in the same precision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.kernels.long_attention import long_attention
from penstock.engine.kernels.packed_attention import plan_capacity, plan_items
from penstock.engine.model.weights import Heads
from tests.gpu.references import (
    HALVES,
    UNTOUCHED,
    assert_bits_do_not_depend_on_batch_mates,
    assert_nan_stays_in_its_sequence,
    captured,
    errors,
    randn,
    untouched,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"
    ),
]
EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 300, 319, 320, 321, 511, 512, 513, 1000, 1024)


@dataclass(frozen=True)
class Form:
    """A kernel, and how many heads share keys. `heads` below are of keys."""

    head_dim: int
    queries: int
    is_causal: bool = False
    sharing: int = 1

    def of(self, heads: int) -> Heads:
        return Heads(self.sharing * heads, heads, self.head_dim)

    def qkv(
        self, lengths: Sequence[int] | np.ndarray, heads: int, dtype: torch.dtype, seed: int
    ) -> tuple[Tensor, np.ndarray]:
        """As `make_qkv`."""
        cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        qkv = randn(int(cu_seqlens[-1]) + 3, (self.sharing + 2) * heads * self.head_dim, dtype=dtype, seed=seed)
        qkv[-3:] = math.nan
        return qkv, cu_seqlens

    def plan(self, cu_seqlens: np.ndarray, capacity: int | None = None) -> Tensor:
        if capacity is None:
            capacity = plan_capacity(int(cu_seqlens[-1]), len(cu_seqlens) - 1, self.queries)
        return torch.from_numpy(plan_items(cu_seqlens, capacity, self.queries, is_causal=self.is_causal)).cuda()

    def launch(self, out: Tensor, qkv: Tensor, plan: Tensor, heads: int) -> None:
        scale = self.head_dim**-0.5
        long_attention(out, qkv, plan, self.of(heads), scale, self.queries, is_causal=self.is_causal)

    def run(self, qkv: Tensor, cu_seqlens: np.ndarray, heads: int) -> Tensor:
        out = untouched(qkv, self.of(heads).width)
        self.launch(out, qkv, self.plan(cu_seqlens), heads)
        return out

    def torch(self, rows: Tensor, heads: int) -> Tensor:
        parts = [self.sharing * heads, heads, heads]
        query, *shared = (x.transpose(0, 1) for x in torch.split(rows.view(len(rows), -1, self.head_dim), parts, 1))
        key, value = (x.repeat_interleave(self.sharing, dim=0) for x in shared)
        context = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=self.is_causal)
        return context[0].transpose(0, 1).flatten(1)


FORMS = (
    Form(64, 192),
    Form(64, 128),
    Form(128, 128),
    Form(64, 128, is_causal=True),
    Form(128, 128, is_causal=True),
    Form(64, 192, sharing=3),
    Form(128, 128, sharing=2),
    Form(64, 128, is_causal=True, sharing=7),
    Form(128, 128, is_causal=True, sharing=2),
)
each_form = pytest.mark.parametrize("form", FORMS, ids=str)


def assert_exact(form: Form, qkv: Tensor, cu_seqlens: np.ndarray, heads: int) -> None:
    """The largest error is at most twice torch's, or rounding's where torch is luckier; rows after the end are left."""
    out, total = form.run(qkv, cu_seqlens, heads), int(cu_seqlens[-1])
    ours, theirs = errors(lambda rows: form.torch(rows, heads), out, qkv, cu_seqlens).max(axis=0)
    rounding = torch.finfo(out.dtype).eps / 2 * float(out[:total].abs().max())
    assert ours <= 2 * max(theirs, rounding), (ours, theirs)  # a NaN fails too
    assert (out[total:] == UNTOUCHED).all()


@pytest.mark.parametrize("dtype", HALVES)
@each_form
@pytest.mark.parametrize("lengths", [EDGES, (1,), (8191,), (40, 3) * 100, (4096, 1, 2000)], ids=str)
def test_a_batch_is_at_most_twice_as_far_from_float64_as_torch(
    lengths: Sequence[int], form: Form, dtype: torch.dtype
) -> None:
    qkv, cu_seqlens = form.qkv(lengths, 2, dtype, seed=form.head_dim)
    assert_exact(form, qkv, cu_seqlens, 2)


@pytest.mark.parametrize("seed", range(120))
def test_random_packs(seed: int) -> None:
    random, form = np.random.default_rng(seed), FORMS[seed % len(FORMS)]
    lengths = random.integers(0, (130, 600, 2001)[seed // 2 % 3], random.integers(1, 20)).tolist()
    lengths[0] = 1 + 17 * (seed % 60)
    heads = int(random.integers(1, 6))
    qkv, cu_seqlens = form.qkv(lengths, heads, HALVES[seed % 2], seed)
    assert_exact(form, qkv, cu_seqlens, heads)


@pytest.mark.parametrize("at", [0, -3])
@each_form
def test_large_scores_of_the_first_or_the_last_keys(form: Form, at: int) -> None:
    """Scores of several hundred: the reference must move, and nothing may overflow."""
    qkv, cu_seqlens = form.qkv((500, 100, 193, 1500), 2, torch.float16, seed=5)
    for edge in cu_seqlens[1:] if at else cu_seqlens[:-1]:
        qkv[edge + at : edge + at + 3, : -2 * form.head_dim] *= 8
    assert_exact(form, qkv, cu_seqlens, 2)


@pytest.mark.parametrize("length", EDGES)
@each_form
def test_bits_do_not_depend_on_batch_mates(form: Form, length: int) -> None:
    qkv, cu_seqlens = form.qkv((50, length, 700, 128, 0, length, 333), 3, torch.float16, seed=length)
    assert_bits_do_not_depend_on_batch_mates(lambda qkv, bounds: form.run(qkv, bounds, 3), qkv, cu_seqlens)


@each_form
def test_nan_stays_in_its_sequence(form: Form) -> None:
    """Of many units a block: what one leaves in shared memory, the next may meet."""
    lengths = (170, 5, 90, 300, 64, 129, 1000, 999, *np.random.default_rng(1).integers(1, 400, 120))
    qkv, cu_seqlens = form.qkv(lengths, 2, torch.float16, seed=1)
    assert_nan_stays_in_its_sequence(lambda: form.run(qkv, cu_seqlens, 2), qkv, cu_seqlens)


@each_form
def test_many_runs_have_the_same_bits(form: Form) -> None:
    qkv, cu_seqlens = form.qkv(np.random.default_rng(9).integers(1, 2001, 15), 8, torch.bfloat16, seed=9)
    first = form.run(qkv, cu_seqlens, 8)
    assert all(torch.equal(form.run(qkv, cu_seqlens, 8), first) for _ in range(20))


@each_form
def test_a_graph_serves_every_batch_of_its_bucket(form: Form) -> None:
    heads, tokens, sequences = 4, 4096, 12
    capacity = plan_capacity(tokens, sequences, form.queries)
    width = form.of(heads).width
    qkv = torch.zeros(tokens, width + 2 * heads * form.head_dim, dtype=torch.float16, device="cuda")
    out = torch.zeros(tokens, width, dtype=torch.float16, device="cuda")
    plan = torch.zeros(capacity, 2, dtype=torch.int32, device="cuda")
    graph = captured(lambda: form.launch(out, qkv, plan, heads))
    for seed in range(5):
        lengths = np.random.default_rng(seed).integers(0, 342, sequences).tolist()
        fresh, cu_seqlens = form.qkv(lengths, heads, torch.float16, seed)
        total = int(cu_seqlens[-1])
        qkv[:total] = fresh[:total]
        qkv[total:] = math.nan
        plan.copy_(form.plan(cu_seqlens, capacity))
        out.fill_(UNTOUCHED)
        graph.replay()
        assert torch.equal(out[:total], form.run(fresh, cu_seqlens, heads)[:total])
        assert (out[total:] == UNTOUCHED).all()


def test_wrong_types_and_shapes_are_refused() -> None:
    out, qkv = (torch.zeros(4, width, dtype=torch.float16, device="cuda") for width in (256, 768))
    plan, heads = torch.zeros(8, 2, dtype=torch.int32, device="cuda"), Heads(4, 4, 64)
    for wrong in (qkv.bfloat16(), qkv[:, :767], qkv.repeat(1, 2)[:, :768]):
        with pytest.raises(ValueError, match="qkv must be"):
            long_attention(out, wrong, plan, heads, 0.125)
    with pytest.raises(ValueError, match="qkv must be"):
        long_attention(out, qkv, plan, Heads(4, 2, 64), 0.125)
    with pytest.raises(ValueError, match="plan must be"):
        long_attention(out, qkv, plan.long(), heads, 0.125)
