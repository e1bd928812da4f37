"""Attention on a GPU, qkv [R, (queries + 2 keys) * dim] to context [R, queries * dim].

The launch for each kind of attention and chosen kernel. Where positions are rotary, queries and keys were turned by
`GpuOps.project`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.gpu.choice import AttentionKernel, LongAttention
from penstock.engine.gpu.inputs import Inputs
from penstock.engine.kernels import long_attention as long
from penstock.engine.kernels import long_disentangled as positions
from penstock.engine.kernels.disentangled_attention import disentangled_attention
from penstock.engine.kernels.packed_attention import distance_table, packed_attention, windowed_attention
from penstock.engine.kernels.short_attention import short_attention
from penstock.engine.model.positions import relative_rows
from penstock.engine.model.weights import (
    Attention,
    DisentangledAttention,
    DistanceAttention,
    Encoder,
    Heads,
    PlainAttention,
    RotaryAttention,
)

_QUERIES = {  # of a block, of the kernels that follow `packed_attention.plan_items`
    AttentionKernel.PACKED_64: 64,
    AttentionKernel.PACKED_128: 128,
    AttentionKernel.LONG_128: 128,
    AttentionKernel.LONG_192: 192,
    AttentionKernel.LONG_CAUSAL: 128,
}

log = structlog.get_logger("penstock.engine")


@dataclass(frozen=True, slots=True)
class AttentionTables:
    """Tables of a model's layers, which may share them."""

    heads: Heads
    distance_biases: Mapping[int, Tensor]  # `distance_table` of each `DistanceAttention`, by its id()
    relative_rows: Tensor | None  # int32 [2 * max_tokens - 1]: row of DeBERTa's tables for each distance
    relative: Mapping[int, tuple[Tensor, Tensor]]  # `by_distance` of each `DisentangledAttention`'s two, by its id()

    @classmethod
    def of(cls, encoder: Encoder[Any], device: torch.device, long: LongAttention | None = None) -> "AttentionTables":
        """Of an encoder that was prepared for the device. long: of `prepare_long`."""
        rows, kind, scale = None, encoder.layers[0].attention, 1.0 / math.sqrt(encoder.heads.dim)
        attentions = {id(layer.attention): layer.attention for layer in encoder.layers}
        biases = {
            key: distance_table(one.bias, scale)
            for key, one in attentions.items()
            if isinstance(one, DistanceAttention)
        }
        if isinstance(kind, DisentangledAttention) and encoder.max_tokens is not None:
            table = relative_rows(encoder.max_tokens, kind.num_buckets, kind.max_distance)
            rows = torch.from_numpy(table).to(device)
        relative = {}
        if rows is not None and long is not None:
            relative = {key: _by_distance(one, rows) for key, one in attentions.items()}
        return cls(encoder.heads, biases, rows, relative)


def prepare_long(
    attentions: Sequence[Attention], heads: Heads, dtype: torch.dtype, device: torch.device
) -> LongAttention | None:
    """Compile and load `long_attention` if a layer may use it: for every batch that may. Returns which do, or None.

    attentions: of all layers. `windowed_attention`, in layers with a window, follows the same plan of 128 queries.
    Disentangled ones have `long_disentangled` instead.
    """
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    try:
        if all(map(_has_both_terms, attentions)):
            return _prepare_disentangled(heads, dtype, index)
        return _prepare_plain(attentions, heads, dtype, index)
    except UnsupportedDevice as error:
        log.warning("long_attention_off", error=str(error).partition("\n")[0])
        return None


def _prepare_disentangled(heads: Heads, dtype: torch.dtype, index: int) -> LongAttention | None:
    if not positions.supports(heads.dim, index):
        return None
    chosen = LongAttention.of_disentangled()
    positions.prepare(dtype, index)
    return chosen


def _prepare_plain(
    attentions: Sequence[Attention], heads: Heads, dtype: torch.dtype, index: int
) -> LongAttention | None:
    causal = {_is_causal(attention) for attention in attentions if _has_no_window(attention)}
    if not causal or not long.supports(heads.dim, index):
        return None
    has_windows = not all(map(_has_no_window, attentions))
    has_own_plan = heads.dim == 64 and causal == {False} and not has_windows
    kernel = AttentionKernel.LONG_192 if has_own_plan else AttentionKernel.LONG_128
    if causal == {True}:
        kernel = AttentionKernel.LONG_CAUSAL
    for queries in {_QUERIES[kernel], _QUERIES[AttentionKernel.LONG_128]}:  # the second for few rows
        for is_causal in causal:
            long.prepare(heads.dim, queries, is_causal, dtype, index)
    return LongAttention.of(kernel, heads.dim, is_causal=True in causal, has_windows=has_windows)


