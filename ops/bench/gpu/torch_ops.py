"""A forward pass in plain torch that takes over the engine's steps one by one, for the ablation."""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.gpu.attention import AttentionTables, Rotations, attend
from penstock.engine.gpu.choice import choose_kernel
from penstock.engine.gpu.inputs import Inputs, describe, exact_shape, views
from penstock.engine.gpu.ops import GpuDense, GpuOps
from penstock.engine.gpu.products import Products
from penstock.engine.kernels.activation import bias_activation
from penstock.engine.kernels.embed_norm import embed_norm
from penstock.engine.kernels.library import block_shared_bytes
from penstock.engine.kernels.residual_norm import residual_norm
from penstock.engine.model.weights import Attention, Embeddings, Norm, PlainAttention
from penstock.engine.types import PackedBatch
from penstock.ops.bench.gpu.request_batches import padded_width


@dataclass(frozen=True, slots=True)
class Choices:
    """Steps of the engine that a forward takes over."""

    fused_norm: bool = False
    fused_activation: bool = False
    packed: bool = False
    attention: Literal["padded", "flash", "fused"] = "padded"  # the last two need packed rows
    products: bool = False  # the engine's own, where it takes them


# ByteTransformer's Figure 14, step by step; each name is what the step adds.
STEPS: dict[str, Choices] = {
    "plain": Choices(),
    "+ LayerNorm fusion": Choices(fused_norm=True),
    "+ GELU fusion": Choices(fused_norm=True, fused_activation=True),
    "+ padding-free": Choices(fused_norm=True, fused_activation=True, packed=True),
    "+ fused attention": Choices(fused_norm=True, fused_activation=True, packed=True, attention="fused"),
    "+ our own products": Choices(
        fused_norm=True, fused_activation=True, packed=True, attention="fused", products=True
    ),
}
PACKED_TORCH = Choices(packed=True, attention="flash")  # the fastest with torch's own operators


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch as T tokens on the device; all int32."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    cu_seqlens: Tensor  # [B+1]
    max_seqlen: int

    @staticmethod
    def upload(batch: PackedBatch, device: torch.device) -> "Packed":
        """Upload in one asynchronous copy."""
        tokens, ends = len(batch.token_ids), len(batch.cu_seqlens)
        host = torch.empty(2 * tokens + ends, dtype=torch.int32, pin_memory=device.type == "cuda")
        parts = (batch.token_ids, _positions(batch), batch.cu_seqlens)
        np.concatenate(parts, out=host.numpy(), casting="same_kind")
        values = host.to(device, non_blocking=True)
        return Packed(values[:tokens], values[tokens : 2 * tokens], values[2 * tokens :], batch.max_seqlen)


@dataclass(frozen=True, slots=True)
class Padded:
    """A batch as B sequences of L columns on the device."""

    token_ids: Tensor  # [B*L] int32
    positions: Tensor  # [B*L] int32
    rows: Tensor  # [T] int64: the row of each packed token
    bias: Tensor  # [B, 1, 1, L]: 0 for tokens, -inf for padding

    @staticmethod
    def upload(batch: PackedBatch, dtype: torch.dtype, device: torch.device) -> "Padded":
        lengths = np.diff(batch.cu_seqlens).astype(np.int64)
        count, width = len(lengths), padded_width(batch.max_seqlen)
        rows = np.repeat(np.arange(count) * width, lengths) + _positions(batch)
        token_ids = np.zeros(count * width, np.int32)
        token_ids[rows] = batch.token_ids
        bias = np.where(np.arange(width) < lengths[:, None], 0.0, -np.inf)
        return Padded(
            token_ids=torch.from_numpy(token_ids).to(device),
            positions=torch.from_numpy(np.tile(np.arange(width, dtype=np.int32), count)).to(device),
            rows=torch.from_numpy(rows).to(device),
            bias=torch.from_numpy(bias).to(device, dtype)[:, None, None, :],
        )


