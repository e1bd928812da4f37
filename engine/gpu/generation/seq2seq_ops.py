"""The operations of an encoder-decoder transformer on a GPU. They run on any device of torch, without the kernels."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.cpu.norm import normalise
from penstock.engine.gpu.generation.cached_attention import CacheLines, attend_lines
from penstock.engine.gpu.ops import GpuDense
from penstock.engine.kernels.activation import bias_activation, gated
from penstock.engine.kernels.library import MAX_HIDDEN, VECTOR
from penstock.engine.kernels.residual_norm import residual_norm
from penstock.engine.model.dense import activate, function_of
from penstock.engine.model.embeddings import look_up
from penstock.engine.model.seq2seq import Seq2Seq, Seq2SeqWeights, TokenEmbeddings
from penstock.engine.model.weights import Attention, Dense, Norm, PlainAttention, cached_bias

_FLASH_STEP, _FLASH_MOST = 8, 256  # sizes of heads that torch's FlashAttention-2 takes
_HEAD_STEP = 64  # logits of a row are a multiple: products with rows of odd lengths are slow


def prepare_seq2seq(weights: Seq2SeqWeights, dtype: torch.dtype, device: torch.device) -> Seq2Seq[GpuDense]:
    """The weights on the device in `dtype`. The head has spare rows up to a multiple of 64, of zeros."""

    def table(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype).contiguous()

    def dense(d: Dense) -> GpuDense:
        weight = table(d.weight)
        bias = None if d.bias is None else table(d.bias)
        return GpuDense(weight, weight.t(), bias, function_of(d.activation))

    head = weights.head
    spare = -len(head.weight) % _HEAD_STEP
    bias = None if head.bias is None else F.pad(head.bias, (0, spare))
    padded = replace(head, weight=F.pad(head.weight, (0, 0, 0, spare)), bias=bias)
    return replace(weights, head=padded).prepared(dense, table)


class _StackOps:
    """Operations of both stacks."""

    def __init__(self, tokens: Tensor, positions: Tensor) -> None:
        """int32 [R] each."""
        self._tokens = tokens
        self._positions = positions

    def look_up(self, embeddings: TokenEmbeddings) -> Tensor:
        return look_up(embeddings, self._tokens, self._positions)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return normalise(x, norm)

    def project(self, x: Tensor, dense: GpuDense) -> Tensor:
        if dense.activation == "identity":
            return _product(x, dense)
        if not _has_kernels(x):
            return activate(_product(x, dense), dense.activation)
        product = torch.mm(x, dense.weight_t)
        bias_activation(product, dense.bias, dense.activation)
        return product

    def gate(self, x: Tensor, activation: str) -> Tensor:
        if not _has_kernels(x):
            first, second = x.chunk(2, dim=-1)
            return activate(first.contiguous(), activation) * second
        out = torch.empty(len(x), x.shape[1] // 2, dtype=x.dtype, device=x.device)
        gated(out, x, function_of(activation))
        return out

    def project_add_norm(self, x: Tensor, dense: GpuDense, residual: Tensor, norm: Norm) -> Tensor:
        if not _has_norm_kernel(x, dense, norm):
            return normalise(_product(x, dense) + residual, norm)
        product = torch.mm(x, dense.weight_t)
        residual_norm(product, product, dense.bias, residual, norm)
        return product

    def project_add_norm_sum(self, x: Tensor, dense: GpuDense, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        if not _has_norm_kernel(x, dense, norm):
            total = _product(x, dense) + residual
            return normalise(total, norm), total
        total = torch.mm(x, dense.weight_t)
        out = torch.empty_like(total)
        residual_norm(out, total, dense.bias, residual, norm, total)
        return out, total


@dataclass(frozen=True, slots=True)
class SourceRows:
    """T tokens of S sources end to end, on the device; int32 where nothing else is said. Spare tokens may follow."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # int64 [T]: where what the decoder reads of each token goes
    places: Tensor  # int64 [T]: source * longest + position; S * longest of spare tokens
    ends: Tensor  # [S + 1]: cumulated lengths, from 0
    lengths: Tensor  # [S]
    longest: int  # a bound of the lengths


