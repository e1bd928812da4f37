"""MPNet (Song et al. 2020): BERT's layers, positions from 2, and one bias a distance that all layers share."""

import math

import torch
from torch import Tensor

from penstock.engine.errors import CheckpointError
from penstock.engine.families.readers import fuse_qkv, read_dense, read_norm, refuse_variants, require_int
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import BiasedAttention, Dense, Embeddings, Encoder, EncoderWeights, Layer

_PREFIXES = ("", "mpnet.")
_PROBE = "embeddings.word_embeddings.weight"
# Fixed in the reference implementation, whatever config.json says of them.
_FIRST_POSITION = 2
_NUM_BUCKETS = 32
_MAX_DISTANCE = 128


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of an MPNet checkpoint."""
    config, weights = checkpoint.config, checkpoint.weights
    refuse_variants(checkpoint)
    prefix = weights.prefix(_PREFIXES, _PROBE)
    hidden, num_heads = require_int(config, "hidden_size"), require_int(config, "num_attention_heads")
    positions = weights.take(prefix + "embeddings.position_embeddings.weight", -1, hidden)[_FIRST_POSITION:]
    table = weights.take(prefix + "encoder.relative_attention_bias.weight", -1, num_heads)
    if len(table) < _NUM_BUCKETS:
        raise CheckpointError(f"{checkpoint.directory}: {len(table)} relative positions; MPNet needs {_NUM_BUCKETS}.")
    attention = BiasedAttention(_bias(table, len(positions)))
    return Encoder(
        embeddings=Embeddings(
            words=weights.take(prefix + _PROBE, -1, hidden),
            positions=positions,
            token_types=None,
            norm=read_norm(weights, prefix + "embeddings.LayerNorm", hidden, _eps(checkpoint)),
        ),
        projection=None,
        layers=tuple(
            _read_layer(checkpoint, f"{prefix}encoder.layer.{i}.", hidden, attention)
            for i in range(require_int(config, "num_hidden_layers"))
        ),
        hidden_size=hidden,
        num_heads=num_heads,
        max_tokens=len(positions),
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """MPNetForSequenceClassification: dense, tanh, projection, on the first token."""
    return (
        read_dense(checkpoint.weights, "classifier.dense", -1, -1, activation="tanh"),
        read_dense(checkpoint.weights, "classifier.out_proj", -1, -1),
    )


def _bias(table: Tensor, max_tokens: int) -> Tensor:
    """[num_buckets, heads] to [heads, max_tokens, max_tokens], for query i and key j."""
    positions = torch.arange(max_tokens)
    return table[_bucket(positions[None, :] - positions[:, None])].permute(2, 0, 1).contiguous()


def _bucket(distance: Tensor) -> Tensor:
    """T5's buckets (Raffel et al. 2020, section 2.1) of key - query: half of them for either sign.

    In float32 and in the reference's order of operations: it is rounded towards zero.
    """
    half = _NUM_BUCKETS // 2
    exact = half // 2  # below it one bucket a distance, above it logarithmic ones
    length = distance.abs()
    steps = torch.log(length.float() / exact) / math.log(_MAX_DISTANCE / exact) * (half - exact)
    far = (exact + steps.clamp(min=0).long()).clamp(max=half - 1)  # log(0) is minus infinity
    return torch.where(length < exact, length, far) + half * (distance > 0)


def _read_layer(checkpoint: Checkpoint, prefix: str, hidden: int, attention: BiasedAttention) -> Layer[Dense]:
    weights, config, names, eps = checkpoint.weights, checkpoint.config, prefix + "attention.attn.", _eps(checkpoint)
    intermediate = require_int(config, "intermediate_size")
    activation = str(config.get("hidden_act", "gelu"))
    return Layer(
        qkv=fuse_qkv(weights, names + "q", names + "k", names + "v", hidden),
        attention=attention,
        attention_output=read_dense(weights, names + "o", hidden, hidden),
        attention_norm=read_norm(weights, prefix + "attention.LayerNorm", hidden, eps),
        up=read_dense(weights, prefix + "intermediate.dense", intermediate, hidden, activation),
        down=read_dense(weights, prefix + "output.dense", hidden, intermediate),
        output_norm=read_norm(weights, prefix + "output.LayerNorm", hidden, eps),
    )


def _eps(checkpoint: Checkpoint) -> float:
    return float(checkpoint.config.get("layer_norm_eps", 1e-12))
