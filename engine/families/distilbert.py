"""DistilBERT (Sanh et al. 2019): BERT's layers under other names, no token types, no pooler."""

from penstock.engine.families.readers import fuse_qkv, read_dense, read_norm, require_int
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, Embeddings, Encoder, EncoderWeights, Layer, PlainAttention

_PREFIXES = ("", "distilbert.")
_PROBE = "embeddings.word_embeddings.weight"
_EPS = 1e-12  # fixed in the reference implementation; its config has no such key


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a DistilBERT checkpoint."""
    config, weights = checkpoint.config, checkpoint.weights
    prefix = weights.prefix(_PREFIXES, _PROBE)
    hidden = require_int(config, "dim")
    positions = weights.take(prefix + "embeddings.position_embeddings.weight", -1, hidden)
    return Encoder(
        embeddings=Embeddings(
            words=weights.take(prefix + _PROBE, -1, hidden),
            positions=positions,
            token_types=None,
            norm=read_norm(weights, prefix + "embeddings.LayerNorm", hidden, _EPS),
        ),
        projection=None,
        layers=tuple(
            _read_layer(checkpoint, f"{prefix}transformer.layer.{i}.", hidden)
            for i in range(require_int(config, "n_layers"))
        ),
        hidden_size=hidden,
        num_heads=require_int(config, "n_heads"),
        max_tokens=len(positions),
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """DistilBertForSequenceClassification: pre_classifier, ReLU, classifier, on the first token."""
    return (
        read_dense(checkpoint.weights, "pre_classifier", -1, -1, activation="relu"),
        read_dense(checkpoint.weights, "classifier", -1, -1),
    )


def _read_layer(checkpoint: Checkpoint, prefix: str, hidden: int) -> Layer[Dense]:
    weights, intermediate = checkpoint.weights, require_int(checkpoint.config, "hidden_dim")
    names = (prefix + "attention.q_lin", prefix + "attention.k_lin", prefix + "attention.v_lin")
    return Layer(
        qkv=fuse_qkv(weights, *names, hidden),
        attention=PlainAttention(),
        attention_output=read_dense(weights, prefix + "attention.out_lin", hidden, hidden),
        attention_norm=read_norm(weights, prefix + "sa_layer_norm", hidden, _EPS),
        up=read_dense(
            weights, prefix + "ffn.lin1", intermediate, hidden, str(checkpoint.config.get("activation", "gelu"))
        ),
        down=read_dense(weights, prefix + "ffn.lin2", hidden, intermediate),
        output_norm=read_norm(weights, prefix + "output_layer_norm", hidden, _EPS),
    )
