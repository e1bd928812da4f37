"""Requirements of the kernels on a model, checked at load."""

from collections.abc import Iterator

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels.activation import KINDS
from penstock.engine.kernels.library import MAX_HIDDEN, VECTOR
from penstock.engine.model.dense import function_of
from penstock.engine.model.seq2seq import EncoderDecoder, Seq2SeqWeights
from penstock.engine.model.weights import Dense, EncoderWeights, RotaryAttention


def require_supported(weights: EncoderWeights) -> None:
    """Raise UnsupportedDevice for sizes or activations without a kernel, UnsupportedCheckpoint for an unknown one.

    `choose_kernel` checks attention and its head size.
    """
    if isinstance(weights, EncoderDecoder):
        raise UnsupportedDevice("a decoder that reads the encoder's tokens has no kernel; use device='cpu'.")
    _require_kernels(weights)
    _require_width("hidden size", weights.hidden_size, MAX_HIDDEN)
    _require_width("embedding size", weights.embeddings.words.shape[1], MAX_HIDDEN)
    for layer in weights.layers:
        _require_width("intermediate size", layer.down.weight.shape[1], None)
        if layer.gate is not None:
            _require_activation(layer.gate)
    for dense in _matrices(weights):
        _require_activation(dense.activation)


def _require_kernels(weights: EncoderWeights) -> None:
    attentions = [layer.attention for layer in weights.layers]
    rotary = [attention for attention in attentions if isinstance(attention, RotaryAttention)]
    norms = [(attention.query_norm, attention.key_norm) for attention in rotary]
    angles = min([len(attention.cosines) for attention in rotary], default=0)
    missing = {
        "attention of several kinds": len(set(map(type, attentions))) > 1,
        "sequences longer than the table of angles": rotary != [] and not 0 < (weights.max_tokens or 0) <= angles,
        "heads that share keys, without rotary positions,": weights.heads.keys != weights.heads.queries and not rotary,
        "norms of queries without norms of keys": any((query is None) != (key is None) for query, key in norms),
        "LayerNorms of queries and keys": any(norm.subtracts_mean for both in norms for norm in both if norm),
    }
    for what, is_there in missing.items():
        if is_there:
            raise UnsupportedDevice(f"{what} have no kernel; use device='cpu'.")


def require_seq2seq_supported(weights: Seq2SeqWeights) -> None:
    """As `require_supported`, for an encoder-decoder in halves. For other sizes torch computes what kernels would."""
    for layer in (*weights.encoder.layers, *(own.layer for own in weights.decoder.layers)):
        _require_width("feed-forward size", layer.down.weight.shape[1], None)
        _require_activation(layer.up.activation if layer.gate is None else layer.gate)


def _require_activation(name: str) -> None:
    if function_of(name) not in KINDS:
        raise UnsupportedDevice(f"activation {name!r} has no kernel; use device='cpu'.")


def _require_width(name: str, width: int, largest: int | None) -> None:
    if width % VECTOR:
        raise UnsupportedDevice(f"{name} {width} is no multiple of {VECTOR}; use device='cpu'.")
    if largest is not None and width > largest:
        raise UnsupportedDevice(f"{name} {width} is more than the {largest} that kernels support; use device='cpu'.")


def _matrices(weights: EncoderWeights) -> Iterator[Dense]:
    if weights.projection is not None:
        yield weights.projection
    for layer in weights.layers:
        yield from (layer.qkv, layer.attention_output, layer.up, layer.down)
