"""DistilBERT (Sanh et al. 2019): BERT's layers under other names, no token types, no pooler."""

from penstock.engine.families.readers import (
    LayerNames,
    read_classifier,
    read_dense,
    read_embeddings,
    read_layer,
    read_masked_lm,
    read_norm,
    require_same,
)
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import Dense, Encoder, EncoderWeights, Heads, Norm

_PREFIXES = ("", "distilbert.")
_PROBE = "embeddings.word_embeddings.weight"
_ONE_SETTING = (  # transformers' own names of DistilBERT's settings
    ("dim", "hidden_size"),
    ("n_heads", "num_attention_heads"),
    ("n_layers", "num_hidden_layers"),
)
_EPS = 1e-12  # fixed in the reference implementation; its config has no such key
_LAYER = LayerNames(
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    attention=("attention.out_lin", "sa_layer_norm"),
    mlp=("ffn.lin1", "ffn.lin2", "output_layer_norm"),
    hidden="dim",
    intermediate="hidden_dim",
    activation=("activation", "gelu"),
)


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a DistilBERT checkpoint."""
    config, prefix = checkpoint.config, checkpoint.weights.prefix(_PREFIXES, _PROBE)
    for key, other in _ONE_SETTING:
        require_same(config, key, other)
    hidden = require_int(config, "dim")
    embeddings = read_embeddings(checkpoint, prefix + "embeddings.", hidden, _EPS, has_types=False)
    return Encoder(
        embeddings=embeddings,
        projection=None,
        layers=tuple(
            read_layer(checkpoint, f"{prefix}transformer.layer.{i}.", _LAYER, _EPS)
            for i in range(require_int(config, "n_layers"))
        ),
        heads=Heads.of(hidden, require_int(config, "n_heads")),
        max_tokens=embeddings.max_tokens,
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """DistilBertForSequenceClassification: pre_classifier, ReLU, classifier, on the first token."""
    return read_classifier(checkpoint.weights, "pre_classifier", "relu", "classifier")


def masked_lm(checkpoint: Checkpoint) -> tuple[Dense | Norm, ...]:
    """DistilBertForMaskedLM: dense, activation, norm, decoder."""
    weights, hidden = checkpoint.weights, require_int(checkpoint.config, "dim")
    transform = (
        read_dense(weights, "vocab_transform", hidden, hidden, setting(checkpoint.config, *_LAYER.activation)),
        read_norm(weights, "vocab_layer_norm", hidden, _EPS),
    )
    return read_masked_lm(checkpoint, transform, "vocab_projector", weights.prefix(_PREFIXES, _PROBE) + _PROBE)
