"""The forward passes of an encoder-decoder transformer, written once in a few operations, as `engine.model.forward`.

A batch of the encoder is sources end to end. A batch of the decoder is one row for each hypothesis, at any position,
or, where the tokens are known (teacher forcing), all tokens of sequences end to end.
"""

from functools import partial
from typing import Protocol, TypeVar

from penstock.engine.model.seq2seq import DecoderStack, EncoderStack, Seq2Seq, TokenEmbeddings
from penstock.engine.model.weights import Attention, Layer, Norm

X = TypeVar("X")
D_contra = TypeVar("D_contra", contravariant=True)
D = TypeVar("D")


class StackOps(Protocol[X, D_contra]):
    """Operations of both stacks. X stands for hidden states: one row a token."""

    def look_up(self, embeddings: TokenEmbeddings) -> X:
        """words + positions, without the norms: [R, H]."""
        ...

    def norm(self, x: X, norm: Norm) -> X: ...

    def project(self, x: X, dense: D_contra) -> X:
        """activation(x @ weight.T + bias)."""
        ...

    def gate(self, x: X, activation: str) -> X:
        """[R, 2I] to [R, I]: activation(first I columns) * last I columns."""
        ...

    def project_add_norm(self, x: X, dense: D_contra, residual: X, norm: Norm) -> X:
        """norm(x @ weight.T + bias + residual)."""
        ...

    def project_add_norm_sum(self, x: X, dense: D_contra, residual: X, norm: Norm) -> tuple[X, X]:
        """norm(x @ weight.T + bias + residual), and the sum inside it, the next residual."""
        ...


class SourceOps(StackOps[X, D_contra], Protocol):
    """Further operations of the encoder."""

    def attend(self, qkv: X, attention: Attention) -> X:
        """qkv [R, 3W] to context [R, W], within each source."""
        ...

    def remember(self, layer: int, key_value: X) -> None:
        """Keep [R, 2W] as the keys and values that the decoder's `layer` reads of these sources."""
        ...


class DecoderOps(StackOps[X, D_contra], Protocol):
    """Further operations of the decoder's layers."""

    def attend_cached(self, qkv: X, layer: int, attention: Attention) -> X:
        """Attend from each row of qkv [R, 3W] to itself and those before it, of this batch or kept of earlier ones."""
        ...

    def attend_cross(self, query: X, layer: int) -> X:
        """Attend from each row of query [R, W] to the `cross.key_value` of its whole source."""
        ...


class TargetOps(DecoderOps[X, D_contra], Protocol):
    """Further operations of a model that predicts tokens."""

    def predict(self, x: X, head: D_contra) -> X:
        """Logits [R, V]."""
        ...


def encode(model: Seq2Seq[D], ops: SourceOps[X, D]) -> None:
    """Run the encoder, and keep what the decoder's layers read of it."""
    hidden, residual = _embedded(model.encoder, ops)
    add = partial(_add, ops, is_pre_norm=model.pre_norm)
    for layer in model.encoder.layers:
        context = ops.attend(ops.project(hidden, layer.qkv), layer.attention)
        hidden, residual = add(context, layer.attention_output, residual, layer.attention_norm)
        hidden, residual = add(_inner(ops, layer, hidden), layer.down, residual, layer.output_norm)
    for index, decoder_layer in enumerate(model.decoder.layers):
        ops.remember(index, ops.project(hidden, decoder_layer.cross.key_value))


def decode(model: Seq2Seq[D], ops: TargetOps[X, D]) -> X:
    """Logits [R, V] of the token after each row's."""
    return ops.predict(decoded(model.decoder, ops, pre_norm=model.pre_norm), model.head)


def decoded(decoder: DecoderStack[D], ops: DecoderOps[X, D], *, pre_norm: bool) -> X:
    """Hidden states [R, H] after the decoder's last layer."""
    hidden, residual = _embedded(decoder, ops)
    add = partial(_add, ops, is_pre_norm=pre_norm)
    for index, decoder_layer in enumerate(decoder.layers):
        layer, cross = decoder_layer.layer, decoder_layer.cross
        context = ops.attend_cached(ops.project(hidden, layer.qkv), index, layer.attention)
        hidden, residual = add(context, layer.attention_output, residual, layer.attention_norm)
        context = ops.attend_cross(ops.project(hidden, cross.query), index)
        hidden, residual = add(context, cross.output, residual, cross.norm)
        hidden, residual = add(_inner(ops, layer, hidden), layer.down, residual, layer.output_norm)
    return hidden


def _embedded(stack: EncoderStack[D] | DecoderStack[D], ops: StackOps[X, D]) -> tuple[X, X]:
    """The first layer's input, and what its sum begins with."""
    embeddings = stack.embeddings
    embedded = ops.look_up(embeddings)
    if embeddings.norm is not None:
        embedded = ops.norm(embedded, embeddings.norm)
    return embedded if embeddings.first_norm is None else ops.norm(embedded, embeddings.first_norm), embedded


def _inner(ops: StackOps[X, D], layer: Layer[D], hidden: X) -> X:
    """The input of the MLP's second product."""
    inner = ops.project(hidden, layer.up)
    return inner if layer.gate is None else ops.gate(inner, layer.gate)


def _add(ops: StackOps[X, D], x: X, dense: D, residual: X, norm: Norm, *, is_pre_norm: bool) -> tuple[X, X]:
    """The next block's input, and the residual that it adds to."""
    if is_pre_norm:
        return ops.project_add_norm_sum(x, dense, residual, norm)
    hidden = ops.project_add_norm(x, dense, residual, norm)
    return hidden, hidden
