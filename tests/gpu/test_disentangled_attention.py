"""Disentangled attention on a GPU, against float64, torch in the same precision, and transformers' own module.

By both kernels: the one for every device, and that of long sequences on Hopper.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.deberta_v2 import modeling_deberta_v2

from penstock.engine.kernels.disentangled_attention import disentangled_attention
from penstock.engine.kernels.long_disentangled import QUERIES, by_distance, long_disentangled
from penstock.engine.kernels.packed_attention import plan_capacity, plan_items
from penstock.engine.model.positions import relative_rows
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

TRANSFORMERS: Any = modeling_deberta_v2  # untyped
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300, 512)
BUCKETS, POSITIONS = 256, 512  # as published
REACH = 1024
TERMS = (("c2p", "p2c"), ("c2p",), ("p2c",))
LONG = pytest.param(
    True,
    id="long",
    marks=pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"
    ),
)
each_kernel = pytest.mark.parametrize("is_long", [pytest.param(False, id="any"), LONG])


class Layer(NamedTuple):
    """Operands that stay the same from batch to batch."""

    heads: int
    kr: Tensor | None
    qr: Tensor | None
    table: Tensor
    scale: float
    is_long: bool = False


def plan_of(cu_seqlens: np.ndarray, capacity: int | None = None) -> Tensor:
    """Of the long kernel."""
    if capacity is None:
        capacity = plan_capacity(int(cu_seqlens[-1]), len(cu_seqlens) - 1, QUERIES)
    return torch.from_numpy(plan_items(cu_seqlens, capacity, QUERIES)).cuda()


def embeddings_by_distance(layer: Layer) -> tuple[Tensor, Tensor]:
    """For the long kernel."""
    assert layer.kr is not None
    assert layer.qr is not None
    return by_distance(layer.kr, layer.table), by_distance(layer.qr, layer.table)


def launch_long(layer: Layer, out: Tensor, qkv: Tensor, plan: Tensor) -> None:
    long_disentangled(out, qkv, plan, layer.heads, *embeddings_by_distance(layer), layer.scale)


def make_layer(
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    terms: Sequence[str] = TERMS[0],
    buckets: int = BUCKETS,
    *,
    is_long: bool = False,
) -> Layer:
    generator = torch.Generator("cuda").manual_seed(heads + head_dim)

    def embeddings(term: str) -> Tensor | None:
        random = torch.randn(2 * buckets, heads * head_dim, generator=generator, device="cuda")
        return random.to(dtype) if term in terms else None

    table = torch.from_numpy(relative_rows(REACH, buckets, POSITIONS)).cuda()
    scale = 1 / math.sqrt(head_dim * (1 + len(terms)))
    return Layer(heads, embeddings("c2p"), embeddings("p2c"), table, scale, is_long)


def run(layer: Layer, qkv: Tensor, cu_seqlens: np.ndarray, max_seqlen: int | None = None) -> Tensor:
    longest = max(1, int(np.diff(cu_seqlens).max())) if max_seqlen is None else max_seqlen
    out = untouched(qkv)
    if layer.is_long:
        launch_long(layer, out, qkv, plan_of(cu_seqlens))
        return out
    cu_seqlens_device = torch.from_numpy(cu_seqlens).cuda()
    disentangled_attention(
        out, qkv, cu_seqlens_device, longest, layer.heads, layer.kr, layer.qr, layer.table, layer.scale
    )
    return out


def torch_attention(layer: Layer, qkv: Tensor) -> Tensor:
    """One sequence [L, 3H] to [L, H], in qkv's precision and in the order of transformers' operations."""
    length, width = qkv.shape

    def split(rows: Tensor) -> Tensor:
        return rows.to(qkv.dtype).view(len(rows), layer.heads, -1).transpose(0, 1)

    query, key, value = (split(part) for part in qkv.chunk(3, dim=1))
    position = torch.arange(length, device="cuda")
    rows = layer.table[position[:, None] - position[None, :] + REACH - 1].long().expand(layer.heads, length, length)
    scores = query @ (key.mT * layer.scale)
    if layer.kr is not None:
        scores = scores + (query @ split(layer.kr).mT).gather(2, rows) * layer.scale
    if layer.qr is not None:
        scores = scores + (split(layer.qr) @ key.mT).gather(1, rows) * layer.scale
    return (torch.softmax(scores, dim=2) @ value).transpose(0, 1).reshape(length, width // 3)


def compare(layer: Layer, out: Tensor, qkv: Tensor, cu_seqlens: np.ndarray) -> np.ndarray:
    """[N, 2]: the errors of the kernel and of torch."""
    return errors(lambda rows: torch_attention(layer, rows), out, qkv, cu_seqlens)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("head_dim", "terms", "is_long"),
    [
        *[(head_dim, terms, False) for head_dim in (32, 64) for terms in TERMS],
        pytest.param(64, TERMS[0], *LONG.values, marks=LONG.marks),
    ],
)
def test_each_sequence_is_at_most_twice_as_far_from_float64_as_torch(
    head_dim: int, terms: Sequence[str], is_long: bool, dtype: torch.dtype
) -> None:
    heads = 12
    layer = make_layer(heads, head_dim, dtype, terms, is_long=is_long)
    qkv, cu_seqlens = make_qkv(LENGTHS, heads * head_dim, dtype, seed=head_dim)
    out = run(layer, qkv, cu_seqlens)
    ours, theirs = compare(layer, out, qkv, cu_seqlens).T
    assert (ours <= 2 * theirs).all(), (ours, theirs)  # a NaN fails too
    assert (out[-3:] == UNTOUCHED).all()


@pytest.mark.parametrize("seed", range(60))
def test_random_packs(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, random.choice([20, 130, 520]), random.integers(1, 20))
    lengths[0] = 1 + seed
    heads, head_dim, dtype, terms = (
        int(random.integers(1, 5)),
        (32, 64)[seed % 2],
        HALVES[seed // 2 % 2],
        TERMS[seed % 3],
    )
    layer = make_layer(heads, head_dim, dtype, terms)
    qkv, cu_seqlens = make_qkv(lengths, heads * head_dim, dtype, seed)
    out = run(layer, qkv, cu_seqlens)
    ours, theirs = compare(layer, out, qkv, cu_seqlens).max(axis=0)
    assert ours <= 2 * theirs
    assert (out[cu_seqlens[-1] :] == UNTOUCHED).all()


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("is_long", [LONG])
def test_random_packs_of_the_long_kernel(seed: int, is_long: bool) -> None:
    """Sequences that are no, one or several blocks of queries, of several units of work a block."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, random.choice([20, 200, 700]), random.integers(1, 40))
    lengths[0] = 1 + 7 * seed
    heads, dtype = int(random.integers(1, 17)), HALVES[seed % 2]
    layer = make_layer(heads, 64, dtype, is_long=is_long)
    qkv, cu_seqlens = make_qkv(lengths, heads * 64, dtype, seed)
    out = run(layer, qkv, cu_seqlens)
    ours, theirs = compare(layer, out, qkv, cu_seqlens).max(axis=0)
    assert ours <= 2 * theirs
    assert (out[cu_seqlens[-1] :] == UNTOUCHED).all()


