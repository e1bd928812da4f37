"""BERT and MiniLM (Devlin et al. 2019). RoBERTa and ELECTRA share the layer names, and so this reader."""

from penstock.engine.families.readers import fuse_qkv, read_dense, read_norm, refuse_variants, require_int
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, Embeddings, Encoder, EncoderWeights, Layer, PlainAttention

_PREFIXES = ("", "bert.")
_PROBE = "embeddings.word_embeddings.weight"


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a BERT checkpoint, whatever head it was saved with."""
    prefix = checkpoint.weights.prefix(_PREFIXES, _PROBE)
    return read_encoder(checkpoint, prefix, first_position=0)


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """BertForSequenceClassification: the tanh pooler, then the classifier."""
    weights = checkpoint.weights
    prefix = weights.prefix(_PREFIXES, _PROBE)
    return (
        read_dense(weights, prefix + "pooler.dense", -1, -1, activation="tanh"),
        read_dense(weights, "classifier", -1, -1),
    )


def read_encoder(checkpoint: Checkpoint, prefix: str, first_position: int) -> EncoderWeights:
    """An encoder with BERT's tensor names. Rows of the position table before `first_position` are never used."""
    config, weights = checkpoint.config, checkpoint.weights
    refuse_variants(checkpoint)
    hidden, eps = require_int(config, "hidden_size"), float(config.get("layer_norm_eps", 1e-12))
    projection = prefix + "embeddings_project"
    narrow = projection + ".weight" in weights  # ELECTRA's small models
    width = require_int(config, "embedding_size") if narrow else hidden
    embeddings = prefix + "embeddings."
    positions = weights.take(embeddings + "position_embeddings.weight", -1, width)[first_position:]
    return Encoder(
        embeddings=Embeddings(
            words=weights.take(embeddings + "word_embeddings.weight", -1, width),
            positions=positions,
            token_types=weights.take(embeddings + "token_type_embeddings.weight", -1, width),
            norm=read_norm(weights, embeddings + "LayerNorm", width, eps),
        ),
        projection=read_dense(weights, projection, hidden, width) if narrow else None,
        layers=tuple(
            _read_layer(checkpoint, f"{prefix}encoder.layer.{i}.", hidden, eps)
            for i in range(require_int(config, "num_hidden_layers"))
        ),
        hidden_size=hidden,
        num_heads=require_int(config, "num_attention_heads"),
        max_tokens=len(positions),
    )


def _read_layer(checkpoint: Checkpoint, prefix: str, hidden: int, eps: float) -> Layer[Dense]:
    weights, attention = checkpoint.weights, prefix + "attention."
    intermediate = require_int(checkpoint.config, "intermediate_size")
    names = (attention + "self.query", attention + "self.key", attention + "self.value")
    return Layer(
        qkv=fuse_qkv(weights, *names, hidden),
        attention=PlainAttention(),
        attention_output=read_dense(weights, attention + "output.dense", hidden, hidden),
        attention_norm=read_norm(weights, attention + "output.LayerNorm", hidden, eps),
        up=read_dense(
            weights,
            prefix + "intermediate.dense",
            intermediate,
            hidden,
            str(checkpoint.config.get("hidden_act", "gelu")),
        ),
        down=read_dense(weights, prefix + "output.dense", hidden, intermediate),
        output_norm=read_norm(weights, prefix + "output.LayerNorm", hidden, eps),
    )
