"""Operations of a forward pass on a CPU, in torch and oneDNN, for one batch sorted by length."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.cpu.attention import attend
from penstock.engine.cpu.attention_bias import attend_groups, by_distance, causal, disentangled, rotary
from penstock.engine.cpu.linear import Linear, make_linear
from penstock.engine.cpu.norm import normalise
from penstock.engine.device import is_bfloat16_fast, multiplies_bfloat16
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.model.dense import activate
from penstock.engine.model.embeddings import look_up
from penstock.engine.model.forward import forward, forward_convolved, forward_decoded
from penstock.engine.model.layout import Layout
from penstock.engine.model.positions import pad_positions
from penstock.engine.model.seq2seq import EncoderDecoder, TokenEmbeddings
from penstock.engine.model.weights import (
    Attention,
    Dense,
    DisentangledAttention,
    DistanceAttention,
    Embeddings,
    Encoder,
    EncoderWeights,
    Heads,
    Norm,
    PlainAttention,
    RotaryAttention,
)
from penstock.engine.types import PackedBatch, require_valid

# By precision, the type of hidden states.
CPU_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}


def prepare_for_cpu(
    weights: EncoderWeights, dtype: torch.dtype, linear: Callable[[Dense], Linear] | None = None
) -> Encoder[Linear]:
    """Matrices laid out for the processor by `linear`, default in `dtype`; tables and norms stay float32."""
    encoder = weights.prepared(linear or (lambda dense: make_linear(dense, dtype)), lambda table: table)
    return replace(encoder, embeddings=_type_0_folded(encoder.embeddings))


def cpu_precision(dtype: str) -> str:
    """The precision, with "auto" resolved. Raises UnsupportedDevice for one that is not available on a CPU."""
    if dtype == "auto":
        return "bfloat16" if is_bfloat16_fast() else "float32"
    if dtype == "int8":
        raise UnsupportedDevice("dtype 'int8' is for encoders that run packed; use auto, float32 or bfloat16.")
    if dtype not in CPU_DTYPES:
        raise UnsupportedDevice(f"dtype {dtype!r} is not available; use auto, float32 or bfloat16.")
    if dtype == "bfloat16" and not multiplies_bfloat16():
        raise UnsupportedDevice(
            "dtype 'bfloat16' needs AVX-512 or AVX-NE-CONVERT, which this processor lacks; use auto."
        )
    return dtype


def encode_on_cpu(encoder: Encoder[Linear], batch: PackedBatch, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Hidden states [R, H] of a batch, in the order of `layout`. Raises InvalidBatch."""
    types, table = batch.token_type_ids, encoder.embeddings.token_types
    require_valid(batch, None if table is None else len(table))
    positions = pad_positions(batch, encoder.embeddings)
    ids = torch.from_numpy(batch.token_ids[layout.tokens])
    ops = CpuOps(
        layout,
        ids,
        None if types is None else torch.from_numpy(types[layout.tokens]),
        encoder.heads,
        dtype,
        None if positions is None else torch.from_numpy(positions[layout.tokens]),
    )
    if encoder.convolution is not None:
        return forward_convolved(encoder, encoder.convolution, ops)
    if isinstance(encoder, EncoderDecoder):
        return forward_decoded(encoder, ops, lambda source: _DecoderOps(layout, ids, encoder, source))
    return forward(encoder, ops)


