"""T5, its version 1.1, mT5 and umT5 (Raffel et al. 2020): pre-norm RMSNorm, biases by distance, no other positions."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from penstock.engine.errors import NotPacked, UnsupportedCheckpoint
from penstock.engine.families.bart import first_of, require_tied
from penstock.engine.families.readers import read_dense, read_norm, require_same
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.dense import require_activation
from penstock.engine.model.files import Config, require_int, setting, stated_rows
from penstock.engine.model.seq2seq import (
    CrossAttention,
    DecoderLayer,
    DecoderStack,
    EncoderStack,
    Seq2Seq,
    Seq2SeqWeights,
    TokenEmbeddings,
)
from penstock.engine.model.weights import (
    Dense,
    DistanceAttention,
    Embeddings,
    Encoder,
    EncoderWeights,
    Heads,
    Layer,
    Norm,
)

_SHARED = "shared.weight"
_ONE_SETTING = (  # transformers' own names of T5's settings
    ("d_model", "hidden_size"),
    ("num_heads", "num_attention_heads"),
    ("num_layers", "num_hidden_layers"),
    ("d_kv", "head_dim"),
)
_BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
_OF_CLASSIFIER = "transformer."  # precedes all tensors of T5ForSequenceClassification and T5ForTokenClassification
_FIRST_NORM = "block.0.layer.0.layer_norm"


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a T5 checkpoint, which may have a decoder that is not used."""
    if setting(checkpoint.config, "is_decoder", False):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: an encoder with is_decoder is not implemented.")
    if f"{_OF_CLASSIFIER}encoder.{_FIRST_NORM}.weight" in checkpoint.weights:
        raise NotPacked(f"{checkpoint.directory}: tensors below {_OF_CLASSIFIER!r} are not implemented.")
    checkpoint = _in_own_names(checkpoint)
    checkpoint.weights.leave_out("decoder.")
    stack = _read_encoder(checkpoint)
    return Encoder(
        embeddings=Embeddings(words=stack.embeddings.words, positions=None, token_types=None, norm=None),
        projection=None,
        layers=stack.layers,
        heads=stack.heads,
        max_tokens=None,
        pre_norm=True,
        first_norm=stack.embeddings.first_norm,
    )


def _in_own_names(checkpoint: Checkpoint) -> Checkpoint:
    """With the settings that config.json states under transformers' names alone."""
    config = checkpoint.config
    stated = {own: config[other] for own, other in _ONE_SETTING if other in config and own not in config}
    return replace(checkpoint, config=Config(config | stated))


def seq2seq(checkpoint: Checkpoint) -> Seq2SeqWeights:
    """The encoder, decoder and head of a T5 checkpoint."""
    config, weights = checkpoint.config, checkpoint.weights
    hidden = require_int(config, "d_model")
    num_layers = require_int(config, "num_decoder_layers", require_int(config, "num_layers"))
    target = _read_words(checkpoint, "decoder")
    head = first_of(weights, ("lm_head.weight", "decoder.embed_tokens.weight", _SHARED), -1, hidden)
    past = _distance_attention(checkpoint, "decoder", 0, is_causal=True)
    return Seq2Seq(
        encoder=_read_encoder(checkpoint),
        decoder=DecoderStack(
            embeddings=TokenEmbeddings(target, None, first_norm=_norm(checkpoint, f"decoder.{_FIRST_NORM}")),
            layers=tuple(
                DecoderLayer(
                    layer=_read_layer(checkpoint, "decoder", i, num_layers, past),
                    cross=_read_cross(checkpoint, f"decoder.block.{i}."),
                )
                for i in range(num_layers)
            ),
            heads=_heads(config),
        ),
        head=Dense(head * hidden**-0.5 if _is_scaled(config) else head, None, "identity"),
        pre_norm=True,
    )


def distance_buckets(distance: Tensor, num_buckets: int, max_distance: int, *, is_causal: bool = False) -> Tensor:
    """Buckets of the distances key - query: half of them for either sign, or all of them for the past (is_causal).

    In float32 and in the reference's order of operations: it is rounded towards zero.
    """
    half = num_buckets if is_causal else num_buckets // 2
    exact = half // 2  # below it one bucket a distance, above it logarithmic ones
    length = -distance.clamp(max=0) if is_causal else distance.abs()
    steps = torch.log(length.float() / exact) / math.log(max_distance / exact) * (half - exact)
    far = (exact + steps.clamp(min=0).long()).clamp(max=half - 1)  # log(0) is minus infinity
    buckets = torch.where(length < exact, length, far)
    return buckets if is_causal else buckets + half * (distance > 0)


def _read_encoder(checkpoint: Checkpoint) -> EncoderStack[Dense]:
    config = checkpoint.config
    for key, other in _ONE_SETTING:
        require_same(config, key, other)
    num_layers, first_norm = require_int(config, "num_layers"), _norm(checkpoint, f"encoder.{_FIRST_NORM}")
    with_bias = num_layers if config.get("model_type") == "umt5" else 1  # layers; the others share the first one's
    around = [_distance_attention(checkpoint, "encoder", i, is_causal=False) for i in range(with_bias)]
    return EncoderStack(
        embeddings=TokenEmbeddings(_read_words(checkpoint, "encoder"), None, first_norm=first_norm),
        layers=tuple(
            _read_layer(checkpoint, "encoder", i, num_layers, around[i % with_bias]) for i in range(num_layers)
        ),
        heads=_heads(config),
    )


