"""ALBERT (Lan et al. 2020): narrow embeddings with a projection, and layers that share their weights in groups."""

from penstock.engine.families.readers import fuse_qkv, read_dense, read_norm, refuse_variants, require_int
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, Embeddings, Encoder, EncoderWeights, Layer, PlainAttention

_PREFIXES = ("", "albert.")
_PROBE = "embeddings.word_embeddings.weight"


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of an ALBERT checkpoint. Layers with the same weights are one `Layer` object."""
    config, weights = checkpoint.config, checkpoint.weights
    refuse_variants(checkpoint)
    prefix = weights.prefix(_PREFIXES, _PROBE)
    hidden, width = require_int(config, "hidden_size"), require_int(config, "embedding_size")
    embeddings = prefix + "embeddings."
    positions = weights.take(embeddings + "position_embeddings.weight", -1, width)
    return Encoder(
        embeddings=Embeddings(
            words=weights.take(prefix + _PROBE, -1, width),
            positions=positions,
            token_types=weights.take(embeddings + "token_type_embeddings.weight", -1, width),
            norm=read_norm(weights, embeddings + "LayerNorm", width, _eps(checkpoint)),
        ),
        projection=read_dense(weights, prefix + "encoder.embedding_hidden_mapping_in", hidden, width),
        layers=_layers(checkpoint, prefix, hidden),
        hidden_size=hidden,
        num_heads=require_int(config, "num_attention_heads"),
        max_tokens=len(positions),
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """AlbertForSequenceClassification: the tanh pooler, then the classifier."""
    weights = checkpoint.weights
    prefix = weights.prefix(_PREFIXES, _PROBE)
    return (
        read_dense(weights, prefix + "pooler", -1, -1, activation="tanh"),
        read_dense(weights, "classifier", -1, -1),
    )


def _layers(checkpoint: Checkpoint, prefix: str, hidden: int) -> tuple[Layer[Dense], ...]:
    """Each step of the model runs one group, and each group all of its inner layers."""
    config = checkpoint.config
    num_steps, num_groups = require_int(config, "num_hidden_layers"), require_int(config, "num_hidden_groups")
    groups = [
        [
            _read_layer(checkpoint, f"{prefix}encoder.albert_layer_groups.{group}.albert_layers.{inner}.", hidden)
            for inner in range(require_int(config, "inner_group_num"))
        ]
        for group in range(num_groups)
    ]
    return tuple(layer for step in range(num_steps) for layer in groups[int(step / (num_steps / num_groups))])


def _read_layer(checkpoint: Checkpoint, prefix: str, hidden: int) -> Layer[Dense]:
    weights, attention, eps = checkpoint.weights, prefix + "attention.", _eps(checkpoint)
    intermediate = require_int(checkpoint.config, "intermediate_size")
    activation = str(checkpoint.config.get("hidden_act", "gelu_new"))
    return Layer(
        qkv=fuse_qkv(weights, attention + "query", attention + "key", attention + "value", hidden),
        attention=PlainAttention(),
        attention_output=read_dense(weights, attention + "dense", hidden, hidden),
        attention_norm=read_norm(weights, attention + "LayerNorm", hidden, eps),
        up=read_dense(weights, prefix + "ffn", intermediate, hidden, activation),
        down=read_dense(weights, prefix + "ffn_output", hidden, intermediate),
        output_norm=read_norm(weights, prefix + "full_layer_layer_norm", hidden, eps),
    )


def _eps(checkpoint: Checkpoint) -> float:
    return float(checkpoint.config.get("layer_norm_eps", 1e-12))
