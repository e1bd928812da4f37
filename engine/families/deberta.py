"""DeBERTa-v2 and v3 (He et al. 2021, 2023): content and relative position attend to each other. Not DeBERTa v1."""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families.bert import LAYER as BERT_LAYER
from penstock.engine.families.late_interaction import stated_lengths
from penstock.engine.families.readers import (
    read_classifier,
    read_dense,
    read_layer,
    read_norm,
    refuse_variants,
)
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting, stated_rows
from penstock.engine.model.modules import max_tokens_beyond
from penstock.engine.model.positions import relative_rows, relative_span
from penstock.engine.model.weights import (
    Attention,
    Convolution,
    Dense,
    DisentangledAttention,
    Embeddings,
    Encoder,
    EncoderWeights,
    Heads,
    Layer,
    PlainAttention,
)

_PREFIXES = ("", "deberta.")
_PROBE = "embeddings.word_embeddings.weight"
_LAYER = replace(BERT_LAYER, qkv=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"))


_MAX_TOKENS = 512  # where config.json does not state it


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a DeBERTa-v2 or v3 checkpoint. Without a position table, as in v3, files limit the length."""
    config = checkpoint.config
    refuse_variants(checkpoint)
    _refuse(checkpoint)
    prefix = checkpoint.weights.prefix(_PREFIXES, _PROBE)
    embeddings = _embeddings(checkpoint, prefix + "embeddings.")
    positions = require_int(config, "max_position_embeddings", _MAX_TOKENS)
    max_tokens = embeddings.max_tokens or max_tokens_beyond(checkpoint, positions, stated_lengths(checkpoint))
    relative = _relative_embeddings(checkpoint, prefix, max_tokens)

    def layer(prefix: str) -> Layer[Dense]:
        attention = _attention(checkpoint, prefix + "attention.self.", relative)
        return read_layer(checkpoint, prefix, _LAYER, _eps(checkpoint), attention)

    return Encoder(
        embeddings=embeddings,
        projection=None,
        layers=tuple(layer(f"{prefix}encoder.layer.{i}.") for i in range(require_int(config, "num_hidden_layers"))),
        heads=Heads.of(require_int(config, "hidden_size"), require_int(config, "num_attention_heads")),
        max_tokens=max_tokens,
        convolution=_convolution(checkpoint, prefix + "encoder.conv."),
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """DebertaV2ForSequenceClassification: the context pooler, then the classifier."""
    activation = setting(checkpoint.config, "pooler_hidden_act", "gelu")
    return read_classifier(checkpoint.weights, "pooler.dense", activation, "classifier")


def _embeddings(checkpoint: Checkpoint, prefix: str) -> Embeddings:
    """Embedding tables of the hidden size. The matrix that widens narrow ones has no bias, so it is applied here."""
    config, weights = checkpoint.config, checkpoint.weights
    hidden = require_int(config, "hidden_size")
    width = require_int(config, "embedding_size", hidden)
    widening = weights.take(prefix + "embed_proj.weight", hidden, width) if width != hidden else None

    def table(name: str, size: str) -> Tensor:
        narrow = weights.take(f"{prefix}{name}.weight", stated_rows(config, size), width)
        return narrow if widening is None else F.linear(narrow, widening)

    has_positions = setting(config, "position_biased_input", True)
    has_types = setting(config, "type_vocab_size", 0) > 0
    return Embeddings(
        words=table("word_embeddings", "vocab_size"),
        positions=table("position_embeddings", "max_position_embeddings") if has_positions else None,
        token_types=table("token_type_embeddings", "type_vocab_size") if has_types else None,
        norm=read_norm(weights, prefix + "LayerNorm", hidden, _eps(checkpoint)),
    )


def _convolution(checkpoint: Checkpoint, prefix: str) -> Convolution[Dense] | None:
    """The convolution parallel to the first layer of deberta-v2-xlarge and -xxlarge."""
    config, weights = checkpoint.config, checkpoint.weights
    size, num_groups = setting(config, "conv_kernel_size", 0), setting(config, "conv_groups", 1)
    if size <= 0:
        return None
    if size % 2 == 0 or num_groups != 1:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: a convolution with conv_kernel_size {size} and conv_groups {num_groups} is not "
            "implemented, only an odd size and one group."
        )
    hidden = require_int(config, "hidden_size")
    kernel = weights.take(prefix + "conv.weight", hidden, hidden, size)
    weight = kernel.permute(0, 2, 1).reshape(hidden, size * hidden)
    dense = Dense(weight, weights.take(prefix + "conv.bias", hidden), setting(config, "conv_act", "tanh"))
    return Convolution(dense, size, read_norm(weights, prefix + "LayerNorm", hidden, _eps(checkpoint)))


def _relative_embeddings(checkpoint: Checkpoint, prefix: str, max_tokens: int) -> Tensor | None:
    """[2 * span, H], normalised if config.json says so; None for plain attention."""
    config, weights = checkpoint.config, checkpoint.weights
    if not setting(config, "relative_attention", False) or not _terms(checkpoint):
        return None
    hidden = require_int(config, "hidden_size")
    distances = (_num_buckets(checkpoint), _max_distance(checkpoint))
    try:
        relative_rows(max_tokens, *distances)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.directory}: config.json: {error}.") from error
    table = weights.take(prefix + "encoder.rel_embeddings.weight", 2 * relative_span(*distances), hidden)
    if "layer_norm" not in setting(config, "norm_rel_ebd", "none").lower():
        return table
    norm = read_norm(weights, prefix + "encoder.LayerNorm", hidden, _eps(checkpoint))
    return F.layer_norm(table, (hidden,), norm.weight, norm.bias, norm.eps)


def _attention(checkpoint: Checkpoint, prefix: str, relative: Tensor | None) -> Attention:
    """A layer's attention; share_att_key says which matrices project the relative embeddings."""
    if relative is None:
        return PlainAttention()
    shared = setting(checkpoint.config, "share_att_key", False)
    key, query = ("key_proj", "query_proj") if shared else ("pos_key_proj", "pos_query_proj")
    hidden = relative.shape[1]

    def projected(name: str) -> Tensor:
        dense = read_dense(checkpoint.weights, prefix + name, hidden, hidden)
        return F.linear(relative, dense.weight, dense.bias)

    terms = _terms(checkpoint)
    return DisentangledAttention(
        key_positions=projected(key) if "c2p" in terms else None,
        query_positions=projected(query) if "p2c" in terms else None,
        num_buckets=_num_buckets(checkpoint),
        max_distance=_max_distance(checkpoint),
    )


def _terms(checkpoint: Checkpoint) -> set[str]:
    """Subset of "c2p" and "p2c"; config.json holds a list, or a string with bars."""
    stated = checkpoint.config.get("pos_att_type")
    if isinstance(stated, str):
        return {name.strip() for name in stated.lower().split("|")} - {""}
    return {str(name).strip() for name in setting(checkpoint.config, "pos_att_type", [])} - {""}


def _num_buckets(checkpoint: Checkpoint) -> int:
    return setting(checkpoint.config, "position_buckets", -1)


def _max_distance(checkpoint: Checkpoint) -> int:
    stated = setting(checkpoint.config, "max_relative_positions", -1)
    return stated if stated > 0 else require_int(checkpoint.config, "max_position_embeddings", _MAX_TOKENS)


def _eps(checkpoint: Checkpoint) -> float:
    return setting(checkpoint.config, "layer_norm_eps", 1e-7)


def _refuse(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    if unknown := _terms(checkpoint) - {"c2p", "p2c"}:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: pos_att_type {sorted(unknown)} is not implemented.")
    if _terms(checkpoint) and not setting(config, "relative_attention", False):
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: pos_att_type without relative_attention is not implemented."
        )
    heads, hidden = require_int(config, "num_attention_heads"), require_int(config, "hidden_size")
    if config.get("attention_head_size", hidden // heads) != hidden // heads:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: attention_head_size is not implemented.")