class TorchOps:
    """Implements `penstock.engine.model.forward.Ops` for one batch. Nothing in it waits for the device."""

    def __init__(
        self, batch: PackedBatch, num_heads: int, choices: Choices, dtype: torch.dtype, device: torch.device
    ) -> None:
        if choices.attention != "padded" and not choices.packed:
            raise ValueError(f"{choices.attention} attention needs packed rows.")
        self._num_heads, self._choices = num_heads, choices
        self._packed = Packed.upload(batch, device)
        self._maybe_padded = Padded.upload(batch, dtype, device) if choices.attention == "padded" else None
        rows = self._packed if choices.packed else self._padded
        self._token_ids, self._positions = rows.token_ids, rows.positions
        self._batch, self._device, self._dtype = batch, device, dtype

    @property
    def _padded(self) -> Padded:
        if self._maybe_padded is None:
            raise RuntimeError(f"{self._choices} without padding. This is a bug.")
        return self._maybe_padded

    @cached_property
    def _inputs(self) -> Inputs:
        return uploaded(self._batch, self._device)

    @cached_property
    def _kernels(self) -> GpuOps:
        tables = AttentionTables(self._num_heads, None, None)
        return GpuOps(self._inputs, tables, products_of(self._dtype, self._device))

    def valid_rows(self, hidden: Tensor) -> Tensor:
        """[T, H] of the result, padding left out."""
        return hidden if self._choices.packed else hidden.index_select(0, self._padded.rows)

    def embed(self, embeddings: Embeddings) -> Tensor:
        words, positions, types, norm = embeddings.words, embeddings.positions, embeddings.token_types, embeddings.norm
        if self._choices.fused_norm:
            out = words.new_empty(len(self._token_ids), words.shape[1])
            ids = (self._token_ids, self._positions, None)
            embed_norm(out, *ids, words, positions, types, norm.weight, norm.bias, norm.eps)
            return out
        hidden = F.embedding(self._token_ids, words)
        if positions is not None:
            hidden = hidden + F.embedding(self._positions, positions)
        if types is not None:
            hidden = hidden + types[0]
        return _layer_norm(hidden, norm)

    def project(self, x: Tensor, dense: GpuDense) -> Tensor:
        if self._choices.products:
            return self._kernels.project(x.new_empty(len(x), dense.width), x, dense)
        if self._choices.fused_activation and dense.activation != "identity":
            out = torch.mm(x, dense.weight_t)
            bias_activation(out, dense.bias, dense.activation)
            return out
        projected = F.linear(x, dense.weight_t.t(), dense.bias)
        match dense.activation:
            case "identity":
                return projected
            case "gelu":
                return F.gelu(projected)
            case other:
                raise ValueError(f"the ablation is of models with the exact GELU, not {other!r}.")

    def project_add_norm(self, x: Tensor, dense: GpuDense, residual: Tensor, norm: Norm) -> Tensor:
        if self._choices.products:
            return self._kernels.project_add_norm(torch.empty_like(residual), x, residual, dense, norm)
        if self._choices.fused_norm:
            out = torch.mm(x, dense.weight_t)
            residual_norm(out, out, dense.bias, residual, norm.weight, norm.bias, norm.eps)
            return out
        return _layer_norm(F.linear(x, dense.weight_t.t(), dense.bias) + residual, norm)

    def attend(self, qkv: Tensor, attention: Attention) -> Tensor:
        if not isinstance(attention, PlainAttention):
            raise ValueError(f"the ablation is of plain attention, not {type(attention).__name__}.")
        hidden = qkv.shape[1] // 3
        scale = 1.0 / math.sqrt(hidden // self._num_heads)
        match self._choices.attention:
            case "padded" if not self._choices.packed:
                return self._unfused(qkv, scale)
            case "padded":
                padded = self._padded
                spread = qkv.new_zeros(len(padded.token_ids), 3 * hidden).index_copy_(0, padded.rows, qkv)
                return self._unfused(spread, scale).index_select(0, padded.rows)
            case "fused":
                out = qkv.new_empty(len(qkv), hidden)
                tables, rotations = AttentionTables(self._num_heads, None, None), Rotations(self._inputs.positions)
                return attend(out, qkv, attention, self._inputs, tables, rotations)
            case "flash":
                return flash_varlen(qkv, self._packed.cu_seqlens, self._packed.max_seqlen, self._num_heads)
            case other:
                raise ValueError(f"no attention called {other!r}.")

    def _unfused(self, qkv: Tensor, scale: float) -> Tensor:
        """Products and softmax one after another over padded rows, with the score matrix in memory."""
        bias, hidden = self._padded.bias, qkv.shape[1] // 3
        heads = qkv.view(bias.shape[0], bias.shape[3], 3, self._num_heads, hidden // self._num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(query, key.transpose(-1, -2)) * scale + bias
        context = torch.matmul(torch.softmax(scores, -1), value)
        return context.transpose(1, 2).reshape(len(qkv), hidden)


@cache
def products_of(dtype: torch.dtype, device: torch.device) -> Products:
    """For a BERT-base."""
    return Products.on(device, dtype, 768, {"gelu", "identity"})


def uploaded(batch: PackedBatch, device: torch.device) -> Inputs:
    """A batch as the engine's kernels take it, with the attention kernel that the engine chooses for heads of 64."""
    kernel = choose_kernel(
        PlainAttention(), 64, batch.max_seqlen, len(batch.token_ids), shared_bytes=block_shared_bytes(device)
    )
    shape = exact_shape(batch, kernel)
    values = np.empty(shape.num_values, np.int32)
    describe(batch, shape, values)
    return views(torch.from_numpy(values).to(device), shape)


def flash_varlen(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int) -> Tensor:
    """torch's FlashAttention-2 over packed sequences, without its wrapper: [T, 3H] to [T, H]."""
    query, key, value = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    context: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, 0.0, False, False
    )[0]
    return context.view(len(qkv), -1)


def _layer_norm(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _positions(batch: PackedBatch) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    starts = np.repeat(batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens))
    return np.arange(len(batch.token_ids), dtype=np.int32) - starts
