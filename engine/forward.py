"""The forward pass of an encoder, in four operations, or six if it is pre-norm. A device is an implementation of them.

The CPU runs it as it stands, batch by batch (`CpuOps`). A GPU's is run once, by a recorder (`engine.program`), which
learns from it the order of the operations and how long each intermediate lives; a batch then runs the record.
"""

from typing import Protocol, TypeVar

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.weights import Attention, Embeddings, Encoder, Norm

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
        """activation(x @ weight.T + bias); half as wide where `dense` is gated."""
        ...

    def project_add_norm(self, x: X, dense: D_contra, residual: X, norm: Norm) -> X:
        """norm(x @ weight.T + bias + residual)."""
        ...

    def attend(self, qkv: X, attention: Attention) -> X:
        """qkv [R, 3H] to context [R, H], each sequence by itself."""
        ...


class PreNormOps(Ops[X, D_contra], Protocol):
    """What a pre-norm encoder's pass needs beside that."""

    def project_add(self, x: X, dense: D_contra, residual: X) -> X:
        """x @ weight.T + bias + residual."""
        ...

    def normalise(self, x: X, norm: Norm) -> X: ...


def forward(encoder: Encoder[D], ops: Ops[X, D]) -> X:
    """Hidden states [R, H] of the batch that `ops` knows. Raises UnsupportedCheckpoint for a pre-norm encoder."""
    if encoder.pre_norm:
        raise UnsupportedCheckpoint("encoders that normalise before each block (ModernBERT) do not run on this device.")
    hidden = ops.embed(encoder.embeddings)
    if encoder.projection is not None:
        hidden = ops.project(hidden, encoder.projection)
    for layer in encoder.layers:
        context = ops.attend(ops.project(hidden, layer.qkv), layer.attention)
        hidden = ops.project_add_norm(context, layer.attention_output, hidden, layer.attention_norm)
        inner = ops.project(hidden, layer.up)
        hidden = ops.project_add_norm(inner, layer.down, hidden, layer.output_norm)
    return hidden


def forward_pre_norm(encoder: Encoder[D], ops: PreNormOps[X, D]) -> X:
    """The same for a pre-norm encoder (Xiong et al. 2020). The first layer reads the embeddings, normalised already."""
    hidden = total = ops.embed(encoder.embeddings)
    for layer in encoder.layers:
        context = ops.attend(ops.project(hidden, layer.qkv), layer.attention)
        total = ops.project_add(context, layer.attention_output, total)
        inner = ops.project(ops.normalise(total, layer.attention_norm), layer.up)
        total = ops.project_add(inner, layer.down, total)
        hidden = ops.normalise(total, layer.output_norm)
    return hidden
