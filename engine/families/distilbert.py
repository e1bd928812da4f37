"""DistilBERT (Sanh et al. 2019): BERT's layers under other names, no token types, no pooler."""

from penstock.engine.families.readers import LayerNames, read_classifier, read_layer, read_norm
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, stated_rows
from penstock.engine.model.weights import Dense, Embeddings, Encoder, EncoderWeights

_PREFIXES = ("", "distilbert.")
_PROBE = "embeddings.word_embeddings.weight"
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
    config, weights = checkpoint.config, checkpoint.weights
    prefix = weights.prefix(_PREFIXES, _PROBE)
    hidden = require_int(config, "dim")
    positions = weights.take(
        prefix + "embeddings.position_embeddings.weight", stated_rows(config, "max_position_embeddings"), hidden
    )
    return Encoder(
        embeddings=Embeddings(
            words=weights.take(prefix + _PROBE, stated_rows(config, "vocab_size"), hidden),
            positions=positions,
            token_types=None,
            norm=read_norm(weights, prefix + "embeddings.LayerNorm", hidden, _EPS),
        ),
        projection=None,
        layers=tuple(
            read_layer(checkpoint, f"{prefix}transformer.layer.{i}.", _LAYER, _EPS)
            for i in range(require_int(config, "n_layers"))
        ),
        hidden_size=hidden,
        num_heads=require_int(config, "n_heads"),
        max_tokens=len(positions),
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """DistilBertForSequenceClassification: pre_classifier, ReLU, classifier, on the first token."""
    return read_classifier(checkpoint.weights, "pre_classifier", "relu", "classifier")
