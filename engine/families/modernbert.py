"""ModernBERT (Warner et al. 2024): pre-norm, rotary positions, gated MLPs, and windows in most layers."""

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.families.readers import read_dense, read_masked_lm, read_norm
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

_PREFIXES = ("", "model.")
_PROBE = "embeddings.tok_embeddings.weight"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {_FULL: ("global_rope_theta", 160_000.0), _SLIDING: ("local_rope_theta", 10_000.0)}


_MAX_TOKENS = 8192  # where config.json does not state it


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a ModernBERT checkpoint."""
    config, weights = checkpoint.config, checkpoint.weights
    prefix = weights.prefix(_PREFIXES, _PROBE)
    hidden, num_layers = require_int(config, "hidden_size"), require_int(config, "num_hidden_layers")
    kinds = _layer_kinds(config, num_layers)
    attentions = {kind: _attention(checkpoint, kind) for kind in sorted(set(kinds))}
    return Encoder(
        embeddings=Embeddings(
            words=weights.take(prefix + _PROBE, stated_rows(config, "vocab_size"), hidden),
            positions=None,
            token_types=None,
            norm=_norm(checkpoint, prefix + "embeddings.norm"),
        ),
        projection=None,
        layers=tuple(
            _read_layer(checkpoint, prefix, i, attentions[kind], is_last=i + 1 == num_layers)
            for i, kind in enumerate(kinds)
        ),
        heads=Heads.of(hidden, require_int(config, "num_attention_heads")),
        max_tokens=min(len(attention.cosines) for attention in attentions.values()),
        pre_norm=True,
    )


def classifier(checkpoint: Checkpoint) -> tuple[Dense | Norm, ...]:
    """ModernBertForSequenceClassification, and ...ForTokenClassification: dense, activation, norm, classifier."""
    return *_transform(checkpoint), read_dense(checkpoint.weights, "classifier", -1, -1)


def masked_lm(checkpoint: Checkpoint) -> tuple[Dense | Norm, ...]:
    """ModernBertForMaskedLM: dense, activation, norm, decoder."""
    if not setting(checkpoint.config, "decoder_bias", True):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: decoder_bias false is not implemented.")
    words = checkpoint.weights.prefix(_PREFIXES, _PROBE) + _PROBE
    return read_masked_lm(checkpoint, _transform(checkpoint), "decoder", words)


def _transform(checkpoint: Checkpoint) -> tuple[Dense, Norm]:
    """ModernBertPredictionHead, which classifiers have too."""
    config = checkpoint.config
    activation, bias = setting(config, "classifier_activation", "gelu"), setting(config, "classifier_bias", False)
    dense = read_dense(checkpoint.weights, "head.dense", -1, -1, activation, bias=bias)
    return dense, _norm(checkpoint, "head.norm")


def classifier_pooling(checkpoint: Checkpoint) -> str:
    """The pooling of ModernBertForSequenceClassification. Raises UnsupportedCheckpoint."""
    pooling = setting(checkpoint.config, "classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: classifier_pooling {pooling!r} is not implemented.")
    return pooling


def _read_layer(
    checkpoint: Checkpoint, prefix: str, index: int, attention: RotaryAttention, *, is_last: bool
) -> Layer[Dense]:
    """One layer. Its `output_norm` is the next layer's first norm, or the model's final one."""
    config, weights, name = checkpoint.config, checkpoint.weights, f"{prefix}layers.{index}."
    hidden, intermediate = require_int(config, "hidden_size"), require_int(config, "intermediate_size")
    attention_bias, mlp_bias = (setting(config, key, False) for key in ("attention_bias", "mlp_bias"))
    gate = setting(config, "hidden_activation", "gelu")
    require_activation(gate)
    following = "final_norm" if is_last else f"layers.{index + 1}.attn_norm"
    return Layer(
        qkv=read_dense(weights, name + "attn.Wqkv", 3 * hidden, hidden, bias=attention_bias),
        attention=attention,
        attention_output=read_dense(weights, name + "attn.Wo", hidden, hidden, bias=attention_bias),
        attention_norm=_norm(checkpoint, name + "mlp_norm"),
        up=read_dense(weights, name + "mlp.Wi", 2 * intermediate, hidden, bias=mlp_bias),
        down=read_dense(weights, name + "mlp.Wo", hidden, intermediate, bias=mlp_bias),
        output_norm=_norm(checkpoint, prefix + following),
        gate=gate,
    )


def _norm(checkpoint: Checkpoint, name: str) -> Norm:
    config = checkpoint.config
    hidden, eps = require_int(config, "hidden_size"), setting(config, "norm_eps", 1e-5)
    return read_norm(checkpoint.weights, name, hidden, eps, bias=setting(config, "norm_bias", False))


def _layer_kinds(config: Config, num_layers: int) -> list[str]:
    """Each layer's kind: as config.json lists them, or full attention in every n-th layer."""
    every = require_int(config, "global_attn_every_n_layers", 3)
    kinds = setting(config, "layer_types", []) or [_SLIDING if i % every else _FULL for i in range(num_layers)]
    if len(kinds) != num_layers or any(kind not in (_FULL, _SLIDING) for kind in kinds):
        raise UnsupportedCheckpoint(
            f"config.json: layer_types must name {num_layers} layers, each {_FULL!r} or {_SLIDING!r}."
        )
    return kinds


def _attention(checkpoint: Checkpoint, kind: str) -> RotaryAttention:
    config, (old_name, theta) = checkpoint.config, _THETAS[kind]
    head_dim = require_int(config, "hidden_size") // require_int(config, "num_attention_heads")
    half = require_int(config, "local_attention", 128) // 2
    if require_int(config, "sliding_window", half) != half or require_int(config, "head_dim", head_dim) != head_dim:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: sliding_window and head_dim are not implemented.")
    angles = rotary_angles(checkpoint, head_dim, setting(config, old_name, theta), kind=kind, max_tokens=_MAX_TOKENS)
    return RotaryAttention(*angles, window=half if kind == _SLIDING else None)
