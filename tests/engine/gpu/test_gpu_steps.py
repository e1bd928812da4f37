"""Steps of a program on a GPU, with torch on the CPU in place of each kernel's launch.

Arguments, order and aliasing are tested here for every family; the kernels themselves in tests/gpu.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.cpu.norm import normalise
from penstock.engine.cpu.ops import CpuOps, encode_on_cpu, prepare_for_cpu
from penstock.engine.families import family_of
from penstock.engine.gpu import ops, products
from penstock.engine.kernels import mid_product as mid
from penstock.engine.kernels.epilogues import turned
from penstock.engine.kernels.mid_product import MidTile
from penstock.engine.kernels.short_product import TILES, Tile
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.dense import activate
from penstock.engine.model.layout import sort_by_length
from penstock.engine.model.program import record
from penstock.engine.model.weights import Embeddings, EncoderWeights, Heads, Norm, RotaryAttention
from tests.engine.gpu.random_encoders import COMBINATIONS, random_encoder, without_turn
from tests.engine.helpers import GPU_FAMILIES, pack, random_sequences, save_encoder

FLOAT = torch.float32
KINDS = ("cublas", "short", "mid", "wide")  # of products


def embed_norm(out: Tensor, ids: Tensor, at: Tensor, kinds: Tensor | None, tables: Embeddings) -> None:
    total, kinds = tables.words[ids.long()], torch.zeros_like(at) if kinds is None else kinds
    for table, rows in ((tables.positions, at), (tables.token_types, kinds)):
        total = total if table is None else total + table[rows.long()]
    out.copy_(total if tables.norm is None else normalise(total, tables.norm))


def bias_activation(x: Tensor, bias: Tensor | None, kind: str) -> None:
    x.copy_(activate(x if bias is None else x + bias, {"gelu_tanh": "gelu_new"}.get(kind, kind)))


def gated(out: Tensor, x: Tensor, kind: str) -> None:
    width = out.shape[1]
    out.copy_(activate(x[:, :width].clone(), kind) * x[:, width:])


def residual_norm(
    out: Tensor, x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm, total: Tensor | None = None
) -> None:
    whole = sum((one for one in (bias, residual) if one is not None), x)
    if total is not None:
        assert residual is not None
        assert out.data_ptr() not in (total.data_ptr(), x.data_ptr(), residual.data_ptr())
        total.copy_(whole)
        whole = total
    out.copy_(normalise(whole, norm))


def inner_norm(out: Tensor, total: Tensor, x: Tensor, inner: Norm, residual: Tensor, norm: Norm) -> None:
    residual_norm(out, normalise(x, inner), None, residual, norm, total)


def short_product(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, tile: Tile) -> None:
    assert tile in TILES
    out.copy_(activate(F.linear(x, weight, bias), {"gelu_tanh": "gelu_new"}.get(kind, kind)))


def split_product(parts: Tensor, x: Tensor, weight: Tensor, tile: Tile) -> None:
    assert tile in TILES
    slices = zip(parts, x.chunk(len(parts), 1), weight.chunk(len(parts), 1), strict=True)
    for part, some_x, some_weight in slices:
        part.copy_(F.linear(some_x, some_weight))


def mid_product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str,
    tile: MidTile,
    *,
    is_gated: bool = False,
    lets_next_late: bool = False,
) -> None:
    assert tile in mid.TILES
    wide_product(out, x, weight, bias, kind, is_gated=is_gated)


def mid_turned(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    positions: Tensor,
    heads: Heads,
    rotary: RotaryAttention,
    tile: MidTile,
) -> None:
    assert tile in mid.TILES
    turned_product(out, x, weight, bias, positions, heads, rotary)


def mid_parts(parts: Tensor, x: Tensor, weight: Tensor, tile: MidTile) -> None:
    assert tile in mid.TILES
    split_product(parts, x, weight, TILES[0])


def split_norm(
    out: Tensor, parts: Tensor, bias: Tensor | None, residual: Tensor, norm: Norm, total: Tensor | None = None
) -> None:
    residual_norm(out, parts.sum(0), bias, residual, norm, total)


def wide_product(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, *, is_gated: bool = False
) -> None:
    if is_gated:
        gated(out, F.linear(x, weight, bias), kind)
        return
    out.copy_(activate(F.linear(x, weight, bias), {"gelu_tanh": "gelu_new"}.get(kind, kind)))


def turned_product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    positions: Tensor,
    heads: Heads,
    rotary: RotaryAttention,
) -> None:
    assert turned(heads.dim, rotary) is not None
    out.copy_(F.linear(x, weight, bias))
    rotate(out, positions, heads, rotary)


def rotate(qkv: Tensor, positions: Tensor, heads: Heads, rotary: RotaryAttention) -> None:
    view = qkv.view(len(qkv), -1, heads.dim)
    cosines, sines = (table[positions.long()][:, None] for table in (rotary.cosines, rotary.sines))
    for start, count, norm in ((0, heads.queries, rotary.query_norm), (heads.queries, heads.keys, rotary.key_norm)):
        part = view[:, start : start + count]
        first, second = (part if norm is None else normalise(part, norm)).chunk(2, dim=-1)
        part.copy_(torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1))


LAUNCHES = (
    embed_norm,
    bias_activation,
    gated,
    residual_norm,
    inner_norm,
    short_product,
    split_product,
    mid_product,
    mid_turned,
    mid_parts,
    split_norm,
    wide_product,
    turned_product,
    rotate,
)


@pytest.mark.slow
@pytest.mark.parametrize("family", GPU_FAMILIES)
@pytest.mark.parametrize("types", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_compute_the_forward(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str, types: bool, kind: str
) -> None:
    save_encoder(tmp_path, family)
    checkpoint = read_checkpoint(tmp_path)
    assert_steps_compute_the_forward(monkeypatch, family_of(checkpoint).encoder(checkpoint), kind, types=types)


@pytest.mark.parametrize(
    ("name", "epilogues"),
    [
        ("post-norm, rotary, gated (NomicBERT, GTE)", {"Turned<32>", "Gated<Silu>"}),
        ("causal, grouped keys, their norms (Qwen3)", {"Identity", "Gated<Silu>"}),
        ("sandwich, wide heads, windows (Gemma 3)", {"Identity", "Gated<GeluTanh>"}),
        ("biases and RMSNorm (T5)", {"Identity", "Relu"}),
    ],
)
def test_epilogues_that_are_compiled_ahead(name: str, epilogues: set[str]) -> None:
    encoder = ops.prepare_for_gpu(random_encoder(COMBINATIONS[name]), FLOAT, torch.device("cpu"))
    assert ops.epilogues_of(encoder) == epilogues


@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_compute_the_forward_of_any_combination(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    assert_steps_compute_the_forward(monkeypatch, random_encoder(COMBINATIONS[name]), kind)


def assert_steps_compute_the_forward(
    monkeypatch: pytest.MonkeyPatch, weights: EncoderWeights, kind: str, *, types: bool = False
) -> None:
    for launch in LAUNCHES:
        monkeypatch.setattr(ops, launch.__name__, launch)
    monkeypatch.setattr(products, "MAX_ROWS", 256 if kind == "short" else 0)
    monkeypatch.setattr(products, "_MID_ROWS", range(1, 50) if kind == "mid" else range(0))
    monkeypatch.setattr(products, "_SPLIT_US", 0.0)  # so that some products are split
    monkeypatch.setattr(products, "_SUM_DEPTH", 64)
    for least in ("_WIDE_ROWS", "_WIDE_PLAIN_ROWS", "_WIDE_DEPTH"):
        monkeypatch.setattr(products, least, 1)
    sequences = random_sequences((9, 1, 30, 9))
    table = weights.embeddings.token_types
    has_types = types and table is not None and len(table) > 1
    kinds = [np.arange(len(sequence), dtype=np.int32) % 2 for sequence in sequences] if has_types else None
    batch = pack(sequences, types=kinds)
    layout = sort_by_length(batch.cu_seqlens)
    ids = torch.from_numpy(batch.token_ids[layout.tokens])
    of_type = None if batch.token_type_ids is None else torch.from_numpy(batch.token_type_ids[layout.tokens])
    cpu = CpuOps(layout, ids, of_type, weights.heads, FLOAT)
    monkeypatch.setattr(ops, "attend", lambda out, qkv, kind, *_: out.copy_(cpu.attend(qkv, without_turn(kind))))

    encoder = ops.prepare_for_gpu(weights, FLOAT, torch.device("cpu"))
    program = record(encoder, lambda dense: dense.width, FLOAT.itemsize)
    inputs = SimpleNamespace(token_ids=ids, positions=torch.from_numpy(layout.positions), token_types=of_type)
    buffers = [torch.full((len(layout.tokens), width), float("nan")) for width in program.widths]
    scratch = torch.full((256 * 200 if kind in {"short", "mid"} else 0,), float("nan"))
    given = products.Products(scratch, wide_groups={"wide": 1, "mid": 12}.get(kind, 0))
    tables = SimpleNamespace(heads=weights.heads)
    found = program.run(ops.GpuOps(cast(Any, inputs), cast(Any, tables), given).by_name(), buffers)
    expected = encode_on_cpu(prepare_for_cpu(weights, FLOAT), batch, layout, FLOAT)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
