"""Llama (Touvron et al. 2023), whose layers EuroBERT shares."""

from penstock.engine.families.decoder import Decoder, attention_of, heads_of, read_decoder
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import EncoderWeights


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a Llama checkpoint."""
    return read_llama(checkpoint, eps=1e-6, max_tokens=2048, is_causal=True)


def read_llama(checkpoint: Checkpoint, *, eps: float, max_tokens: int, is_causal: bool) -> EncoderWeights:
    """An encoder with Llama's settings. The arguments are the defaults where config.json has no such entry."""
    config = checkpoint.config
    heads = heads_of(config)
    attention = attention_of(checkpoint, heads.dim, max_tokens=max_tokens, is_causal=is_causal)
    bias = setting(config, "attention_bias", False)
    return read_decoder(
        checkpoint,
        Decoder(
            heads,
            [attention] * require_int(config, "num_hidden_layers"),
            eps=setting(config, "rms_norm_eps", eps),
            activation=setting(config, "hidden_act", "silu"),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=setting(config, "mlp_bias", False),
        ),
    )
