"""The forward pass of an encoder, written once in a few operations that each device implements.

A CPU runs it for every batch (`CpuOps`). For a GPU a recorder runs it once (`engine.model.program`), which gives the
order of the operations and the lifetimes of their results; batches run the record.
"""

from typing import Protocol, TypeVar

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.weights import Attention, Convolution, Embeddings, Encoder, Layer, Norm

X = TypeVar("X")
D_contra = TypeVar("D_contra", contravariant=True)
D = TypeVar("D")


class Ops(Protocol[X, D_contra]):
    """Operations of every encoder. X stands for hidden states: one row a token, sequences end to end, no padding.

    An implementation holds the batch: its token ids and the bounds of its sequences.
    """

    def embed(self, embeddings: Embeddings) -> X:
        """norm(words + positions + token types): [R, E]."""
        ...

    def project(self, x: X, dense: D_contra) -> X:
        """activation(x @ weight.T + bias)."""
        ...

    def project_add_norm(self, x: X, dense: D_contra, residual: X, norm: Norm) -> X:
        """norm(x @ weight.T + bias + residual)."""
        ...

    def attend(self, qkv: X, attention: Attention) -> X:
        """qkv [R, 3H] to context [R, H], within each sequence."""
        ...


class PreNormOps(Ops[X, D_contra], Protocol):
    """Further operations of a pre-norm encoder and its gated MLPs."""

    def project_gated(self, x: X, dense: D_contra, activation: str) -> X:
        """activation(first I columns) * last I columns of x @ weight.T + bias, [R, 2I]."""
        ...

    def project_add_norm_sum(self, x: X, dense: D_contra, residual: X, norm: Norm) -> tuple[X, X]:
        """norm(x @ weight.T + bias + residual), and the sum inside it, the next residual."""
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
    """Hidden states [R, H] of the batch that `ops` holds. Raises UnsupportedCheckpoint for a convolution."""
    if encoder.pre_norm or any(layer.gate is not None for layer in encoder.layers):
        raise RuntimeError("a pre-norm or gated encoder was run as a post-norm one. This is a bug.")
    if encoder.convolution is not None:
        raise UnsupportedCheckpoint(
            "a convolution in the first layer (deberta-v2-xlarge) is implemented on the CPU only; use device='cpu'."
        )
    hidden = _embedded(encoder, ops)
    for layer in encoder.layers:
        hidden = _post_norm(layer, hidden, ops)
    return hidden


def forward_pre_norm(encoder: Encoder[D], ops: PreNormOps[X, D]) -> X:
    """`forward` for a pre-norm encoder (Xiong et al. 2020), whose first layer reads normalised embeddings."""
    hidden = total = _embedded(encoder, ops)
    for layer in encoder.layers:
        context = ops.attend(ops.project(hidden, layer.qkv), layer.attention)
        hidden, total = ops.project_add_norm_sum(context, layer.attention_output, total, layer.attention_norm)
        up, gate = layer.up, layer.gate
        inner = ops.project(hidden, up) if gate is None else ops.project_gated(hidden, up, gate)
        hidden, total = ops.project_add_norm_sum(inner, layer.down, total, layer.output_norm)
    return hidden


def forward_convolved(encoder: Encoder[D], convolution: Convolution[D], ops: ConvolutionOps[X, D]) -> X:
    """`forward` for an encoder with a convolution."""
    embedded = _embedded(encoder, ops)
    local = ops.project(ops.neighbours(embedded, convolution.kernel_size), convolution.dense)
    hidden = ops.add_norm(_post_norm(encoder.layers[0], embedded, ops), local, convolution.norm)
    for layer in encoder.layers[1:]:
        hidden = _post_norm(layer, hidden, ops)
    return hidden


def _embedded(encoder: Encoder[D], ops: Ops[X, D]) -> X:
    hidden = ops.embed(encoder.embeddings)
    return hidden if encoder.projection is None else ops.project(hidden, encoder.projection)


def _post_norm(layer: Layer[D], hidden: X, ops: Ops[X, D]) -> X:
    context = ops.attend(ops.project(hidden, layer.qkv), layer.attention)
    hidden = ops.project_add_norm(context, layer.attention_output, hidden, layer.attention_norm)
    inner = ops.project(hidden, layer.up)
    return ops.project_add_norm(inner, layer.down, hidden, layer.output_norm)
