"""BART (Lewis et al. 2020): post-norm, learned positions from 2, a norm after the embeddings."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.families.readers import LayerNames, read_dense, read_layer, read_norm, require_same
from penstock.engine.model.checkpoint import Checkpoint, Tensors
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.seq2seq import (
    CrossAttention,
    DecoderLayer,
    DecoderStack,
    EncoderStack,
    Seq2Seq,
    Seq2SeqWeights,
    TokenEmbeddings,
)
from penstock.engine.model.weights import Dense, Heads, Layer

_PREFIXES = ("model.", "")
_PROBE = "encoder.layers.0.fc1.weight"
_EPS = 1e-5  # fixed in the reference implementation
_FIRST_POSITION = 2
_LAYER = LayerNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention=("self_attn.out_proj", "self_attn_layer_norm"),
    mlp=("fc1", "fc2", "final_layer_norm"),
    hidden="d_model",
    activation=("activation_function", "gelu"),
)


def seq2seq(checkpoint: Checkpoint) -> Seq2SeqWeights:
    """The encoder, decoder and head of a BART checkpoint."""
    weights, hidden = checkpoint.weights, require_int(checkpoint.config, "d_model")
    prefix = weights.prefix(_PREFIXES, _PROBE)

    def embeddings(stack: str) -> TokenEmbeddings:
        return TokenEmbeddings(
            words=read_words(checkpoint, f"{prefix}{stack}.embed_tokens.weight", f"{prefix}shared.weight"),
            positions=weights.take(f"{prefix}{stack}.embed_positions.weight", -1, hidden)[_FIRST_POSITION:],
            norm=read_norm(weights, f"{prefix}{stack}.layernorm_embedding", hidden, _EPS),
        )

    return read_seq2seq(checkpoint, prefix, embeddings("encoder"), embeddings("decoder"))


def read_seq2seq(
    checkpoint: Checkpoint, prefix: str, source: TokenEmbeddings, target: TokenEmbeddings
) -> Seq2SeqWeights:
    """A model with BART's tensor names. `source` and `target` are the embeddings of its two stacks."""
    config, weights, hidden = checkpoint.config, checkpoint.weights, require_int(checkpoint.config, "d_model")
    tied = (f"{prefix}decoder.embed_tokens.weight", f"{prefix}shared.weight")
    names = ("lm_head.weight", *(tied if setting(config, "tie_word_embeddings", True) else ()))
    head = first_of(weights, names, -1, hidden)
    require_same(config, "encoder_layers", "num_hidden_layers")
    bias = weights.take("final_logits_bias", 1, len(head))[0] if "final_logits_bias" in weights else None
    return Seq2Seq(
        encoder=EncoderStack(
            embeddings=source,
            layers=tuple(
                _read_layer(checkpoint, f"{prefix}encoder.layers.{i}.", "encoder_ffn_dim")
                for i in range(require_int(config, "encoder_layers"))
            ),
            heads=Heads.of(hidden, require_int(config, "encoder_attention_heads")),
        ),
        decoder=DecoderStack(
            embeddings=target,
            layers=tuple(
                _read_decoder_layer(checkpoint, f"{prefix}decoder.layers.{i}.")
                for i in range(require_int(config, "decoder_layers"))
            ),
            heads=Heads.of(hidden, require_int(config, "decoder_attention_heads")),
            head=Dense(head, bias, "identity"),
        ),
        pre_norm=False,
    )


def read_words(checkpoint: Checkpoint, *names: str) -> Tensor:
    """A table of words, under the first of `names` that exists, scaled where the configuration says so."""
    hidden = require_int(checkpoint.config, "d_model")
    require_tied(checkpoint, names)
    name = first_name(checkpoint.weights, names)
    if setting(checkpoint.config, "scale_embedding", False):
        return checkpoint.weights.take_scaled(name, math.sqrt(hidden), -1, hidden)
    return checkpoint.weights.take(name, -1, hidden)


def first_of(weights: Tensors, names: tuple[str, ...], *shape: int) -> Tensor:
    """The first of some tensors that exists; a tied tensor is saved under one of its names. Raises CheckpointError."""
    return weights.take(first_name(weights, names), *shape)


def require_tied(checkpoint: Checkpoint, names: tuple[str, ...]) -> None:
    """Raise UnsupportedCheckpoint where two of the names of one table have different tensors."""
    tables = [checkpoint.weights.take(name, -1, -1) for name in names if name in checkpoint.weights]
    if any(not torch.equal(table, tables[0]) for table in tables[1:]):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: {' and '.join(names)} differ, and are one table.")


def first_name(weights: Tensors, names: tuple[str, ...]) -> str:
    """The first of some names that a tensor has, or the last, under which `take` misses it."""
    return next((name for name in names if name in weights), names[-1])


def _read_layer(checkpoint: Checkpoint, prefix: str, intermediate: str) -> Layer[Dense]:
    return read_layer(checkpoint, prefix, replace(_LAYER, intermediate=intermediate), _EPS)


def _read_decoder_layer(checkpoint: Checkpoint, prefix: str) -> DecoderLayer[Dense]:
    weights, hidden = checkpoint.weights, require_int(checkpoint.config, "d_model")
    query, key, value, output = (
        read_dense(weights, f"{prefix}encoder_attn.{name}_proj", hidden, hidden) for name in ("q", "k", "v", "out")
    )
    bias = torch.cat([part.bias for part in (key, value) if part.bias is not None])
    return DecoderLayer(
        layer=_read_layer(checkpoint, prefix, "decoder_ffn_dim"),
        cross=CrossAttention(
            query=query,
            key_value=Dense(torch.cat([key.weight, value.weight]), bias, "identity"),
            output=output,
            norm=read_norm(weights, prefix + "encoder_attn_layer_norm", hidden, _EPS),
        ),
    )
