"""Mistral (Jiang et al. 2023): Llama's layers, without biases, with a window in all of them."""

from penstock.engine.errors import NotPacked
from penstock.engine.families.decoder import Decoder, attention_of, heads_of, read_decoder
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import EncoderWeights

_WINDOW = 4096  # where config.json has no such entry; null: no window


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a Mistral checkpoint. With layer_types, even null, transformers runs it as a Ministral."""
    config = checkpoint.config
    if "layer_types" in config:
        raise NotPacked(f"{checkpoint.directory}: layer_types in a Mistral is not implemented.")
    heads = heads_of(config, keys=8)
    has_window = config.get("sliding_window", _WINDOW) is not None
    window = require_int(config, "sliding_window", _WINDOW) if has_window else None
    attention = attention_of(checkpoint, heads.dim, max_tokens=131_072, sliding_window=window)
    return read_decoder(
        checkpoint,
        Decoder(
            heads,
            [attention] * require_int(config, "num_hidden_layers"),
            eps=setting(config, "rms_norm_eps", 1e-6),
            activation=setting(config, "hidden_act", "silu"),
        ),
    )