@each_kernel
@pytest.mark.parametrize("buckets", [16, 256])
def test_sequences_beyond_the_positions(buckets: int, is_long: bool) -> None:
    layer = make_layer(2, 64, torch.float16, buckets=buckets, is_long=is_long)
    qkv, cu_seqlens = make_qkv((700, 1024, 1000), 128, torch.float16, seed=3)
    ours, theirs = compare(layer, run(layer, qkv, cu_seqlens), qkv, cu_seqlens).T
    assert (ours <= 2 * theirs).all(), (ours, theirs)


@each_kernel
def test_nothing_is_assumed_of_the_table(is_long: bool) -> None:
    layer = make_layer(2, 64, torch.float16, is_long=is_long)
    generator = torch.Generator("cuda").manual_seed(1)
    table = torch.randint(0, 2 * BUCKETS, layer.table.shape, generator=generator, device="cuda", dtype=torch.int32)
    layer = layer._replace(table=table)
    qkv, cu_seqlens = make_qkv((200, 77), 128, torch.float16, seed=4)
    ours, theirs = compare(layer, run(layer, qkv, cu_seqlens), qkv, cu_seqlens).T
    assert (ours <= 2 * theirs).all(), (ours, theirs)


@each_kernel
def test_large_scores_and_a_late_maximum(is_long: bool) -> None:
    """Scores of several hundred, largest at the last keys: the reference must move, and nothing may overflow."""
    layer = make_layer(2, 64, torch.float16, is_long=is_long)
    qkv, cu_seqlens = make_qkv((500, 100, 40), 128, torch.float16, seed=5)
    for end in cu_seqlens[1:]:
        qkv[end - 3 : end, : 2 * 128] *= 8
    ours, theirs = compare(layer, run(layer, qkv, cu_seqlens), qkv, cu_seqlens).T
    assert (ours <= 2 * theirs).all(), (ours, theirs)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 300, 512])
