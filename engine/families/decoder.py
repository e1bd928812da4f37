"""Decoders of Llama's kind (Touvron et al. 2023) as encoders: RMSNorm before blocks, rotary positions, gated MLPs.

Each family reads its own settings, and gives them to `read_decoder`. The names of tensors are the same in all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from penstock.engine.errors import NotPacked, UnsupportedCheckpoint
from penstock.engine.families.readers import read_dense
from penstock.engine.families.rotary import rotary_angles
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.dense import require_activation
from penstock.engine.model.files import Config, require_int, setting, stated_rows
from penstock.engine.model.weights import (
    Dense,
    Embeddings,
    Encoder,
    EncoderWeights,
    Heads,
    Layer,
    Norm,
    RotaryAttention,
)

FULL, SLIDING = "full_attention", "sliding_attention"

_PREFIXES = ("", "model.")
_PROBE = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Decoder:
    """The values of a family's config.json, with the family's defaults."""

    heads: Heads
    attentions: Sequence[RotaryAttention]  # of each layer, without the norms of its heads
    eps: float = 1e-6  # of all norms
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False  # of attention
    mlp_bias: bool = False
    has_head_norms: bool = False  # of queries and keys
    mlp_norm: str = "post_attention_layernorm"  # before a layer's MLP
    inner_norms: tuple[str, str] | None = None  # of the results of attention and MLP, before they are added
    # Gemma's arithmetic, which is folded into the weights
    norm_offset: float = 0.0  # added to the weights of norms
    embedding_scale: float = 1.0
    query_scale: float = 1.0  # of normalised queries


def read_decoder(checkpoint: Checkpoint, decoder: Decoder) -> EncoderWeights:
    """The encoder of a checkpoint that is saved with any head or none. Raises CheckpointError."""
    config, weights = checkpoint.config, checkpoint.weights
    if config.get("attn_logit_softcapping") is not None:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: attn_logit_softcapping is not implemented.")
    require_activation(decoder.activation)
    prefix, hidden = weights.prefix(_PREFIXES, _PROBE), require_int(config, "hidden_size")
    shape = stated_rows(config, "vocab_size"), hidden
    scale = decoder.embedding_scale
    words = weights.take(prefix + _PROBE, *shape) if scale == 1 else weights.take_scaled(prefix + _PROBE, scale, *shape)
    return Encoder(
        embeddings=Embeddings(words, positions=None, token_types=None, norm=None),
        projection=None,
        layers=tuple(_read_layer(checkpoint, decoder, prefix, i) for i in range(len(decoder.attentions))),
        heads=decoder.heads,
        max_tokens=min(len(attention.cosines) for attention in decoder.attentions),
        pre_norm=True,
        first_norm=_read_norm(checkpoint, decoder, f"{prefix}layers.0.input_layernorm", hidden),
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense]:
    """...ForSequenceClassification: a single matrix."""
    return (read_dense(checkpoint.weights, "score", -1, -1, bias=False),)


def classifier_pooling(checkpoint: Checkpoint) -> str:
    """The pooling of ...ForSequenceClassification."""
    return "last"


def token_classifier(checkpoint: Checkpoint) -> tuple[Dense]:
    """...ForTokenClassification."""
    bias = setting(checkpoint.config, "token_classification_bias", True)
    return (read_dense(checkpoint.weights, "score", -1, -1, bias=bias),)


def logits_of(checkpoint: Checkpoint) -> torch.Tensor:
    """The matrix [V, H] of ...ForCausalLM's logits: its own, or that of the embeddings. Raises CheckpointError."""
    config, weights, name = checkpoint.config, checkpoint.weights, "lm_head.weight"
    if setting(config, "final_logit_softcapping", 0.0):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: final_logit_softcapping is not implemented.")
    prefix, shape = weights.prefix(_PREFIXES, _PROBE), (stated_rows(config, "vocab_size"), -1)
    is_tied = setting(config, "tie_word_embeddings", config.get("model_type") == "gemma3_text")
    words = weights.take(prefix + _PROBE, *shape)
    own = weights.take(name, *shape) if name in weights or not is_tied else words
    if is_tied and not torch.equal(own, words):
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: {name} is not the embeddings, as tie_word_embeddings says."
        )
    return own


def heads_of(config: Config, *, keys: int | None = None, dim: int | None = None) -> Heads:
    """Heads with their own size and number of keys. The defaults are those where config.json has no such entry.

    None, also of an entry: a head of keys for each of queries, and equal parts of the hidden size.
    """
    queries = require_int(config, "num_attention_heads")
    if config.get("head_dim", dim) is None:
        dim = Heads.of(require_int(config, "hidden_size"), queries).dim
    if config.get("num_key_value_heads", keys) is None:
        keys = queries
    return Heads(
        queries, require_int(config, "num_key_value_heads", keys or 0), require_int(config, "head_dim", dim or 0)
    )


