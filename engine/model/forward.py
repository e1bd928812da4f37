"""The forward pass of an encoder, in four operations and for some families more. A device implements them.

The CPU runs it as it stands, batch by batch (`CpuOps`). A GPU's is run once, by a recorder (`engine.program`), which
learns from it the order of the operations and how long each intermediate lives; a batch then runs the record.
"""

from typing import Protocol, TypeVar

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.weights import Attention, Convolution, Embeddings, Encoder, Layer, Norm

X = TypeVar("X")
D_contra = TypeVar("D_contra", contravariant=True)
D = TypeVar("D")


class Ops(Protocol[X, D_contra]):
    """What a forward pass is made of. X stands for hidden states: one row a token, sequences end to end, no padding.

    An implementation knows the batch: its token ids, and where sequences begin and end.
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
        """qkv [R, 3H] to context [R, H], each sequence by itself."""
        ...


class PreNormOps(Ops[X, D_contra], Protocol):
    """What a pre-norm encoder, and its gated MLPs, need beside that."""

    def gate(self, x: X, activation: str) -> X:
        """[R, 2I] to [R, I]: activation(first I columns) * last I columns."""
        ...

    def project_add_norm_sum(self, x: X, dense: D_contra, residual: X, norm: Norm) -> tuple[X, X]:
        """norm(x @ weight.T + bias + residual), and that sum itself: the next residual."""
        ...


class ConvolutionOps(Ops[X, D_contra], Protocol):
    """What an encoder with a convolution needs beside that."""

    def neighbours(self, x: X, count: int) -> X:
        """x [R, H] to [R, count * H]: of each token its neighbours in order, itself in the middle, zero beyond ends."""
        ...

    def add_norm(self, x: X, residual: X, norm: Norm) -> X:
        """norm(x + residual)."""
        ...


def forward(encoder: Encoder[D], ops: Ops[X, D]) -> X:
    """Hidden states [R, H] of the batch that `ops` knows. Raises UnsupportedCheckpoint for a convolution."""
    if encoder.pre_norm or any(layer.gate is not None for layer in encoder.layers):
        raise RuntimeError("a pre-norm or gated encoder went the post-norm way. This is a bug.")
    if encoder.convolution is not None:
        raise UnsupportedCheckpoint(
            "a convolution beside the first layer (deberta-v2-xlarge) is implemented on the CPU only; use device='cpu'."
        )
    hidden = _embedded(encoder, ops)
    for layer in encoder.layers:
        hidden = _post_norm(layer, hidden, ops)
    return hidden


def forward_pre_norm(encoder: Encoder[D], ops: PreNormOps[X, D]) -> X:
    """The same for `encoder.pre_norm` (Xiong et al. 2020). The first layer reads the embeddings, normalised already."""
    hidden = total = _embedded(encoder, ops)
    for layer in encoder.layers:
        context = ops.attend(ops.project(hidden, layer.qkv), layer.attention)
        hidden, total = ops.project_add_norm_sum(context, layer.attention_output, total, layer.attention_norm)
        inner = ops.project(hidden, layer.up)
        if layer.gate is not None:
            inner = ops.gate(inner, layer.gate)
        hidden, total = ops.project_add_norm_sum(inner, layer.down, total, layer.output_norm)
    return hidden


def forward_convolved(encoder: Encoder[D], convolution: Convolution[D], ops: ConvolutionOps[X, D]) -> X:
    """The same for an encoder with `encoder.convolution`."""
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
