"""BERT and MiniLM (Devlin et al. 2019). RoBERTa and ELECTRA share the layer names, and so this reader."""

from penstock.engine.families.readers import (
    LayerNames,
    read_classifier,
    read_dense,
    read_embeddings,
    read_layer,
    read_masked_lm,
    read_norm,
    refuse_variants,
)
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import Dense, Encoder, EncoderWeights, Heads, Norm

_PREFIXES = ("", "bert.")
_PROBE = "embeddings.word_embeddings.weight"
LAYER = LayerNames(
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention=("attention.output.dense", "attention.output.LayerNorm"),
    mlp=("intermediate.dense", "output.dense", "output.LayerNorm"),
)


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a BERT checkpoint, saved with any head or none."""
    prefix = checkpoint.weights.prefix(_PREFIXES, _PROBE)
    return read_encoder(checkpoint, prefix)


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """BertForSequenceClassification: the tanh pooler, then the classifier."""
    prefix = checkpoint.weights.prefix(_PREFIXES, _PROBE)
    return read_classifier(checkpoint.weights, prefix + "pooler.dense", "tanh", "classifier")


def masked_lm(checkpoint: Checkpoint) -> tuple[Dense | Norm, ...]:
    """BertForMaskedLM: dense, activation, norm, decoder."""
    config, weights, head = checkpoint.config, checkpoint.weights, "cls.predictions"
    hidden, eps = require_int(config, "hidden_size"), setting(config, "layer_norm_eps", 1e-12)
    transform = (
        read_dense(weights, head + ".transform.dense", hidden, hidden, setting(config, "hidden_act", "gelu")),
        read_norm(weights, head + ".transform.LayerNorm", hidden, eps),
    )
    words = weights.prefix(_PREFIXES, _PROBE) + _PROBE
    return read_masked_lm(checkpoint, transform, head + ".decoder", words, own_bias=head + ".bias")


def read_encoder(checkpoint: Checkpoint, prefix: str, pad_token: int | None = None) -> EncoderWeights:
    """An encoder with BERT's tensor names. `pad_token`: of a family that numbers tokens without padding."""
    config, weights = checkpoint.config, checkpoint.weights
    refuse_variants(checkpoint)
    hidden, eps = require_int(config, "hidden_size"), setting(config, "layer_norm_eps", 1e-12)
    projection = prefix + "embeddings_project"
    narrow = projection + ".weight" in weights  # ELECTRA's small models
    width = require_int(config, "embedding_size") if narrow else hidden
    embeddings = read_embeddings(checkpoint, prefix + "embeddings.", width, eps, pad_token=pad_token)
    return Encoder(
        embeddings=embeddings,
        projection=read_dense(weights, projection, hidden, width) if narrow else None,
        layers=tuple(
            read_layer(checkpoint, f"{prefix}encoder.layer.{i}.", LAYER, eps)
            for i in range(require_int(config, "num_hidden_layers"))
        ),
        heads=Heads.of(hidden, require_int(config, "num_attention_heads")),
        max_tokens=embeddings.max_tokens,
    )
