"""Attention on a GPU, qkv [R, 3H] to context [R, H]: the launch for each kind of attention and chosen kernel."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.gpu.choice import AttentionKernel
from penstock.engine.gpu.inputs import Inputs
from penstock.engine.kernels.disentangled_attention import disentangled_attention
from penstock.engine.kernels.packed_attention import packed_attention
from penstock.engine.kernels.short_attention import MAX_SEQLEN, short_attention
from penstock.engine.model.relative import relative_rows
from penstock.engine.model.weights import (
    Attention,
    BiasedAttention,
    DisentangledAttention,
    Encoder,
    PlainAttention,
    RotaryAttention,
)


@dataclass(frozen=True, slots=True)
class AttentionTables:
    """Tables of a model that all its layers share."""

    num_heads: int
    short_bias: Tensor | None  # [num_heads, S, S], S even: biases between the positions of a short sequence
    relative_rows: Tensor | None  # int32 [2 * max_tokens - 1]: row of DeBERTa's tables for each distance

    @classmethod
    def of(cls, encoder: Encoder[Any], device: torch.device) -> "AttentionTables":
        """Of an encoder that was prepared for the device."""
        bias, rows = None, None
        match encoder.layers[0].attention:
            case BiasedAttention(bias=whole):
                bias = F.pad(whole, (0, 1, 0, 1))[:, : _even(whole), : _even(whole)].contiguous()
            case DisentangledAttention() as kind if encoder.max_tokens is not None:
                table = relative_rows(encoder.max_tokens, kind.num_buckets, kind.max_distance)
                rows = torch.from_numpy(table).to(device)
        return cls(encoder.num_heads, bias, rows)


class Rotations:
    """Cosines and sines of rotary attention at a batch's positions, gathered once for layers that share a table."""

    def __init__(self, positions: Tensor) -> None:
        """positions int32 [R]: of each token in its own sequence."""
        self._positions = positions
        self._gathered: dict[int, tuple[Tensor, Tensor]] = {}  # by id of the table, which the weights keep alive

    def of(self, attention: RotaryAttention) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 [R, 1, 1, d / 2]."""
        found = self._gathered.get(id(attention.cosines))
        if found is None:
            cosines, sines = (
                table[self._positions][:, None, None, :] for table in (attention.cosines, attention.sines)
            )
            found = self._gathered[id(attention.cosines)] = cosines, sines
        return found


def attend(
    out: Tensor, qkv: Tensor, attention: Attention, inputs: Inputs, tables: AttentionTables, rotations: Rotations
) -> Tensor:
    """The context, in `out` or in a tensor of torch's. `inputs.shape.kernel` was chosen for `attention`.

    rotations: the batch's, the same object in every layer.
    """
    scale = 1.0 / math.sqrt(out.shape[1] // tables.num_heads)
    match inputs.shape.kernel, attention:
        case AttentionKernel.SHORT, _:
            short_attention(out, qkv, inputs.attention_plan, tables.num_heads, scale, tables.short_bias)
        case AttentionKernel.PACKED_64, PlainAttention():
            packed_attention(out, qkv, inputs.attention_plan, tables.num_heads, scale, 64)
        case AttentionKernel.PACKED_128, PlainAttention():
            packed_attention(out, qkv, inputs.attention_plan, tables.num_heads, scale, 128)
        case AttentionKernel.DISENTANGLED, DisentangledAttention():
            _disentangled(out, qkv, attention, inputs, tables)
        case AttentionKernel.ONE_BY_ONE, BiasedAttention():
            _one_by_one(out, qkv, attention, inputs, tables)
        case AttentionKernel.FLASH, PlainAttention():
            query, key, value = qkv.view(len(qkv), 3, tables.num_heads, -1).unbind(1)
            return flash_attention(query, key, value, inputs, scale)
        case AttentionKernel.FLASH, RotaryAttention():
            view = qkv.view(len(qkv), 3, tables.num_heads, -1)
            turned = rotated(view[:, :2], *rotations.of(attention))
            return flash_attention(turned[:, 0], turned[:, 1], view[:, 2], inputs, scale, attention.window)
        case kernel, other:
            raise RuntimeError(f"{kernel} was chosen for {type(other).__name__}. This is a bug.")
    return out


def _one_by_one(out: Tensor, qkv: Tensor, attention: BiasedAttention, inputs: Inputs, tables: AttentionTables) -> None:
    """torch's attention, one launch a sequence: no kernel supports long packed sequences with a bias."""
    lengths = list(inputs.lengths)
    parts = torch.split(qkv.view(len(qkv), 3, tables.num_heads, -1), lengths)
    for rows, part in zip(torch.split(out, lengths), parts, strict=True):
        query, key, value = part.transpose(0, 2).transpose(0, 1)
        bias = attention.bias[:, : len(part), : len(part)]
        context = F.scaled_dot_product_attention(query[None], key[None], value[None], bias[None])[0]
        rows.view(len(part), tables.num_heads, -1).copy_(context.transpose(0, 1))


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
        tables.num_heads,
        attention.key_positions,
        attention.query_positions,
        tables.relative_rows,
        1.0 / math.sqrt(attention.num_terms * (out.shape[1] // tables.num_heads)),
    )


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """x [R, 2, heads, d] rotated by [R, 1, 1, d / 2] angles; the first half of each head is paired with its second.

    In float32 until the result, as transformers does (apply_rotary_pos_emb of its modeling_modernbert.py).
    """
    first, second = x.chunk(2, dim=-1)
    turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    low, high = turned.chunk(2, dim=-1)
    torch.sub(first * cosines, second * sines, out=low)
    torch.add(second * cosines, first * sines, out=high)
    return turned


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, scale: float, window: int | None = None
) -> Tensor:
    """torch's FlashAttention-2 over packed sequences, [R, heads, d] each, to a new [R, H].

    window: tokens attend to others at most this far away; None: to all.
    """
    cu_seqlens, longest = inputs.cu_seqlens, inputs.shape.max_seqlen
    context: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        0.0,
        False,
        False,
        scale=scale,
        window_size_left=window,
        window_size_right=window,
    )[0]
    return context.reshape(len(query), -1)


def _even(bias: Tensor) -> int:
    """Positions of `short_bias`."""
    return min(MAX_SEQLEN, bias.shape[1] + bias.shape[1] % 2)