class RowOps:
    """Operations in which each row of a batch is on its own."""

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return normalise(x, norm)

    def project(self, x: Tensor, dense: Linear) -> Tensor:
        return dense(x)

    def gate(self, x: Tensor, activation: str) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return activate(first, activation) * second

    def project_gated(self, x: Tensor, dense: Linear, activation: str) -> Tensor:
        return self.gate(self.project(x, dense), activation)

    def project_add_norm(self, x: Tensor, dense: Linear, residual: Tensor, norm: Norm) -> Tensor:
        return normalise(dense.plus(x, residual), norm)

    def project_add_norm_sum(self, x: Tensor, dense: Linear, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        total = dense.plus(x, residual)
        return normalise(total, norm), total

    def norm_add_norm_sum(self, x: Tensor, inner: Norm, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        total = normalise(x, inner) + residual
        return normalise(total, norm), total

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm) -> Tensor:
        return normalise(x + residual, norm)


class CpuOps(RowOps):
    """Implements `Ops` and `ConvolutionOps` of `penstock.engine.model.forward` for one batch."""

    def __init__(
        self,
        layout: Layout,
        token_ids: Tensor,
        token_type_ids: Tensor | None,
        heads: Heads,
        dtype: torch.dtype,
        positions: Tensor | None = None,
    ) -> None:
        """All three [R] are in the order of `layout`, whose own positions are the default."""
        self._token_ids = token_ids
        self._positions = torch.from_numpy(layout.positions) if positions is None else positions
        self._token_type_ids = token_type_ids
        self._heads = heads
        self._dtype = dtype
        self._groups = layout.groups

    def embed(self, embeddings: Embeddings) -> Tensor:
        words = F.embedding(self._token_ids, embeddings.words)
        if embeddings.positions is not None:
            words += F.embedding(self._positions, embeddings.positions)
        if self._token_type_ids is not None and embeddings.token_types is not None:
            words += F.embedding(self._token_type_ids, embeddings.token_types)
        return (words if embeddings.norm is None else normalise(words, embeddings.norm)).to(self._dtype)

    def attend(self, qkv: Tensor, attention: Attention) -> Tensor:
        match attention:
            case PlainAttention():
                return attend(qkv, self._groups, self._heads)
            case DistanceAttention():
                return attend_groups(qkv, self._groups, self._heads, by_distance(attention))
            case DisentangledAttention():
                return attend_groups(qkv, self._groups, self._heads, disentangled(attention))
            case RotaryAttention():
                return attend_groups(qkv, self._groups, self._heads, rotary(attention))
            case _:
                raise RuntimeError(f"no attention for {type(attention).__name__}. This is a bug.")

    def neighbours(self, x: Tensor, count: int) -> Tensor:
        reach, result = count // 2, x.new_zeros(len(x), count * x.shape[1])
        for group in self._groups:
            rows = slice(group.start, group.stop)
            padded = F.pad(x[rows].view(group.count, group.length, -1), (0, 0, reach, reach))
            windows = padded.unfold(1, count, 1).transpose(2, 3)  # [n, L, count, H]
            result[rows] = windows.reshape(group.stop - group.start, -1)
        return result


class _DecoderOps(CpuOps):
    """Implements `DecoderOps` of `penstock.engine.model.seq2seq_forward` for all tokens of a batch at once.

    The decoder reads the batch's tokens, each a place later than the encoder.
    """

    def __init__(self, layout: Layout, token_ids: Tensor, model: EncoderDecoder[Linear], source: Tensor) -> None:
        """token_ids [R], and the encoder's states `source` [R, H], are in the order of `layout`."""
        shifted = token_ids.roll(1).masked_fill(torch.from_numpy(layout.positions) == 0, model.start_token)
        super().__init__(layout, shifted, None, model.decoder.heads, source.dtype)
        self._layers = model.decoder.layers
        self._source = source

    def look_up(self, embeddings: TokenEmbeddings) -> Tensor:
        return look_up(embeddings, self._token_ids, self._positions).to(self._dtype)

    def attend_cached(self, qkv: Tensor, layer: int, attention: Attention) -> Tensor:
        if not isinstance(attention, PlainAttention):
            raise RuntimeError(f"no causal attention for {type(attention).__name__}. This is a bug.")
        return attend_groups(qkv, self._groups, self._heads, causal)

    def attend_cross(self, query: Tensor, layer: int) -> Tensor:
        """A source has as many tokens as what is read of it, so that its keys lie beside the queries."""
        key_value = self.project(self._source, self._layers[layer].cross.key_value)
        return attend(torch.cat((query, key_value), dim=1), self._groups, self._heads)


def _type_0_folded(embeddings: Embeddings) -> Embeddings:
    """Add the row of type 0, which nearly all batches have, to another table, and subtract it from the other types."""
    types = embeddings.token_types
    if types is None:
        return embeddings
    others = types - types[0]
    if embeddings.positions is not None:
        return replace(embeddings, positions=embeddings.positions + types[0], token_types=others)
    return replace(embeddings, words=embeddings.words + types[0], token_types=others)
