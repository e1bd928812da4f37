"""MPNet (Song et al. 2020): BERT's layers, positions from 2, and one bias a distance that all layers share."""

import torch

from penstock.engine.errors import CheckpointError
from penstock.engine.families.readers import LayerNames, read_embeddings, read_layer, refuse_variants
from penstock.engine.families.roberta import read_lm_head
from penstock.engine.families.t5 import distance_buckets
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import Dense, DistanceAttention, Encoder, EncoderWeights, Heads, Norm

_PREFIXES = ("", "mpnet.")
_PROBE = "embeddings.word_embeddings.weight"
# Constants of the reference implementation, which ignores config.json here.
_PAD_TOKEN = 1  # of the numbering of positions
_NUM_BUCKETS = 32
_MAX_DISTANCE = 128
_LAYER = LayerNames(
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    attention=("attention.attn.o", "attention.LayerNorm"),
    mlp=("intermediate.dense", "output.dense", "output.LayerNorm"),
)


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of an MPNet checkpoint."""
    config, weights = checkpoint.config, checkpoint.weights
    refuse_variants(checkpoint)
    prefix = weights.prefix(_PREFIXES, _PROBE)
    hidden, num_heads = require_int(config, "hidden_size"), require_int(config, "num_attention_heads")
    eps = setting(config, "layer_norm_eps", 1e-12)
    embeddings = read_embeddings(checkpoint, prefix + "embeddings.", hidden, eps, has_types=False, pad_token=_PAD_TOKEN)
    table = weights.take(prefix + "encoder.relative_attention_bias.weight", -1, num_heads)
    if len(table) < _NUM_BUCKETS:
        raise CheckpointError(f"{checkpoint.directory}: {len(table)} relative positions; MPNet needs {_NUM_BUCKETS}.")
    buckets = distance_buckets(torch.arange(-_MAX_DISTANCE, _MAX_DISTANCE + 1), _NUM_BUCKETS, _MAX_DISTANCE)
    attention = DistanceAttention(table[buckets].T.contiguous())
    return Encoder(
        embeddings=embeddings,
        projection=None,
        layers=tuple(
            read_layer(checkpoint, f"{prefix}encoder.layer.{i}.", _LAYER, eps, attention)
            for i in range(require_int(config, "num_hidden_layers"))
        ),
        heads=Heads.of(hidden, num_heads),
        max_tokens=embeddings.max_tokens,
    )


def masked_lm(checkpoint: Checkpoint) -> tuple[Dense | Norm, ...]:
    """MPNetForMaskedLM: RoBERTa's head."""
    return read_lm_head(checkpoint, checkpoint.weights.prefix(_PREFIXES, _PROBE) + _PROBE)