class DeviceSourceOps(_StackOps):
    """Implements `SourceOps`. Depends on the rows only through their sizes and their addresses."""

    def __init__(self, rows: SourceRows, num_heads: int, key_values: Tensor) -> None:
        """key_values [layers, slots, 2W]."""
        super().__init__(rows.tokens, rows.positions)
        self._rows = rows
        self._num_heads = num_heads
        self._key_values = key_values

    def attend(self, qkv: Tensor, attention: Attention) -> Tensor:
        query, key, value = qkv.view(len(qkv), 3, self._num_heads, -1).unbind(1)
        head_dim = query.shape[-1]
        if not uses_flash(qkv, attention, head_dim):
            return self._attend_padded(qkv, cached_bias(attention))
        context: Tensor = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            self._rows.ends,
            self._rows.ends,
            self._rows.longest,
            self._rows.longest,
            0.0,
            False,
            False,
            scale=1.0 / math.sqrt(head_dim),
        )[0]
        return context.reshape(len(qkv), -1)

    def remember(self, layer: int, key_value: Tensor) -> None:
        self._key_values[layer].index_copy_(0, self._rows.slots, key_value)

    def _attend_padded(self, qkv: Tensor, bias: Tensor | None) -> Tensor:
        """torch's attention over sources that are padded to the longest. What spare tokens get is of no use."""
        count, longest, rows = len(self._rows.lengths), self._rows.longest, self._rows
        padded = qkv.new_zeros(count * longest + 1, qkv.shape[1]).index_copy_(0, rows.places, qkv)[:-1]
        query, key, value = padded.view(count, longest, 3, self._num_heads, -1).permute(2, 0, 3, 1, 4)
        places = torch.arange(longest, device=qkv.device)
        is_behind = (places >= rows.lengths[:, None])[:, None, None]
        mask = qkv.new_zeros(count, 1, 1, longest).masked_fill(is_behind, -torch.inf)
        if bias is not None:
            reach = bias.shape[1] // 2
            mask = mask + bias[:, (places - places[:, None]).clamp(-reach, reach) + reach]
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        own = rows.places.clamp(max=count * longest - 1)
        return context.transpose(1, 2).reshape(count * longest, -1).index_select(0, own)


@dataclass(frozen=True, slots=True)
class TargetRows:
    """One step's rows on the device, int32."""

    tokens: Tensor  # [R]
    positions: Tensor  # [R]
    past: CacheLines  # of each row's own hypothesis, this step included
    sources: CacheLines


class DeviceTargetOps(_StackOps):
    """Implements `TargetOps` for one step. Depends on the rows only through their number and their addresses."""

    def __init__(self, rows: TargetRows, num_heads: int, key_values: Tensor, logits: Tensor) -> None:
        """key_values [layers, slots, 2W]; logits [at least R, ...]: memory for the result."""
        super().__init__(rows.tokens, rows.positions)
        self._rows = rows
        self._num_heads = num_heads
        self._key_values = key_values
        self._logits = logits[: len(rows.tokens)]

    def attend_cached(self, qkv: Tensor, layer: int, attention: Attention) -> Tensor:
        return self._attend(qkv, layer, self._rows.past, cached_bias(attention))

    def attend_cross(self, query: Tensor, layer: int) -> Tensor:
        return self._attend(query, layer, self._rows.sources, None)

    def predict(self, x: Tensor, head: GpuDense) -> Tensor:
        if head.bias is None:
            return torch.mm(x, head.weight_t, out=self._logits)
        return torch.addmm(head.bias, x, head.weight_t, out=self._logits)

    def _attend(self, query: Tensor, layer: int, lines: CacheLines, bias: Tensor | None) -> Tensor:
        cache = self._key_values[layer]
        scale = 1.0 / math.sqrt(cache.shape[1] // 2 // self._num_heads)
        return attend_lines(query, cache, lines, self._num_heads, scale, bias)


def uses_flash(x: Tensor, attention: Attention, head_dim: int) -> bool:
    """Whether the encoder's attention of tensors like `x` is FlashAttention, which does not pad sources."""
    is_plain = isinstance(attention, PlainAttention) and head_dim % _FLASH_STEP == 0 and head_dim <= _FLASH_MOST
    return _has_kernels(x) and is_plain


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype is not torch.float32


def _has_norm_kernel(x: Tensor, dense: GpuDense, norm: Norm) -> bool:
    width = len(dense.weight)
    return _has_kernels(x) and norm.subtracts_mean and width % VECTOR == 0 and width <= MAX_HIDDEN


def _product(x: Tensor, dense: GpuDense) -> Tensor:
    return torch.mm(x, dense.weight_t) if dense.bias is None else torch.addmm(dense.bias, x, dense.weight_t)
