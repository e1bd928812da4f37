"""Readers of heads that make sparse weights and token vectors: `engine.model.vectors`."""

from collections.abc import Mapping

import torch

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import FAMILIES, family_of
from penstock.engine.model.admission import EMBED_SPARSE
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import Config, read_json, setting
from penstock.engine.model.vectors import Splade, VectorHead
from penstock.engine.model.weights import Dense

_SPLADE_KEYS = {"pooling_strategy", "activation_function", "embedding_dimension", "word_embedding_dimension"}
_NUM_LOGS = {"relu": 1, "log1p_relu": 2}  # activation_function of SpladePooling


def vector_heads(checkpoint: Checkpoint, dtype: torch.dtype) -> Mapping[str, VectorHead]:
    """Heads by task; empty for a checkpoint that makes one vector of a text. dtype: of the encoder's products.

    Raises CheckpointError, UnsupportedCheckpoint.
    """
    match checkpoint.task:
        case "embed_sparse":
            return {EMBED_SPARSE: _splade(checkpoint, dtype)}
        case _:
            return {}


def _splade(checkpoint: Checkpoint, dtype: torch.dtype) -> Splade:
    read = family_of(checkpoint).masked_lm
    if read is None:
        of_others = sorted(name for name, family in FAMILIES.items() if family.masked_lm is not None)
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: the masked language model's head of model_type "
            f"{checkpoint.config.get('model_type')!r} is not implemented. Those of {', '.join(of_others)} are."
        )
    *layers, decoder = read(checkpoint)
    if not isinstance(decoder, Dense):
        raise RuntimeError("a masked language model does not end in logits. This is a bug.")
    checkpoint.weights.require_range(dtype)
    return Splade(tuple(layers), decoder.apply(lambda tensor: tensor.to(dtype)), *_splade_pooling(checkpoint))


def _splade_pooling(checkpoint: Checkpoint) -> tuple[str, int]:
    """Pooling, and the number of logarithms; those of SparseEncoder for a directory without modules."""
    config = read_json(checkpoint.modules[1].directory / "config.json") if checkpoint.modules else Config()
    if unknown := sorted(config.keys() - _SPLADE_KEYS):
        raise UnsupportedCheckpoint(f"{config.path}: SpladePooling with {', '.join(unknown)} is not implemented.")
    pooling, activation = setting(config, "pooling_strategy", "max"), setting(config, "activation_function", "relu")
    if pooling not in ("max", "sum") or activation not in _NUM_LOGS:
        raise CheckpointError(f"{config.path}: SpladePooling has no {pooling!r} of {activation!r}.")
    return pooling, _NUM_LOGS[activation]