def _heads(config: Config) -> Heads:
    """Heads whose size is stated by itself: together they may be wider than the hidden states."""
    num_heads = require_int(config, "num_heads")
    return Heads(num_heads, num_heads, require_int(config, "d_kv"))


def _read_words(checkpoint: Checkpoint, stack: str) -> Tensor:
    config, names = checkpoint.config, (f"{stack}.embed_tokens.weight", _SHARED)
    require_tied(checkpoint, names)
    return first_of(checkpoint.weights, names, stated_rows(config, "vocab_size"), require_int(config, "d_model"))


def _distance_attention(checkpoint: Checkpoint, stack: str, index: int, *, is_causal: bool) -> DistanceAttention:
    config, heads = checkpoint.config, require_int(checkpoint.config, "num_heads")
    num_buckets = require_int(config, "relative_attention_num_buckets", 32)
    reach = require_int(config, "relative_attention_max_distance", 128)
    exact = (num_buckets if is_causal else num_buckets // 2) // 2  # of `distance_buckets`
    if exact == 0 or reach <= exact:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: {num_buckets} buckets do not reach a distance of {reach} (config.json: "
            "relative_attention_num_buckets, relative_attention_max_distance)."
        )
    table = checkpoint.weights.take(f"{stack}.block.{index}.{_BIAS}", num_buckets, heads)
    distances = torch.arange(-reach, reach + 1)
    return DistanceAttention(table[distance_buckets(distances, num_buckets, reach, is_causal=is_causal)].T.contiguous())


def _read_layer(
    checkpoint: Checkpoint, stack: str, index: int, num_layers: int, attention: DistanceAttention
) -> Layer[Dense]:
    """Self-attention and MLP. A norm follows each addition: the next block's first one, or the final one."""
    config, weights = checkpoint.config, checkpoint.weights
    hidden, inner = require_int(config, "d_model"), require_int(config, "d_ff")
    block = f"{stack}.block.{index}."
    mlp = f"{block}layer.{1 if stack == 'encoder' else 2}."
    query, key, value, output = _read_attention(checkpoint, block + "layer.0.SelfAttention.")
    activation, is_gated = _activation(checkpoint)
    names = ("wi_0", "wi_1") if is_gated else ("wi",)
    ups = [read_dense(weights, f"{mlp}DenseReluDense.{name}", inner, hidden, bias=False) for name in names]
    is_last = index + 1 == num_layers
    after = f"{stack}.final_layer_norm" if is_last else f"{stack}.block.{index + 1}.layer.0.layer_norm"
    return Layer(
        qkv=Dense(torch.cat([query.weight, key.weight, value.weight]), None, "identity"),
        attention=attention,
        attention_output=output,
        attention_norm=_norm(checkpoint, f"{block}layer.1.layer_norm"),
        up=Dense(torch.cat([up.weight for up in ups]), None, "identity" if is_gated else activation),
        down=read_dense(weights, f"{mlp}DenseReluDense.wo", hidden, inner, bias=False),
        output_norm=_norm(checkpoint, after),
        gate=activation if is_gated else None,
    )


def _read_cross(checkpoint: Checkpoint, block: str) -> CrossAttention[Dense]:
    query, key, value, output = _read_attention(checkpoint, block + "layer.1.EncDecAttention.")
    key_value = Dense(torch.cat([key.weight, value.weight]), None, "identity")
    return CrossAttention(query, key_value, output, _norm(checkpoint, block + "layer.2.layer_norm"))


def _read_attention(checkpoint: Checkpoint, prefix: str) -> tuple[Dense, Dense, Dense, Dense]:
    """Query, key, value and output. T5 does not scale its scores: the query is multiplied by what others divide by."""
    config, weights, hidden = checkpoint.config, checkpoint.weights, require_int(checkpoint.config, "d_model")
    head_dim = require_int(config, "d_kv")
    width = head_dim * require_int(config, "num_heads")
    query = Dense(weights.take_scaled(f"{prefix}q.weight", math.sqrt(head_dim), width, hidden), None, "identity")
    key, value = (read_dense(weights, prefix + name, width, hidden, bias=False) for name in "kv")
    return query, key, value, read_dense(weights, prefix + "o", hidden, width, bias=False)


def _norm(checkpoint: Checkpoint, name: str) -> Norm:
    config = checkpoint.config
    hidden, eps = require_int(config, "d_model"), setting(config, "layer_norm_epsilon", 1e-6)
    return replace(read_norm(checkpoint.weights, name, hidden, eps, bias=False), subtracts_mean=False)


def _is_scaled(config: Config) -> bool:
    """Whether the last hidden state is scaled: in T5's first version, which alone has tied embeddings."""
    is_tied = setting(config, "tie_word_embeddings", True)
    return config.get("model_type") == "t5" and setting(config, "scale_decoder_outputs", is_tied)


def _activation(checkpoint: Checkpoint) -> tuple[str, bool]:
    """The activation's name, and whether the MLP is gated: `feed_forward_proj` is a name, or gated- and a name."""
    config, default = checkpoint.config, "relu" if checkpoint.config.get("model_type") == "t5" else "gated-gelu"
    projection = setting(config, "feed_forward_proj", default)
    name = "gelu_new" if projection == "gated-gelu" else projection.removeprefix("gated-")
    name = setting(config, "dense_act_fn", name)  # transformers' own name of it, which counts where both are there
    require_activation(name)
    is_gated = projection.startswith("gated-") and "is_gated_act" not in config  # which is false where it is null
    return name, setting(config, "is_gated_act", is_gated)
