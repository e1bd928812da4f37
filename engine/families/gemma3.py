"""The text model of Gemma 3 (2025), and EmbeddingGemma (Vera et al. 2025), which attends to both sides.

Its norms multiply by one more than their weights, its embeddings are scaled, and its scores have a scale of their own.
All of that is folded into the weights.
"""

import math

from penstock.engine.errors import NotPacked
from penstock.engine.families.decoder import FULL, SLIDING, Decoder, heads_of, layer_kinds, read_decoder, stated_causal
from penstock.engine.families.rotary import rotary_angles
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import EncoderWeights, RotaryAttention

_MAX_TOKENS, _HEAD_DIM = 131_072, 256  # these and other defaults: where config.json has no such entry
_WINDOW, _FULL_EVERY = 4096, 6
_THETAS = {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)}


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a Gemma 3 checkpoint without images."""
    config = checkpoint.config
    _require_known(checkpoint)
    heads = heads_of(config, keys=4, dim=_HEAD_DIM)
    num_layers = require_int(config, "num_hidden_layers")
    every = require_int(config, "sliding_window_pattern", _FULL_EVERY)
    kinds = layer_kinds(checkpoint, [SLIDING if i % every else FULL for i in range(1, num_layers + 1)])
    attentions = {kind: _attention(checkpoint, kind, heads.dim) for kind in sorted(set(kinds))}
    bias = setting(config, "attention_bias", False)
    return read_decoder(
        checkpoint,
        Decoder(
            heads,
            [attentions[kind] for kind in kinds],
            eps=setting(config, "rms_norm_eps", 1e-6),
            activation=setting(config, "hidden_activation", "gelu_pytorch_tanh"),
            qkv_bias=bias,
            output_bias=bias,
            has_head_norms=True,
            mlp_norm="pre_feedforward_layernorm",
            inner_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
            norm_offset=1.0,
            embedding_scale=math.sqrt(require_int(config, "hidden_size")),
            # Attention itself divides scores by sqrt(head_dim).
            query_scale=math.sqrt(heads.dim / require_int(config, "query_pre_attn_scalar", 256)),
        ),
    )


def _require_known(checkpoint: Checkpoint) -> None:
    if checkpoint.config.get("attn_logit_softcapping") is not None:
        raise NotPacked(f"{checkpoint.directory}: attn_logit_softcapping is not implemented.")
    if not stated_causal(checkpoint, default=True):  # the key that Gemma has for it is another
        raise NotPacked(f"{checkpoint.directory}: is_causal is not implemented.")


def _attention(checkpoint: Checkpoint, kind: str, head_dim: int) -> RotaryAttention:
    """Of one kind of layers. sliding_window is the width of both sides where attention is bidirectional."""
    config, (theta_key, theta) = checkpoint.config, _THETAS[kind]
    is_causal = not setting(config, "use_bidirectional_attention", False)
    window = require_int(config, "sliding_window", _WINDOW)
    angles = rotary_angles(
        checkpoint,
        head_dim,
        setting(config, theta_key, theta),
        kind=kind,
        is_scaled=kind == FULL,
        max_tokens=_MAX_TOKENS,
    )
    largest = window - 1 if is_causal else window // 2
    return RotaryAttention(*angles, window=largest if kind == SLIDING else None, is_causal=is_causal)