def attention_of(
    checkpoint: Checkpoint, head_dim: int, *, max_tokens: int, sliding_window: int | None = None, is_causal: bool = True
) -> RotaryAttention:
    """Attention of a layer. max_tokens, is_causal: where config.json states none.

    transformers' sliding window counts the token itself where attention is causal, and no token where it is not.
    """
    is_causal = stated_causal(checkpoint, default=is_causal)
    angles = rotary_angles(checkpoint, head_dim, 10_000.0, max_tokens=max_tokens)
    window = None if sliding_window is None else sliding_window - is_causal
    return RotaryAttention(*angles, window=window, is_causal=is_causal)


def stated_causal(checkpoint: Checkpoint, *, default: bool) -> bool:
    """`is_causal` of config.json, by which transformers makes the mask of any of these models."""
    stated = checkpoint.config.get("is_causal", default)
    if not isinstance(stated, bool):
        raise NotPacked(f"{checkpoint.directory}: is_causal {stated!r} is not implemented.")
    return stated


def layer_kinds(checkpoint: Checkpoint, default: Sequence[str]) -> list[str]:
    """FULL or SLIDING for each layer, as layer_types lists them; by default as `default` does."""
    kinds = setting(checkpoint.config, "layer_types", []) or [*default]
    if len(kinds) != len(default) or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise NotPacked(
            f"{checkpoint.directory}: layer_types must name {len(default)} layers, each {FULL!r} or {SLIDING!r}."
        )
    return kinds


def _read_layer(checkpoint: Checkpoint, decoder: Decoder, prefix: str, index: int) -> Layer[Dense]:
    """One layer. Its `output_norm` is the next layer's first norm, or the model's final one."""
    config, weights, name = checkpoint.config, checkpoint.weights, f"{prefix}layers.{index}."
    hidden, intermediate = require_int(config, "hidden_size"), require_int(config, "intermediate_size")
    widths = {"q": decoder.heads.width, "k": decoder.heads.key_width, "v": decoder.heads.key_width}
    is_last = index + 1 == len(decoder.attentions)
    following = "norm" if is_last else f"layers.{index + 1}.input_layernorm"

    def dense(part: str, out: int, into: int, *, bias: bool) -> Dense:
        return read_dense(weights, f"{name}{part}_proj", out, into, bias=bias)

    def norm(part: str) -> Norm:
        return _read_norm(checkpoint, decoder, name + part, hidden)

    return Layer(
        qkv=_stacked([dense(f"self_attn.{k}", width, hidden, bias=decoder.qkv_bias) for k, width in widths.items()]),
        attention=_with_head_norms(checkpoint, decoder, decoder.attentions[index], name + "self_attn."),
        attention_output=dense("self_attn.o", hidden, decoder.heads.width, bias=decoder.output_bias),
        attention_norm=norm(decoder.mlp_norm),
        up=_stacked([dense(f"mlp.{part}", intermediate, hidden, bias=decoder.mlp_bias) for part in ("gate", "up")]),
        down=dense("mlp.down", hidden, intermediate, bias=decoder.mlp_bias),
        output_norm=_read_norm(checkpoint, decoder, prefix + following, hidden),
        gate=decoder.activation,
        inner_norms=None
        if decoder.inner_norms is None
        else (norm(decoder.inner_norms[0]), norm(decoder.inner_norms[1])),
    )


def _with_head_norms(
    checkpoint: Checkpoint, decoder: Decoder, attention: RotaryAttention, name: str
) -> RotaryAttention:
    if not decoder.has_head_norms:
        return attention
    query, key = (_read_norm(checkpoint, decoder, f"{name}{part}_norm", decoder.heads.dim) for part in ("q", "k"))
    query = replace(query, weight=query.weight * decoder.query_scale)
    return replace(attention, query_norm=query, key_norm=key)


def _read_norm(checkpoint: Checkpoint, decoder: Decoder, name: str, size: int) -> Norm:
    weight = checkpoint.weights.take(name + ".weight", size) + decoder.norm_offset
    return Norm(weight, None, decoder.eps, subtracts_mean=False)


def _stacked(parts: Sequence[Dense]) -> Dense:
    """One product in place of several."""
    biases = [part.bias for part in parts if part.bias is not None]
    return Dense(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None, "identity")
