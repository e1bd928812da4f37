"""Post-norm encoders with rotary positions, which differ in names, biases and the gate: NomicBERT, GTE, Jina v3."""

from dataclasses import dataclass

import torch

from penstock.engine.families.readers import read_dense, read_norm
from penstock.engine.families.rotary import rotary_angles
from penstock.engine.model.checkpoint import Checkpoint, Tensors
from penstock.engine.model.dense import require_activation
from penstock.engine.model.files import Config, require_int, setting, stated_rows
from penstock.engine.model.weights import Dense, Embeddings, Encoder, EncoderWeights, Heads, Layer, RotaryAttention

_WORDS = "embeddings.word_embeddings.weight"


@dataclass(frozen=True, slots=True)
class RotaryNames:
    """Names of tensors, below the model's prefix, in one of the forms that transformers reads."""

    up: tuple[str, ...]  # [I, H] without a gate; gate and up [I, H] each; or, as one, up then gate [2I, H]
    down: str
    embedding_norm: str = "embeddings.LayerNorm"
    layers: str = "layers"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")  # or all in one
    attention: tuple[str, str] = ("self_attn.o_proj", "post_attention_layernorm")  # output projection, norm
    norm: str = "post_mlp_layernorm"


@dataclass(frozen=True, slots=True)
class RotaryFamily:
    """The differences between the families, beside names. Defaults are those of transformers' configuration classes."""

    prefixes: tuple[str, ...]
    layouts: tuple[RotaryNames, ...]
    theta: float
    eps: float
    activation: str
    has_gate: bool
    biases: tuple[bool, bool, bool]  # of attention's products, up and down
    max_tokens: int  # max_position_embeddings


def read_encoder(checkpoint: Checkpoint, family: RotaryFamily, *, has_types: bool = True) -> EncoderWeights:
    """The encoder, saved with any head or none. `has_types`: whether there is a table of token types."""
    config, weights = checkpoint.config, checkpoint.weights
    prefix = weights.prefix(family.prefixes, _WORDS)
    layout = _layout(weights, prefix, family)
    hidden, eps = require_int(config, "hidden_size"), setting(config, "layer_norm_eps", family.eps)
    types = prefix + "embeddings.token_type_embeddings.weight"
    embeddings = Embeddings(
        words=weights.take(prefix + _WORDS, stated_rows(config, "vocab_size"), hidden),
        positions=None,
        token_types=weights.take(types, stated_rows(config, "type_vocab_size"), hidden) if has_types else None,
        norm=read_norm(weights, prefix + layout.embedding_norm, hidden, eps),
    )
    heads = _heads(config, hidden)
    output = f"{prefix}{layout.layers}.0.{layout.attention[0]}"
    read_dense(weights, output, hidden, heads.width, bias=False)  # an error, before a table of another size is made
    angles = rotary_angles(checkpoint, heads.dim, family.theta, max_tokens=family.max_tokens)
    attention = RotaryAttention(*angles)
    return Encoder(
        embeddings=embeddings,
        projection=None,
        layers=tuple(
            _read_layer(checkpoint, f"{prefix}{layout.layers}.{i}.", layout, family, heads, attention)
            for i in range(require_int(config, "num_hidden_layers"))
        ),
        heads=heads,
        max_tokens=len(attention.cosines),
    )


def _layout(weights: Tensors, prefix: str, family: RotaryFamily) -> RotaryNames:
    """The layout that the first layer has; where it has none, the first, whose tensors will then be missing."""
    first, *_ = family.layouts
    probes = {layout: f"{prefix}{layout.layers}.0.{layout.norm}.weight" for layout in family.layouts}
    return next((layout for layout, probe in probes.items() if probe in weights), first)


def _heads(config: Config, hidden: int) -> Heads:
    num_heads = require_int(config, "num_attention_heads")
    return Heads(num_heads, num_heads, require_int(config, "head_dim", hidden // num_heads or 1))


def _read_layer(
    checkpoint: Checkpoint,
    prefix: str,
    layout: RotaryNames,
    family: RotaryFamily,
    heads: Heads,
    attention: RotaryAttention,
) -> Layer[Dense]:
    config, weights = checkpoint.config, checkpoint.weights
    hidden, intermediate = require_int(config, "hidden_size"), require_int(config, "intermediate_size")
    eps, activation = setting(config, "layer_norm_eps", family.eps), setting(config, "hidden_act", family.activation)
    attention_bias, up_bias, down_bias = family.biases
    require_activation(activation)
    output, attention_norm = layout.attention
    qkv = _stacked(weights, prefix, layout.qkv, 3 * heads.width, hidden, bias=attention_bias)
    up = _stacked(weights, prefix, layout.up, (2 if family.has_gate else 1) * intermediate, hidden, bias=up_bias)
    if family.has_gate and len(layout.up) == 1:
        up = Dense(up.weight.roll(intermediate, 0), None, "identity")
    return Layer(
        qkv=qkv,
        attention=attention,
        attention_output=read_dense(weights, prefix + output, hidden, heads.width, bias=attention_bias),
        attention_norm=read_norm(weights, prefix + attention_norm, hidden, eps),
        up=up if family.has_gate else Dense(up.weight, up.bias, activation),
        down=read_dense(weights, prefix + layout.down, hidden, intermediate, bias=down_bias),
        output_norm=read_norm(weights, prefix + layout.norm, hidden, eps),
        gate=activation if family.has_gate else None,
    )


def _stacked(weights: Tensors, prefix: str, names: tuple[str, ...], out: int, into: int, *, bias: bool) -> Dense:
    """One product [out, into] of matrices that are stored as one, or as equal parts of it."""
    parts = [read_dense(weights, prefix + name, out // len(names), into, bias=bias) for name in names]
    biases = [part.bias for part in parts if part.bias is not None]
    return Dense(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None, "identity")