def attend(out: Tensor, qkv: Tensor, attention: Attention, inputs: Inputs, tables: AttentionTables) -> Tensor:
    """The context, in `out` or in a tensor of torch's. `inputs.shape.kernel` was chosen for `attention`."""
    kernel, plan, heads = inputs.shape.kernel, inputs.attention_plan, tables.heads
    num_heads, scale, queries = heads.queries, 1.0 / math.sqrt(heads.dim), _QUERIES.get(kernel, 0)
    bias = tables.distance_biases[id(attention)] if isinstance(attention, DistanceAttention) else None
    match kernel, attention:
        case AttentionKernel.SHORT, PlainAttention() | DistanceAttention() | RotaryAttention():
            short_attention(out, qkv, plan, num_heads, scale, bias)
        case (
            AttentionKernel.LONG_128 | AttentionKernel.LONG_192 | AttentionKernel.LONG_CAUSAL,
            PlainAttention() | RotaryAttention(window=None),
        ):
            long.long_attention(out, qkv, plan, heads, scale, queries, is_causal=_is_causal(attention))
        case (
            AttentionKernel.PACKED_64
            | AttentionKernel.PACKED_128
            | AttentionKernel.LONG_128
            | AttentionKernel.LONG_CAUSAL,
            RotaryAttention(),
        ) if not _sees_all(attention, heads):
            near, is_causal = attention.window, attention.is_causal
            windowed_attention(out, qkv, plan, heads, scale, queries, near, is_causal=is_causal)
        case (
            AttentionKernel.PACKED_64 | AttentionKernel.PACKED_128,
            PlainAttention() | DistanceAttention() | RotaryAttention(),
        ):
            packed_attention(out, qkv, plan, num_heads, scale, queries, bias)
        case AttentionKernel.DISENTANGLED, DisentangledAttention():
            _disentangled(out, qkv, attention, inputs, tables)
        case AttentionKernel.LONG_DISENTANGLED, DisentangledAttention():
            kr, qr = tables.relative[id(attention)]
            positions.long_disentangled(out, qkv, plan, num_heads, kr, qr, _disentangled_scale(attention, heads))
        case AttentionKernel.FLASH, PlainAttention() | RotaryAttention():
            return _flash(qkv, attention, inputs, heads)
        case _:
            raise RuntimeError(f"{kernel} was chosen for {type(attention).__name__}. This is a bug.")
    return out


def _has_no_window(attention: Attention) -> bool:
    """Whether it is plain or causal attention, once rotary positions are turned."""
    if isinstance(attention, RotaryAttention):
        return attention.window is None
    return isinstance(attention, PlainAttention)


def _is_causal(attention: Attention) -> bool:
    return isinstance(attention, RotaryAttention) and attention.is_causal


def _sees_all(attention: RotaryAttention, heads: Heads) -> bool:
    """Whether it is plain attention of heads with their own keys, once rotary positions are turned."""
    return attention.window is None and not attention.is_causal and heads.keys == heads.queries


def _disentangled(
    out: Tensor, qkv: Tensor, attention: DisentangledAttention, inputs: Inputs, tables: AttentionTables
) -> None:
    if tables.relative_rows is None:
        raise RuntimeError("this model has no table of relative rows. This is a bug.")
    disentangled_attention(
        out,
        qkv,
        inputs.cu_seqlens,
        inputs.shape.max_seqlen,
        tables.heads.queries,
        attention.key_positions,
        attention.query_positions,
        tables.relative_rows,
        _disentangled_scale(attention, tables.heads),
    )


def _disentangled_scale(attention: DisentangledAttention, heads: Heads) -> float:
    return 1.0 / math.sqrt(attention.num_terms * heads.dim)


def _has_both_terms(attention: Attention) -> bool:
    if not isinstance(attention, DisentangledAttention):
        return False
    return attention.key_positions is not None and attention.query_positions is not None


def _by_distance(attention: Attention, rows: Tensor) -> tuple[Tensor, Tensor]:
    """For `long_disentangled`, of a layer that `prepare_long` found to have both terms."""
    match attention:
        case DisentangledAttention(key_positions=Tensor() as key, query_positions=Tensor() as query):
            return positions.by_distance(key, rows), positions.by_distance(query, rows)
        case _:
            raise RuntimeError(f"{type(attention).__name__} has no two terms of distances. This is a bug.")


def _flash(qkv: Tensor, attention: PlainAttention | RotaryAttention, inputs: Inputs, heads: Heads) -> Tensor:
    """torch's FlashAttention-2, to a new [R, queries * dim]."""
    parts = [heads.queries, heads.keys, heads.keys]
    query, key, value = torch.split(qkv.view(len(qkv), sum(parts), heads.dim), parts, dim=1)
    cu_seqlens, longest = inputs.cu_seqlens, inputs.shape.max_seqlen
    window, is_causal = None, False
    if isinstance(attention, RotaryAttention):
        window, is_causal = attention.window, attention.is_causal
    context: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        0.0,
        is_causal,
        False,
        scale=1.0 / math.sqrt(heads.dim),
        window_size_left=window,
        window_size_right=0 if is_causal else window,
    )[0]
    return context.reshape(len(query), -1)
