"""A forward pass in plain torch that can be told, step by step, to do what the engine does: the ablation's subject."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.gpu.inputs import Inputs
from penstock.engine.gpu.kernels import GpuDense, GpuKernels, flash_attention
from penstock.engine.types import PackedBatch
from penstock.engine.weights import Attention, Embeddings, Norm, PlainAttention
from penstock.ops.bench.gpu.batches import padded_width


@dataclass(frozen=True, slots=True)
class Choices:
    """Which of the engine's ideas are in."""

    fused_norm: bool = False
    fused_activation: bool = False
    packed: bool = False
    attention: Literal["padded", "flash", "fused"] = "padded"  # the last two need packed rows


# ByteTransformer's Figure 14, step by step; each name is what the step adds.
STEPS: dict[str, Choices] = {
    "plain": Choices(),
    "+ LayerNorm fusion": Choices(fused_norm=True),
    "+ GELU fusion": Choices(fused_norm=True, fused_activation=True),
    "+ padding-free": Choices(fused_norm=True, fused_activation=True, packed=True),
    "+ fused attention": Choices(fused_norm=True, fused_activation=True, packed=True, attention="fused"),
}
PACKED_TORCH = Choices(packed=True, attention="flash")  # the best that torch's own operators do


@dataclass(frozen=True, slots=True)
class Padding:
    """A batch as B sequences of L columns."""

    token_ids: Tensor  # [B*L] int32
    positions: Tensor  # [B*L] int32
    rows: Tensor  # [T] int64: the row of each packed token
    bias: Tensor  # [B, 1, 1, L]: 0 for tokens, -inf for padding

    @staticmethod
    def upload(batch: PackedBatch, dtype: torch.dtype) -> "Padding":
        lengths = np.diff(batch.cu_seqlens).astype(np.int64)
        count, width = len(lengths), padded_width(batch.max_seqlen)
        positions = np.arange(len(batch.token_ids)) - np.repeat(batch.cu_seqlens[:-1], lengths)
        rows = np.repeat(np.arange(count) * width, lengths) + positions
        token_ids = np.zeros(count * width, np.int32)
        token_ids[rows] = batch.token_ids
        bias = np.where(np.arange(width) < lengths[:, None], 0.0, -np.inf)
        return Padding(
            token_ids=torch.from_numpy(token_ids).cuda(),
            positions=torch.from_numpy(np.tile(np.arange(width, dtype=np.int32), count)).cuda(),
            rows=torch.from_numpy(rows).cuda(),
            bias=torch.from_numpy(bias).to("cuda", dtype)[:, None, None, :],
        )


class TorchOps:
    """Implements `penstock.engine.forward.Ops` for one batch on the device. Nothing in it waits for the device."""

    def __init__(self, inputs: Inputs, padding: Padding | None, num_heads: int, choices: Choices) -> None:
        """`padding` may be None if neither rows nor attention are padded."""
        if choices.attention != "padded" and not choices.packed:
            raise ValueError(f"{choices.attention} attention needs packed rows.")
        self._inputs, self._num_heads, self._choices = inputs, num_heads, choices
        self._maybe_padding = padding
        if not choices.packed:
            rows = replace(inputs.shape, rows=len(self._padding.token_ids))
            positions = self._padding.positions
            self._inputs = replace(inputs, shape=rows, token_ids=self._padding.token_ids, positions=positions)
        self._fused = GpuKernels(self._inputs, num_heads)

    @property
    def _padding(self) -> Padding:
        if self._maybe_padding is None:
            raise RuntimeError(f"{self._choices} without padding. This is a bug.")
        return self._maybe_padding

    def valid_rows(self, hidden: Tensor) -> Tensor:
        """[T, H] of the result, padding left out."""
        return hidden if self._choices.packed else hidden.index_select(0, self._padding.rows)

    def embed(self, embeddings: Embeddings) -> Tensor:
        inputs, words = self._inputs, embeddings.words
        if self._choices.fused_norm:
            return self._fused.embed(words.new_empty(inputs.shape.rows, words.shape[1]), embeddings)
        hidden = F.embedding(inputs.token_ids, words)
        if embeddings.positions is not None:
            hidden = hidden + F.embedding(inputs.positions, embeddings.positions)
        if embeddings.token_types is not None:
            hidden = hidden + embeddings.token_types[0]
        return _layer_norm(hidden, embeddings.norm)

    def project(self, x: Tensor, dense: GpuDense) -> Tensor:
        if self._choices.fused_activation and dense.activation != "identity":
            return self._fused.project(x.new_empty(len(x), dense.width), x, dense)
        projected = F.linear(x, dense.weight_t.t(), dense.bias)
        match dense.activation:
            case "identity":
                return projected
            case "gelu":
                return F.gelu(projected)
            case other:
                raise ValueError(f"the ablation is of models with the exact GELU, not {other!r}.")

    def project_add_norm(self, x: Tensor, dense: GpuDense, residual: Tensor, norm: Norm) -> Tensor:
        if self._choices.fused_norm:
            return self._fused.project_add_norm(x.new_empty(len(x), dense.width), x, residual, dense, norm)
        return _layer_norm(F.linear(x, dense.weight_t.t(), dense.bias) + residual, norm)

    def attend(self, qkv: Tensor, attention: Attention) -> Tensor:
        if not isinstance(attention, PlainAttention):
            raise ValueError(f"the ablation is of plain attention, not {type(attention).__name__}.")
        inputs, hidden = self._inputs, qkv.shape[1] // 3
        scale = 1.0 / math.sqrt(hidden // self._num_heads)
        match self._choices.attention:
            case "padded" if not self._choices.packed:
                return self._unfused(qkv, scale)
            case "padded":
                padding = self._padding
                padded = qkv.new_zeros(len(padding.token_ids), 3 * hidden).index_copy_(0, padding.rows, qkv)
                return self._unfused(padded, scale).index_select(0, padding.rows)
            case "flash":
                return flash_attention(qkv, inputs.cu_seqlens, inputs.shape.max_seqlen, self._num_heads, scale)
            case "fused":
                return self._fused.attend(qkv.new_empty(len(qkv), hidden), qkv, attention)
            case other:
                raise ValueError(f"no attention called {other!r}.")

    def _unfused(self, qkv: Tensor, scale: float) -> Tensor:
        """Products and softmax one after another over padded rows, with the score matrix in memory."""
        bias, hidden = self._padding.bias, qkv.shape[1] // 3
        heads = qkv.view(bias.shape[0], bias.shape[3], 3, self._num_heads, hidden // self._num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(query, key.transpose(-1, -2)) * scale + bias
        context = torch.matmul(torch.softmax(scores, -1), value)
        return context.transpose(1, 2).reshape(len(qkv), hidden)


def _layer_norm(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