def test_as_near_to_transformers_in_float64_as_transformers_in_float16(length: int, terms: Sequence[str]) -> None:
    """From hidden states on: the projections are torch's in half precision, on both sides."""
    heads, hidden = 4, 256
    config = TRANSFORMERS.DebertaV2Config(
        hidden_size=hidden,
        num_attention_heads=heads,
        relative_attention=True,
        pos_att_type=list(terms),
        position_buckets=BUCKETS,
        max_relative_positions=POSITIONS,
        share_att_key=True,
    )
    torch.manual_seed(length)
    module = TRANSFORMERS.DisentangledSelfAttention(config).half().eval()
    states = torch.randn(1, length, hidden).half()
    embeddings = torch.randn(2 * BUCKETS, hidden).half()
    relative = TRANSFORMERS.build_relative_position(states, states, BUCKETS, POSITIONS).cuda()

    def attend(dtype: torch.dtype) -> Tensor:
        module.to("cuda", dtype)
        mask = torch.ones(1, 1, length, length, device="cuda")
        result: Tensor = module(
            states.to("cuda", dtype), mask, relative_pos=relative, rel_embeddings=embeddings.to("cuda", dtype)
        )[0][0]
        return result

    with torch.no_grad():
        exact = attend(torch.float64)
        theirs = attend(torch.float16)
        projections = (module.query_proj, module.key_proj, module.value_proj)
        qkv = torch.cat([projection(states[0].cuda()) for projection in projections], dim=1).contiguous()
        kr, qr = module.key_proj(embeddings.cuda()), module.query_proj(embeddings.cuda())
    layer = make_layer(heads, hidden // heads, torch.float16, terms)
    layer = layer._replace(kr=kr if "c2p" in terms else None, qr=qr if "p2c" in terms else None)
    ours = run(layer, qkv, np.array([0, length], np.int32))
    ours_error, their_error = ((result.double() - exact).abs().max().item() for result in (ours, theirs))
    assert ours_error <= 2 * their_error


@each_kernel
@pytest.mark.parametrize("length", LENGTHS)
def test_bits_do_not_depend_on_batch_mates(length: int, is_long: bool) -> None:
    layer = make_layer(3, 64, torch.float16, is_long=is_long)
    lengths = (50, length, 7, 400, 0, length, 33)
    qkv, cu_seqlens = make_qkv(lengths, 192, torch.float16, seed=length)
    assert_bits_do_not_depend_on_batch_mates(
        lambda qkv, bounds: run(layer, qkv, bounds, max_seqlen=1024 if len(bounds) > 2 else None), qkv, cu_seqlens
    )


@pytest.mark.parametrize(
    ("head_dim", "terms", "is_long"),
    [
        *[(head_dim, terms, False) for head_dim in (32, 64) for terms in TERMS],
        pytest.param(64, TERMS[0], *LONG.values, marks=LONG.marks),
    ],
)
def test_nan_stays_in_its_sequence(head_dim: int, terms: Sequence[str], is_long: bool) -> None:
    layer = make_layer(2, head_dim, torch.float16, terms, is_long=is_long)
    lengths = (17, 5, 90, 1, 64, 131, 500, 200)
    qkv, cu_seqlens = make_qkv(lengths, 2 * head_dim, torch.float16, seed=1)
    assert_nan_stays_in_its_sequence(lambda: run(layer, qkv, cu_seqlens), qkv, cu_seqlens)


@each_kernel
def test_a_graph_serves_every_batch_of_its_bucket(is_long: bool) -> None:
    heads, head_dim, tokens, sequences, longest = 4, 64, 1024, 8, 256
    layer = make_layer(heads, head_dim, torch.float16, is_long=is_long)
    qkv = torch.zeros(tokens, 3 * heads * head_dim, dtype=torch.float16, device="cuda")
    out = torch.zeros(tokens, heads * head_dim, dtype=torch.float16, device="cuda")
    cu_seqlens = torch.zeros(sequences + 1, dtype=torch.int32, device="cuda")
    capacity = plan_capacity(tokens, sequences, QUERIES)
    plan = torch.zeros(capacity, 2, dtype=torch.int32, device="cuda")
    relative = embeddings_by_distance(layer)

    def launch() -> None:
        if is_long:
            long_disentangled(out, qkv, plan, heads, *relative, layer.scale)
            return
        disentangled_attention(out, qkv, cu_seqlens, longest, heads, layer.kr, layer.qr, layer.table, layer.scale)

    graph = captured(launch)
    for seed in range(5):
        random = np.random.default_rng(seed)
        lengths = np.zeros(sequences, np.int32)
        used = int(random.integers(1, sequences + 1))
        lengths[:used] = random.integers(1, min(longest, tokens // used) + 1, used)
        fresh, starts = make_qkv(lengths, heads * head_dim, torch.float16, seed)
        total = int(starts[-1])
        qkv[:total] = fresh[:total]
        qkv[total:] = math.nan
        cu_seqlens.copy_(torch.from_numpy(starts))
        plan.copy_(plan_of(starts, capacity))
        out.fill_(UNTOUCHED)
        graph.replay()
        assert torch.equal(out[:total], run(layer, fresh, starts)[:total])
        assert (out[total:] == UNTOUCHED).all()


def test_what_does_not_fit_is_refused() -> None:
    layer = make_layer(2, 64, torch.float16)
    qkv, cu_seqlens = make_qkv((20,), 128, torch.float16, seed=0)
    assert layer.kr is not None
    with pytest.raises(ValueError, match="plain attention"):
        run(layer._replace(kr=None, qr=None), qkv, cu_seqlens)
    with pytest.raises(ValueError, match="kr must be"):
        run(layer._replace(kr=layer.kr[:, :64].contiguous()), qkv, cu_seqlens)
    with pytest.raises(ValueError, match="reaches 1 to 1024"):
        run(layer, qkv, cu_seqlens, max_seqlen=1025)
    with pytest.raises(ValueError, match="a head must have"):
        run(layer._replace(heads=4), qkv[:, : 3 * 64].contiguous(), cu_seqlens)
    with pytest.raises(ValueError, match="scale"):
        run(layer._replace(scale=0.0), qkv, cu_seqlens)
    with pytest.raises(ValueError, match="table must be"):
        run(layer._replace(table=layer.table.long()), qkv, cu_seqlens)
