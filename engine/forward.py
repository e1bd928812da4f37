"""The forward pass of a post-norm encoder, in five operations. A device is an implementation of them.

The CPU runs it as it stands, batch by batch (`CpuOps`). A GPU's is run once, by a recorder (`engine.program`), which
learns from it the order of the operations and how long each intermediate lives; a batch then runs the record.
"""

from typing import Protocol, TypeVar

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
        """activation(x @ weight.T + bias)."""
        ...

    def project_add_norm(self, x: X, dense: D_contra, residual: X, norm: Norm) -> X:
        """norm(x @ weight.T + bias + residual)."""
        ...

    def attend(self, qkv: X, attention: Attention) -> X:
        """qkv [R, 3H] to context [R, H], each sequence by itself."""
        ...


def forward(encoder: Encoder[D], ops: Ops[X, D]) -> X:
    """Hidden states [R, H] of the batch that `ops` knows."""
    hidden = ops.embed(encoder.embeddings)
    if encoder.projection is not None:
        hidden = ops.project(hidden, encoder.projection)
    for layer in encoder.layers:
        context = ops.attend(ops.project(hidden, layer.qkv), layer.attention)
        hidden = ops.project_add_norm(context, layer.attention_output, hidden, layer.attention_norm)
        inner = ops.project(hidden, layer.up)
        hidden = ops.project_add_norm(inner, layer.down, hidden, layer.output_norm)
    return hidden
