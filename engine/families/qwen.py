"""Qwen2 (Yang et al. 2024), with biases of queries, keys and values, and Qwen3 (Yang et al. 2025), with norms of them.

A config.json may give the later layers a window.
"""

from penstock.engine.errors import NotPacked
from penstock.engine.families.decoder import FULL, SLIDING, Decoder, attention_of, heads_of, layer_kinds, read_decoder
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import EncoderWeights, Heads, RotaryAttention

_MAX_TOKENS = 32_768  # this and the next two where config.json has no such entry
_KEY_HEADS = 32
_WINDOW, _FULL_LAYERS = 4096, 28


def qwen2_encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a Qwen2 checkpoint."""
    config = checkpoint.config
    heads = heads_of(config, keys=_KEY_HEADS)
    return read_decoder(
        checkpoint,
        Decoder(
            heads,
            _attentions(checkpoint, heads),
            eps=setting(config, "rms_norm_eps", 1e-6),
            activation=setting(config, "hidden_act", "silu"),
            qkv_bias=True,
        ),
    )


def qwen3_encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a Qwen3 checkpoint."""
    config = checkpoint.config
    heads = heads_of(config, keys=_KEY_HEADS, dim=128)
    bias = setting(config, "attention_bias", False)
    return read_decoder(
        checkpoint,
        Decoder(
            heads,
            _attentions(checkpoint, heads),
            eps=setting(config, "rms_norm_eps", 1e-6),
            activation=setting(config, "hidden_act", "silu"),
            qkv_bias=bias,
            output_bias=bias,
            has_head_norms=True,
        ),
    )


def _attentions(checkpoint: Checkpoint, heads: Heads) -> list[RotaryAttention]:
    """Of each layer: with a window from max_window_layers on, if config.json says so."""
    config = checkpoint.config
    num_layers = require_int(config, "num_hidden_layers")
    has_window = setting(config, "use_sliding_window", False) and config.get("sliding_window", _WINDOW) is not None
    window = require_int(config, "sliding_window", _WINDOW) if has_window else None
    num_full = setting(config, "max_window_layers", _FULL_LAYERS) if has_window else num_layers
    kinds = layer_kinds(checkpoint, [FULL if i < num_full else SLIDING for i in range(num_layers)])
    if window is None and SLIDING in kinds:
        raise NotPacked(f"{checkpoint.directory}: layer_types with {SLIDING!r} needs use_sliding_window.")
    of_kind = {
        kind: attention_of(checkpoint, heads.dim, max_tokens=_MAX_TOKENS, sliding_window=size)
        for kind, size in ((FULL, None), (SLIDING, window))
        if kind in kinds
    }
    return [of_kind[kind] for kind in kinds]
