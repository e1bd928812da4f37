"""ALBERT (Lan et al. 2020): narrow embeddings with a projection, and layers that share their weights in groups."""

from penstock.engine.families.readers import (
    LayerNames,
    read_classifier,
    read_dense,
    read_embeddings,
    read_layer,
    refuse_variants,
)
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import Dense, Encoder, EncoderWeights, Heads, Layer

_PREFIXES = ("", "albert.")
_PROBE = "embeddings.word_embeddings.weight"
_LAYER = LayerNames(
    qkv=("attention.query", "attention.key", "attention.value"),
    attention=("attention.dense", "attention.LayerNorm"),
    mlp=("ffn", "ffn_output", "full_layer_layer_norm"),
    activation=("hidden_act", "gelu_new"),
)


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of an ALBERT checkpoint. Layers with the same weights are one `Layer` object."""
    config, weights = checkpoint.config, checkpoint.weights
    refuse_variants(checkpoint)
    prefix = weights.prefix(_PREFIXES, _PROBE)
    hidden, width = require_int(config, "hidden_size"), require_int(config, "embedding_size")
    eps = setting(config, "layer_norm_eps", 1e-12)
    embeddings = read_embeddings(checkpoint, prefix + "embeddings.", width, eps)
    return Encoder(
        embeddings=embeddings,
        projection=read_dense(weights, prefix + "encoder.embedding_hidden_mapping_in", hidden, width),
        layers=_layers(checkpoint, prefix, eps),
        heads=Heads.of(hidden, require_int(config, "num_attention_heads")),
        max_tokens=embeddings.max_tokens,
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """AlbertForSequenceClassification: the tanh pooler, then the classifier."""
    prefix = checkpoint.weights.prefix(_PREFIXES, _PROBE)
    return read_classifier(checkpoint.weights, prefix + "pooler", "tanh", "classifier")


def _layers(checkpoint: Checkpoint, prefix: str, eps: float) -> tuple[Layer[Dense], ...]:
    """All layers in order: each step runs one group, and each group all of its inner layers."""
    config = checkpoint.config
    num_steps, num_groups = require_int(config, "num_hidden_layers"), require_int(config, "num_hidden_groups", 1)
    groups = [
        [
            read_layer(checkpoint, f"{prefix}encoder.albert_layer_groups.{group}.albert_layers.{inner}.", _LAYER, eps)
            for inner in range(require_int(config, "inner_group_num", 1))
        ]
        for group in range(num_groups)
    ]
    return tuple(layer for step in range(num_steps) for layer in groups[int(step / (num_steps / num_groups))])
