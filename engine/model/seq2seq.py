"""The weights of an encoder-decoder transformer of any family (Vaswani et al. 2017).

A family's reader returns a `Seq2Seq[Dense]`, float32 on the CPU. A device makes a `Seq2Seq[D]` of it with `prepared`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from penstock.engine.model.weights import Dense, Encoder, Heads, Layer, Norm, convert_weights

D = TypeVar("D")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class TokenEmbeddings:
    """Word + position, then norms where the family has them."""

    words: Tensor  # [V, H], scaled
    positions: Tensor | None  # [max_tokens, H], without the rows of a family's offset
    norm: Norm | None = None  # of the sum
    first_norm: Norm | None = None  # in a pre-norm stack the first layer's norm, which residuals bypass
    pad_token: int | None = None  # of a family that gives padding no position, and numbers a source without it


@dataclass(frozen=True, slots=True)
class CrossAttention(Generic[D]):
    """Attention of a target token over its source. Scores are divided by sqrt(head_dim)."""

    query: D  # [W, H]; W = num_heads * head_dim
    key_value: D  # [2W, H]: key and value rows in this order, of the encoder's output
    output: D  # [H, W]
    norm: Norm  # after the addition


@dataclass(frozen=True, slots=True)
class DecoderLayer(Generic[D]):
    """Self-attention, cross-attention and MLP, in this order. Each norm follows an addition, as in `Layer`."""

    layer: Layer[D]  # self-attention and MLP; attention is to a token's past and itself
    cross: CrossAttention[D]


@dataclass(frozen=True, slots=True)
class EncoderStack(Generic[D]):
    """The encoder's part of the weights."""

    embeddings: TokenEmbeddings
    layers: tuple[Layer[D], ...]
    heads: Heads


@dataclass(frozen=True, slots=True)
class DecoderStack(Generic[D]):
    """The decoder's part of the weights."""

    embeddings: TokenEmbeddings
    layers: tuple[DecoderLayer[D], ...]
    heads: Heads

    @property
    def width(self) -> int:
        """Values of a key, and of a value, in one layer."""
        return self.heads.width


@dataclass(frozen=True, slots=True)
class Seq2Seq(Generic[D]):
    """An encoder and a decoder."""

    encoder: EncoderStack[D]
    decoder: DecoderStack[D]
    head: D  # [V, H], with its bias: from the decoder's last hidden state to logits
    pre_norm: bool  # whether layers pass on the sum (true) or the norm of the sum

    @property
    def source_vocab_size(self) -> int:
        return self.encoder.embeddings.words.shape[0]

    @property
    def target_vocab_size(self) -> int:
        return self.decoder.embeddings.words.shape[0]

    @property
    def max_source_tokens(self) -> int | None:
        """Longest source that the weights allow; None: any."""
        return _rows(self.encoder.embeddings.positions)

    @property
    def max_target_tokens(self) -> int | None:
        """Most tokens that a decoder reads, the start token included; None: any."""
        return _rows(self.decoder.embeddings.positions)

    def prepared(
        self: "Seq2Seq[Dense]", dense: Callable[[Dense], E], table: Callable[[Tensor], Tensor]
    ) -> "Seq2Seq[E]":
        """The model with `dense` applied to every matrix and `table` to every other tensor, once each."""
        result: Seq2Seq[E] = convert_weights(self, dense, table)
        return result


@dataclass(frozen=True, slots=True)
class EncoderDecoder(Encoder[D]):
    """An encoder whose tokens a decoder reads again, shifted right by one. The decoder's states are the hidden states.

    So BART classifies (Lewis et al. 2020, section 3.1). Both stacks take sequences of `max_tokens`.
    """

    decoder: DecoderStack[D] = field(kw_only=True)
    start_token: int = field(kw_only=True)  # that the decoder reads first, in place of the sequence's last


def _rows(table: Tensor | None) -> int | None:
    return None if table is None else len(table)


Seq2SeqWeights = Seq2Seq[Dense]
