"""The forward pass of an encoder, written once in a few operations that each device implements.

A CPU runs it for every batch (`CpuOps`). For a GPU a recorder runs it once (`engine.model.program`), which gives the
order of the operations and the lifetimes of their results; batches run the record.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.seq2seq import EncoderDecoder
from penstock.engine.model.seq2seq_forward import DecoderOps, decoded
from penstock.engine.model.weights import Attention, Convolution, Embeddings, Encoder, Layer, Norm

X = TypeVar("X")
D_contra = TypeVar("D_contra", contravariant=True)
D = TypeVar("D")


class Ops(Protocol[X, D_contra]):
    """Operations of encoders. X stands for hidden states: one row a token, sequences end to end, no padding.

    An implementation holds the batch: its token ids and the bounds of its sequences.
    """

    def embed(self, embeddings: Embeddings) -> X:
        """norm(words + positions + token types): [R, E]."""
        ...

    def norm(self, x: X, norm: Norm) -> X: ...

    def project(self, x: X, dense: D_contra) -> X:
        """activation(x @ weight.T + bias)."""
        ...

    def project_gated(self, x: X, dense: D_contra, activation: str) -> X:
        """activation(first I columns) * last I columns of x @ weight.T + bias, [R, 2I]."""
        ...

    def project_add_norm(self, x: X, dense: D_contra, residual: X, norm: Norm) -> X:
        """norm(x @ weight.T + bias + residual)."""
        ...

    def project_add_norm_sum(self, x: X, dense: D_contra, residual: X, norm: Norm) -> tuple[X, X]:
        """norm(x @ weight.T + bias + residual), and the sum inside it, the next residual."""
        ...

    def norm_add_norm_sum(self, x: X, inner: Norm, residual: X, norm: Norm) -> tuple[X, X]:
        """norm(inner(x) + residual), and the sum inside it, the next residual."""
        ...

    def attend(self, qkv: X, attention: Attention) -> X:
        """qkv [R, (queries + 2 keys) * dim] to context [R, queries * dim], within each sequence."""
        ...


class ConvolutionOps(Ops[X, D_contra], Protocol):
    """Further operations of an encoder with a convolution."""

    def neighbours(self, x: X, count: int) -> X:
        """x [R, H] to [R, count * H]: each token's neighbours in order, itself in the middle, zero beyond the ends."""
        ...

    def add_norm(self, x: X, residual: X, norm: Norm) -> X:
        """norm(x + residual)."""
        ...


def forward(encoder: Encoder[D], ops: Ops[X, D]) -> X:
    """Hidden states [R, H] of the batch that `ops` holds. Raises UnsupportedCheckpoint for further parts."""
    if isinstance(encoder, EncoderDecoder):
        raise UnsupportedCheckpoint(
            "a decoder that reads the encoder's tokens (bart) is implemented on the CPU only; use device='cpu'."
        )
    if encoder.convolution is not None:
        raise UnsupportedCheckpoint(
            "a convolution in the first layer (deberta-v2-xlarge) is implemented on the CPU only; use device='cpu'."
        )
    return _encoded(encoder, ops)


def forward_decoded(model: EncoderDecoder[D], ops: Ops[X, D], decoder_ops: Callable[[X], DecoderOps[X, D]]) -> X:
    """`forward` for an encoder-decoder. `decoder_ops`: those of the decoder, whose source is the encoder's states."""
    return decoded(model.decoder, decoder_ops(_encoded(model, ops)), pre_norm=model.pre_norm)


def _encoded(encoder: Encoder[D], ops: Ops[X, D]) -> X:
    hidden = total = _embedded(encoder, ops)
    if encoder.first_norm is not None:
        hidden = ops.norm(total, encoder.first_norm)
    for layer in encoder.layers:
        hidden, total = _layer(encoder, layer, hidden, total, ops)
    return hidden


def forward_convolved(encoder: Encoder[D], convolution: Convolution[D], ops: ConvolutionOps[X, D]) -> X:
    """`forward` for a post-norm encoder with a convolution."""
    embedded = _embedded(encoder, ops)
    local = ops.project(ops.neighbours(embedded, convolution.kernel_size), convolution.dense)
    hidden, _ = _layer(encoder, encoder.layers[0], embedded, embedded, ops)
    hidden = ops.add_norm(hidden, local, convolution.norm)
    for layer in encoder.layers[1:]:
        hidden, _ = _layer(encoder, layer, hidden, hidden, ops)
    return hidden


def _embedded(encoder: Encoder[D], ops: Ops[X, D]) -> X:
    hidden = ops.embed(encoder.embeddings)
    return hidden if encoder.projection is None else ops.project(hidden, encoder.projection)


def _layer(encoder: Encoder[D], layer: Layer[D], hidden: X, total: X, ops: Ops[X, D]) -> tuple[X, X]:
    """The next layer's input, and the residual that it adds to."""
    of_attention, of_mlp = layer.inner_norms or (None, None)
    context = ops.attend(ops.project(hidden, layer.qkv), layer.attention)
    add = partial(_add, ops, is_pre_norm=encoder.pre_norm)
    hidden, total = add(context, layer.attention_output, of_attention, total, layer.attention_norm)
    up, gate = layer.up, layer.gate
    inner = ops.project(hidden, up) if gate is None else ops.project_gated(hidden, up, gate)
    return add(inner, layer.down, of_mlp, total, layer.output_norm)


def _add(
    ops: Ops[X, D], x: X, dense: D, inner: Norm | None, residual: X, norm: Norm, *, is_pre_norm: bool
) -> tuple[X, X]:
    """The next block's input, and the residual that it adds to."""
    if inner is not None:
        return ops.norm_add_norm_sum(ops.project(x, dense), inner, residual, norm)
    if is_pre_norm:
        return ops.project_add_norm_sum(x, dense, residual, norm)
    hidden = ops.project_add_norm(x, dense, residual, norm)
    return hidden, hidden
