"""Readers of heads that make sparse weights and token vectors: `engine.model.vectors`."""

from collections.abc import Mapping

import numpy as np
import torch

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import FAMILIES, family_of
from penstock.engine.families.late_interaction import token_vectors
from penstock.engine.model.admission import EMBED_ALL, EMBED_SPARSE, EMBED_TOKENS
from penstock.engine.model.checkpoint import Checkpoint, Tensors
from penstock.engine.model.files import (
    COLBERT_LINEAR,
    SPARSE_LINEAR,
    Config,
    read_json,
    read_optional,
    read_safetensors,
    require_int,
    setting,
)
from penstock.engine.model.vectors import AllVectors, KeptTokens, Lexical, Splade, TokenVectors, VectorHead
from penstock.engine.model.weights import Dense, EncoderWeights

_SPLADE_KEYS = {"pooling_strategy", "activation_function", "embedding_dimension", "word_embedding_dimension"}
_XLM_ROBERTA_SPECIAL = (0, 1, 2, 3)  # <s>, <pad>, </s> and <unk>
_NUM_LOGS = {"relu": 1, "log1p_relu": 2}  # activation_function of SpladePooling


def vector_heads(checkpoint: Checkpoint, weights: EncoderWeights, dtype: torch.dtype) -> Mapping[str, VectorHead]:
    """Heads by task; empty for a checkpoint that makes one vector of a text. dtype: of the encoder's products.

    Raises CheckpointError, UnsupportedCheckpoint.
    """
    match checkpoint.task:
        case "embed_sparse":
            return {EMBED_SPARSE: _splade(checkpoint, dtype)}
        case "embed_tokens":
            return {EMBED_TOKENS: token_vectors(checkpoint, weights)}
        case "embed":
            return _linear_heads(checkpoint)
        case _:
            return {}


def _linear_heads(checkpoint: Checkpoint) -> Mapping[str, VectorHead]:
    """bge-m3's heads beside an embedding model (Chen et al. 2024), whose files `penstock convert` writes."""
    sparse, tokens = (_linear(checkpoint, name) for name in (SPARSE_LINEAR, COLBERT_LINEAR))
    heads: dict[str, VectorHead] = {}
    if sparse is not None:
        _require_xlm_roberta(checkpoint)
        lexical = heads[EMBED_SPARSE] = Lexical(sparse, np.array(_XLM_ROBERTA_SPECIAL, np.int32))
    if tokens is not None:
        vectors = heads[EMBED_TOKENS] = TokenVectors((tokens,), normalize=True, kept=KeptTokens(without_first=True))
    if sparse is not None and tokens is not None and not _leaves_out_prompt(checkpoint):
        heads[EMBED_ALL] = AllVectors(vectors, lexical)
    return heads


def _leaves_out_prompt(checkpoint: Checkpoint) -> bool:
    """Whether pooling does so, which of all vectors of one pass is not implemented."""
    pooling = [module.directory / "config.json" for module in checkpoint.modules if module.kind == "Pooling"]
    return any(read_optional(path).get("include_prompt") is False for path in pooling)


def _linear(checkpoint: Checkpoint, name: str) -> Dense | None:
    path = (checkpoint.directory / name).with_suffix(".safetensors")
    if not path.exists():
        return None
    tensors = Tensors(path, read_safetensors(path)[0])
    weight = tensors.take("weight", 1 if name == SPARSE_LINEAR else -1, require_int(checkpoint.config, "hidden_size"))
    return Dense(weight, tensors.take("bias", len(weight)), "identity")


def _require_xlm_roberta(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedCheckpoint unless the tokens without a weight are known: cls, pad, eos and unk."""
    config = checkpoint.config
    ids = tuple(config.get(f"{name}_token_id") for name in ("bos", "pad", "eos"))
    if config.get("model_type") != "xlm-roberta" or ids != _XLM_ROBERTA_SPECIAL[:3]:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: sparse_linear is implemented beside an XLM-RoBERTa with its own special tokens, "
            f"not {config.get('model_type')!r} with {ids}. Remove the file to serve the other vectors."
        )


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
