"""Readers of tensors and settings that the families share."""

from dataclasses import dataclass

import torch

from penstock.engine.errors import CheckpointError, NotPacked, UnsupportedCheckpoint
from penstock.engine.model.checkpoint import Checkpoint, Tensors
from penstock.engine.model.files import Config, require_int, setting, stated_rows
from penstock.engine.model.positions import with_pad_row
from penstock.engine.model.weights import Attention, Dense, Embeddings, Layer, Norm, PlainAttention


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Names in a post-norm layer: tensors, without the layer's prefix, and settings in config.json."""

    qkv: tuple[str, str, str]
    attention: tuple[str, str]  # output projection, norm
    mlp: tuple[str, str, str]  # up, down, norm
    hidden: str = "hidden_size"
    intermediate: str = "intermediate_size"
    activation: tuple[str, str] = ("hidden_act", "gelu")  # and its default


def read_layer(
    checkpoint: Checkpoint, prefix: str, names: LayerNames, eps: float, attention: Attention | None = None
) -> Layer[Dense]:
    """One post-norm layer; `attention` is plain by default."""
    config, weights = checkpoint.config, checkpoint.weights
    hidden, intermediate = require_int(config, names.hidden), require_int(config, names.intermediate)
    parts = [read_dense(weights, prefix + name, hidden, hidden) for name in names.qkv]
    bias = torch.cat([part.bias for part in parts if part.bias is not None])
    output, attention_norm = names.attention
    up, down, output_norm = names.mlp
    return Layer(
        qkv=Dense(torch.cat([part.weight for part in parts]), bias, "identity"),  # one product makes all three
        attention=attention or PlainAttention(),
        attention_output=read_dense(weights, prefix + output, hidden, hidden),
        attention_norm=read_norm(weights, prefix + attention_norm, hidden, eps),
        up=read_dense(weights, prefix + up, intermediate, hidden, setting(config, *names.activation)),
        down=read_dense(weights, prefix + down, hidden, intermediate),
        output_norm=read_norm(weights, prefix + output_norm, hidden, eps),
    )


def read_embeddings(
    checkpoint: Checkpoint, prefix: str, width: int, eps: float, *, has_types: bool = True, pad_token: int | None = None
) -> Embeddings:
    """Tables and norm under BERT's names. `pad_token`: of a family that numbers tokens without padding."""
    config, weights = checkpoint.config, checkpoint.weights

    def table(name: str, size: str) -> torch.Tensor:
        return weights.take(f"{prefix}{name}_embeddings.weight", stated_rows(config, size), width)

    positions = table("position", "max_position_embeddings")
    if pad_token is not None:
        positions = with_pad_row(positions, pad_token)
    return Embeddings(
        words=table("word", "vocab_size"),
        positions=positions,
        token_types=table("token_type", "type_vocab_size") if has_types else None,
        norm=read_norm(weights, prefix + "LayerNorm", width, eps),
        pad_token=pad_token,
    )


def read_dense(
    weights: Tensors, name: str, out: int, into: int, activation: str = "identity", *, bias: bool = True
) -> Dense:
    """`name`.weight [out, into] and, where the family has one, `name`.bias [out]; -1 accepts any size."""
    weight = weights.take(name + ".weight", out, into)
    return Dense(weight, weights.take(name + ".bias", out) if bias else None, activation)


def read_norm(weights: Tensors, name: str, hidden: int, eps: float, *, bias: bool = True) -> Norm:
    """`name`.weight [hidden] and, where the family has one, `name`.bias [hidden]."""
    weight = weights.take(name + ".weight", hidden)
    return Norm(weight, weights.take(name + ".bias", hidden) if bias else None, eps)


def read_classifier(weights: Tensors, first: str, activation: str, second: str) -> tuple[Dense, ...]:
    """The two layers of nearly every ...ForSequenceClassification, from the first token's state to the logits."""
    return read_dense(weights, first, -1, -1, activation), read_dense(weights, second, -1, -1)


def first_token(checkpoint: Checkpoint) -> str:
    """The pooling of nearly every ...ForSequenceClassification."""
    return "cls"


def token_classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """The single matrix of nearly every ...ForTokenClassification."""
    return (read_dense(checkpoint.weights, "classifier", -1, -1),)


def read_masked_lm(
    checkpoint: Checkpoint, transform: tuple[Dense, Norm], decoder: str, words: str, own_bias: str = ""
) -> tuple[Dense | Norm, ...]:
    """The head of a ...ForMaskedLM, whose last layer gives a logit for each token of the vocabulary.

    decoder, words: names of the last layer and of the word table. As in transformers a decoder that the checkpoint
    holds counts; without one it is the word table, if config.json ties them. own_bias: another name of its bias.
    """
    weights = checkpoint.weights
    matrix, bias = decoder + ".weight", decoder + ".bias"
    if setting(checkpoint.config, "tie_word_embeddings", True):
        matrix = matrix if matrix in weights else words
        bias = own_bias if own_bias and bias not in weights else bias
    weight = weights.take(matrix, stated_rows(checkpoint.config, "vocab_size"), -1)
    return (*transform, Dense(weight, weights.take(bias, len(weight)), "identity"))


def require_same(config: Config, key: str, other: str) -> None:
    """Raise CheckpointError where two names of one setting have different values: the reference takes the last."""
    first = require_int(config, key)
    if (second := require_int(config, other, first)) != first:
        raise CheckpointError(f"config.json: {key!r} is {first} and {other!r} {second}; they are one setting.")


def refuse_causal(checkpoint: Checkpoint, *, has_decoder: bool = False) -> None:
    """Raise NotPacked for `is_causal`, by which transformers masks the tokens after each in any encoder.

    has_decoder: that the model runs, which is causal only where nothing is stated.
    """
    config = checkpoint.config
    if "is_causal" in config if has_decoder else setting(config, "is_causal", False):
        raise NotPacked(f"{checkpoint.directory}: is_causal {config['is_causal']!r} is not implemented.")


def refuse_variants(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedCheckpoint for settings that change the arithmetic and are not implemented."""
    config = checkpoint.config
    positions = setting(config, "position_embedding_type", "absolute")
    if positions != "absolute":
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: position_embedding_type {positions!r} is not implemented, only 'absolute'."
        )
    if any(setting(config, key, False) for key in ("is_decoder", "add_cross_attention")):
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: decoders (is_decoder, add_cross_attention) are not implemented."
        )
