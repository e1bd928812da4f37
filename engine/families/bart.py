"""BART (Lewis et al. 2020): post-norm, learned positions from 2, a norm after the embeddings.

The readers below `read_seq2seq` are those of all families with BART's tensor names.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families.readers import read_classifier, read_dense, read_norm, refuse_causal, require_same
from penstock.engine.model.checkpoint import Checkpoint, Tensors
from penstock.engine.model.files import require_int, setting, stated_rows
from penstock.engine.model.seq2seq import (
    CrossAttention,
    DecoderLayer,
    DecoderStack,
    EncoderDecoder,
    EncoderStack,
    Seq2Seq,
    Seq2SeqWeights,
    TokenEmbeddings,
)
from penstock.engine.model.weights import Dense, Embeddings, EncoderWeights, Heads, Layer, Norm, PlainAttention

_PREFIXES = ("model.", "")
_PROBE = "encoder.layers.0.fc1.weight"
_EPS = 1e-5  # fixed in the reference implementation
_FIRST_POSITION = 2
_END = 2  # where config.json has no eos_token_id, or no decoder_start_token_id
_VOCAB_SIZE = 50_265  # where config.json has none
_ONE_SETTING = (  # transformers' own names of BART's settings
    ("d_model", "hidden_size"),
    ("encoder_attention_heads", "num_attention_heads"),
    ("encoder_layers", "num_hidden_layers"),
)
_ENCODER_NORMS = ("self_attn_layer_norm", "final_layer_norm")  # of a layer's blocks, in their order
_DECODER_NORMS = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")


def seq2seq(checkpoint: Checkpoint, *, pre_norm: bool = False) -> Seq2SeqWeights:
    """The encoder, decoder and head of a BART checkpoint, or of one that differs from it in `pre_norm` alone."""
    source, target = _embeddings(checkpoint, "encoder"), _embeddings(checkpoint, "decoder")
    return read_seq2seq(checkpoint, source, target, pre_norm=pre_norm)


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a BART checkpoint, and its decoder, which reads the same tokens."""
    config = checkpoint.config
    refuse_causal(checkpoint, has_decoder=True)
    if setting(config, "is_decoder", False) or not setting(config, "is_encoder_decoder", True):
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: a half of an encoder-decoder (is_decoder, is_encoder_decoder) is not implemented."
        )
    source, target = _embeddings(checkpoint, "encoder"), _embeddings(checkpoint, "decoder")
    encoding, decoding = _read_stacks(checkpoint, source, target, pre_norm=False)
    if stated_rows(config, "vocab_size") not in (-1, len(source.words)):
        raise CheckpointError(
            f"{checkpoint.directory}: the table of words has {len(source.words)} rows, and vocab_size of config.json "
            f"is {config['vocab_size']}."
        )
    return EncoderDecoder(
        embeddings=Embeddings(source.words, source.positions, None, source.norm),
        projection=None,
        layers=encoding.layers,
        heads=encoding.heads,
        max_tokens=min(len(stack.positions) for stack in (source, target) if stack.positions is not None),
        decoder=decoding,
        start_token=_start_token(checkpoint, len(target.words)),
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """The layers of BartForSequenceClassification, from a state of the decoder to the logits."""
    return read_classifier(checkpoint.weights, "classification_head.dense", "tanh", "classification_head.out_proj")


def classifier_pooling(checkpoint: Checkpoint) -> str:
    """The classifier reads the last end of the text."""
    return "end"


def end_token(checkpoint: Checkpoint) -> int:
    """The token that ends texts, in BART and mBART. Raises UnsupportedCheckpoint where it is not one."""
    end = checkpoint.config.get("eos_token_id", _END)
    vocab_size = require_int(checkpoint.config, "vocab_size", _VOCAB_SIZE)
    if type(end) is not int or not 0 <= end < vocab_size:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: its classifier reads the token that ends a text, and eos_token_id is {end!r}, "
            f"which is not one of {vocab_size} tokens."
        )
    return end


def _start_token(checkpoint: Checkpoint, vocab_size: int) -> int:
    start = checkpoint.config.get("decoder_start_token_id", _END)
    if type(start) is not int or not 0 <= start < vocab_size:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: decoder_start_token_id is {start!r}, which is not one of {vocab_size} tokens."
        )
    return start


def _embeddings(checkpoint: Checkpoint, stack: str) -> TokenEmbeddings:
    weights, hidden = checkpoint.weights, require_int(checkpoint.config, "d_model")
    prefix, rows = prefix_of(checkpoint), stated_rows(checkpoint.config, "max_position_embeddings")
    rows = rows if rows < 0 else rows + _FIRST_POSITION
    return TokenEmbeddings(
        words=read_words(checkpoint, prefix, stack),
        positions=weights.take(f"{prefix}{stack}.embed_positions.weight", rows, hidden)[_FIRST_POSITION:],
        norm=read_norm(weights, f"{prefix}{stack}.layernorm_embedding", hidden, _EPS),
    )


def prefix_of(checkpoint: Checkpoint) -> str:
    """The prefix of the tensors of both stacks."""
    return checkpoint.weights.prefix(_PREFIXES, _PROBE)


def read_seq2seq(
    checkpoint: Checkpoint, source: TokenEmbeddings, target: TokenEmbeddings, *, pre_norm: bool
) -> Seq2SeqWeights:
    """A model with BART's tensor names.

    `source` and `target` are the embeddings of its two stacks, without the first norm of a pre-norm stack. Such a stack
    has one norm more, after its last layer.
    """
    config, weights, hidden = checkpoint.config, checkpoint.weights, require_int(checkpoint.config, "d_model")
    prefix = prefix_of(checkpoint)
    tied = (f"{prefix}decoder.embed_tokens.weight", f"{prefix}shared.weight")
    names = ("lm_head.weight", *(tied if setting(config, "tie_word_embeddings", True) else ()))
    head = first_of(weights, names, -1, hidden)
    bias = weights.take("final_logits_bias", 1, len(head))[0] if "final_logits_bias" in weights else None
    encoding, decoding = _read_stacks(checkpoint, source, target, pre_norm=pre_norm)
    return Seq2Seq(encoding, decoding, head=Dense(head, bias, "identity"), pre_norm=pre_norm)


