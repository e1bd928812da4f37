"""What every family's reader is made of."""

import torch

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.checkpoint import Checkpoint, Config, Tensors
from penstock.engine.model.weights import Dense, Norm


def fuse_qkv(weights: Tensors, query: str, key: str, value: str, hidden: int) -> Dense:
    """One [3H, H] matrix from three, so that one GEMM makes all of query, key and value."""
    parts = [read_dense(weights, name, hidden, hidden) for name in (query, key, value)]
    return Dense(
        torch.cat([part.weight for part in parts]),
        torch.cat([part.bias for part in parts if part.bias is not None]),
        "identity",
    )


def read_dense(
    weights: Tensors, name: str, out: int, into: int, activation: str = "identity", *, bias: bool = True
) -> Dense:
    """`name`.weight [out, into] and, where the family has one, `name`.bias [out]; -1 accepts any size."""
    weight = weights.take(name + ".weight", out, into)
    return Dense(weight, weights.take(name + ".bias", out) if bias else None, activation)


def read_norm(weights: Tensors, name: str, hidden: int, eps: float, *, bias: bool = True) -> Norm:
    weight = weights.take(name + ".weight", hidden)
    return Norm(weight, weights.take(name + ".bias", hidden) if bias else None, eps)


def token_classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """...ForTokenClassification of nearly every family: one matrix."""
    return (read_dense(checkpoint.weights, "classifier", -1, -1),)


def require_int(config: Config, key: str) -> int:
    """A positive integer of config.json. Raises CheckpointError when it is missing or something else."""
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"config.json: {key!r} must be a positive integer, not {value!r}.")
    return value


def refuse_variants(checkpoint: Checkpoint) -> None:
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
