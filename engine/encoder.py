"""The packed forward pass in plain torch: token ids in, hidden states out, no padding anywhere."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.attention import attend, plan_attention
from penstock.engine.layout import Layout
from penstock.engine.linear import Linear, make_linear
from penstock.engine.weights import EncoderWeights, LayerWeights, Norm


class PackedEncoder:
    """A post-norm BERT-family encoder. Embeddings and norms hold float32 parameters; the matrices are of `dtype`."""

    def __init__(self, weights: EncoderWeights, dtype: torch.dtype) -> None:
        self._words = weights.words
        self._token_types = weights.token_types
        # Nearly every batch is of type 0: its row is added to the positions once, here.
        first_type = 0.0 if weights.token_types is None else weights.token_types[0]
        self._positions = weights.positions
        self._positions_type_0 = weights.positions + first_type
        self._norm = weights.embedding_norm
        self._layers = [_Layer.build(layer, dtype) for layer in weights.layers]
        self._num_heads = weights.num_heads
        self._dtype = dtype

    def __call__(self, token_ids: Tensor, layout: Layout, token_type_ids: Tensor | None) -> Tensor:
        """Hidden states [R, H] of the sorted batch. `token_ids` and `token_type_ids` [R]: sorted as `layout` says."""
        hidden = self._embed(token_ids, torch.from_numpy(layout.positions), token_type_ids)
        plan = plan_attention(layout.groups, self._dtype)
        for layer in self._layers:
            qkv = layer.qkv(hidden)
            hidden = normalise(
                layer.attention_output.plus(attend(qkv, plan, self._num_heads), hidden), layer.attention_norm
            )
            hidden = normalise(layer.down.plus(layer.up(hidden), hidden), layer.output_norm)
        return hidden

    def _embed(self, token_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        words = F.embedding(token_ids, self._words)
        if token_type_ids is None or self._token_types is None or len(self._token_types) == 1:
            words += F.embedding(positions, self._positions_type_0)
        else:
            words += F.embedding(token_type_ids, self._token_types)
            words += F.embedding(positions, self._positions)
        return normalise(words, self._norm).to(self._dtype)


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Linear
    attention_output: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    output_norm: Norm

    @classmethod
    def build(cls, layer: LayerWeights, dtype: torch.dtype) -> "_Layer":
        return cls(
            qkv=make_linear(layer.qkv, dtype),
            attention_output=make_linear(layer.attention_output, dtype),
            attention_norm=layer.attention_norm,
            up=make_linear(layer.up, dtype),
            down=make_linear(layer.down, dtype),
            output_norm=layer.output_norm,
        )


def normalise(x: Tensor, norm: Norm) -> Tensor:
    """LayerNorm over the last dimension; statistics in float32 whatever x's type."""
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