def _read_stacks(
    checkpoint: Checkpoint, source: TokenEmbeddings, target: TokenEmbeddings, *, pre_norm: bool
) -> tuple[EncoderStack[Dense], DecoderStack[Dense]]:
    config, hidden = checkpoint.config, require_int(checkpoint.config, "d_model")
    for key, other in _ONE_SETTING:
        require_same(config, key, other)
    first_source, encoder_norms = _norms(checkpoint, "encoder", _ENCODER_NORMS, pre_norm=pre_norm)
    first_target, decoder_norms = _norms(checkpoint, "decoder", _DECODER_NORMS, pre_norm=pre_norm)
    encoding = EncoderStack(
        embeddings=replace(source, first_norm=first_source),
        layers=tuple(_read_layer(checkpoint, "encoder", i, norms) for i, norms in enumerate(encoder_norms)),
        heads=Heads.of(hidden, require_int(config, "encoder_attention_heads")),
    )
    decoding = DecoderStack(
        embeddings=replace(target, first_norm=first_target),
        layers=tuple(_read_decoder_layer(checkpoint, i, norms) for i, norms in enumerate(decoder_norms)),
        heads=Heads.of(hidden, require_int(config, "decoder_attention_heads")),
    )
    return encoding, decoding


def read_words(checkpoint: Checkpoint, prefix: str, stack: str) -> Tensor:
    """The table of words of a stack, its own or, of tied ones, the shared, scaled where the configuration says so."""
    hidden = require_int(checkpoint.config, "d_model")
    names = (f"{prefix}{stack}.embed_tokens.weight", f"{prefix}shared.weight")
    if setting(checkpoint.config, "tie_word_embeddings", True):
        require_tied(checkpoint, names)
    elif names[0] not in checkpoint.weights:
        raise CheckpointError(
            f"{checkpoint.directory}: tensor {names[0]!r} is missing, and tie_word_embeddings of config.json is false, "
            "so transformers would fill it at random. Set it to true if the model has one table of words."
        )
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


def _norms(
    checkpoint: Checkpoint, stack: str, blocks: Sequence[str], *, pre_norm: bool
) -> tuple[Norm | None, list[list[Norm]]]:
    """The norm before the first block of a pre-norm stack, and of each layer the norms that follow its additions.

    blocks: names of a layer's norms. Post-norm each follows its own block. Pre-norm it precedes it, so it follows the
    addition of the block before, and the stack's last norm follows the last block.
    """
    num_layers, hidden = require_int(checkpoint.config, f"{stack}_layers"), require_int(checkpoint.config, "d_model")
    names = [f"layers.{i}.{block}" for i in range(num_layers) for block in blocks]
    names += ["layer_norm"] if pre_norm else []
    prefix = f"{prefix_of(checkpoint)}{stack}."
    norms = [read_norm(checkpoint.weights, prefix + name, hidden, _EPS) for name in names]
    first = norms.pop(0) if pre_norm else None
    size = len(blocks)
    return first, [norms[i : i + size] for i in range(0, num_layers * size, size)]


def _read_layer(checkpoint: Checkpoint, stack: str, index: int, norms: Sequence[Norm]) -> Layer[Dense]:
    """norms: after self-attention, and after the MLP."""
    config, weights, hidden = checkpoint.config, checkpoint.weights, require_int(checkpoint.config, "d_model")
    prefix, inner = f"{prefix_of(checkpoint)}{stack}.layers.{index}.", require_int(config, f"{stack}_ffn_dim")
    attention_norm, output_norm = norms
    query, key, value, output = _read_attention(checkpoint, prefix + "self_attn.")
    return Layer(
        qkv=_stacked(query, key, value),
        attention=PlainAttention(),
        attention_output=output,
        attention_norm=attention_norm,
        up=read_dense(weights, prefix + "fc1", inner, hidden, setting(config, "activation_function", "gelu")),
        down=read_dense(weights, prefix + "fc2", hidden, inner),
        output_norm=output_norm,
    )


def _read_decoder_layer(checkpoint: Checkpoint, index: int, norms: Sequence[Norm]) -> DecoderLayer[Dense]:
    """norms: after self-attention, after cross-attention, and after the MLP."""
    attention_norm, cross_norm, output_norm = norms
    prefix = f"{prefix_of(checkpoint)}decoder.layers.{index}.encoder_attn."
    query, key, value, output = _read_attention(checkpoint, prefix)
    return DecoderLayer(
        layer=_read_layer(checkpoint, "decoder", index, (attention_norm, output_norm)),
        cross=CrossAttention(query, _stacked(key, value), output, cross_norm),
    )


def _read_attention(checkpoint: Checkpoint, prefix: str) -> tuple[Dense, Dense, Dense, Dense]:
    """Query, key, value and output."""
    hidden = require_int(checkpoint.config, "d_model")
    query, key, value, output = (
        read_dense(checkpoint.weights, f"{prefix}{name}_proj", hidden, hidden) for name in ("q", "k", "v", "out")
    )
    return query, key, value, output


def _stacked(*parts: Dense) -> Dense:
    """Matrices with biases as one, whose product makes all."""
    biases = [part.bias for part in parts if part.bias is not None]
    return Dense(torch.cat([part.weight for part in parts]), torch.cat(biases), "identity")
