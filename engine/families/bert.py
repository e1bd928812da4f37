"""BERT and MiniLM (Devlin et al. 2019). RoBERTa shares the layer names, and so these readers."""

import torch

from penstock.engine.checkpoint import Checkpoint, Config, Tensors
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.weights import Dense, Embeddings, Encoder, EncoderWeights, Layer, Norm, PlainAttention

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
    _refuse_variants(checkpoint)
    hidden, eps = require_int(config, "hidden_size"), float(config.get("layer_norm_eps", 1e-12))
    embeddings = prefix + "embeddings."
    positions = weights.take(embeddings + "position_embeddings.weight", -1, hidden)[first_position:]
    return Encoder(
        embeddings=Embeddings(
            words=weights.take(embeddings + "word_embeddings.weight", -1, hidden),
            positions=positions,
            token_types=weights.take(embeddings + "token_type_embeddings.weight", -1, hidden),
            norm=read_norm(weights, embeddings + "LayerNorm", hidden, eps),
        ),
        projection=None,
        layers=tuple(
            _read_layer(checkpoint, f"{prefix}encoder.layer.{i}.", hidden, eps)
            for i in range(require_int(config, "num_hidden_layers"))
        ),
        hidden_size=hidden,
        num_heads=require_int(config, "num_attention_heads"),
        max_tokens=len(positions),
    )


def fuse_qkv(weights: Tensors, query: str, key: str, value: str, hidden: int) -> Dense:
    """One [3H, H] matrix from three, so that one GEMM makes all of query, key and value."""
    parts = [read_dense(weights, name, hidden, hidden) for name in (query, key, value)]
    return Dense(
        torch.cat([part.weight for part in parts]),
        torch.cat([part.bias for part in parts if part.bias is not None]),
        "identity",
    )


def read_dense(weights: Tensors, name: str, out: int, into: int, activation: str = "identity") -> Dense:
    """`name`.weight [out, into] and `name`.bias [out]; -1 accepts any size."""
    return Dense(weights.take(name + ".weight", out, into), weights.take(name + ".bias", out), activation)


def read_norm(weights: Tensors, name: str, hidden: int, eps: float) -> Norm:
    return Norm(weights.take(name + ".weight", hidden), weights.take(name + ".bias", hidden), eps)


def require_int(config: Config, key: str) -> int:
    """A positive integer of config.json. Raises CheckpointError when it is missing or something else."""
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"config.json: {key!r} must be a positive integer, not {value!r}.")
    return value


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


def _refuse_variants(checkpoint: Checkpoint) -> None:
    """Settings that change the arithmetic, and that this family's forward does not implement."""
    config = checkpoint.config
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: position_embedding_type {config['position_embedding_type']!r} "
            "is not implemented, only 'absolute'."
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: decoders (is_decoder, add_cross_attention) are not implemented."
        )
