"""Small encoders of random weights in the combinations of parts that families have, for tests without a checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.engine.model.weights import (
    Attention,
    Dense,
    DistanceAttention,
    Embeddings,
    Encoder,
    EncoderWeights,
    Heads,
    Layer,
    Norm,
    RotaryAttention,
)
from tests.engine.helpers import VOCAB

_INTERMEDIATE = 192


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an encoder. Each layer has a window of `windows`; with biases it has no rotary positions."""

    heads: Heads
    hidden: int = 128
    is_causal: bool = False
    windows: tuple[int | None, ...] = (None, None)
    has_head_norms: bool = False
    has_biases: bool = False
    is_rms: bool = True
    pre_norm: bool = True
    has_inner_norms: bool = False
    gate: str | None = "silu"
    max_tokens: int = 256


COMBINATIONS = {
    "post-norm, rotary, gated (NomicBERT, GTE)": Parts(Heads(4, 4, 32), is_rms=False, pre_norm=False),
    "pre-norm, two kinds of windows (ModernBERT)": Parts(Heads(2, 2, 64), is_rms=False, windows=(None, 10, 3)),
    "causal, grouped keys, their norms (Qwen3)": Parts(Heads(4, 2, 128), is_causal=True, has_head_norms=True),
    "causal, one head of keys, a window (Mistral)": Parts(Heads(4, 1, 32), is_causal=True, windows=(17, 17)),
    "grouped keys (EuroBERT)": Parts(Heads(6, 2, 64)),
    "sandwich, wide heads, windows (Gemma 3)": Parts(
        Heads(3, 1, 256), windows=(20, None), has_head_norms=True, has_inner_norms=True, gate="gelu_pytorch_tanh"
    ),
    "heads of no kernel of ours": Parts(Heads(4, 2, 96), is_causal=True, windows=(None, 9), has_head_norms=True),
    "biases and RMSNorm (T5)": Parts(Heads(4, 4, 32), has_biases=True, gate=None),
}


def random_encoder(parts: Parts, seed: int = 0) -> EncoderWeights:
    """Float32 on the CPU."""
    generator, heads, hidden = torch.Generator().manual_seed(seed), parts.heads, parts.hidden

    def normal(*shape: int, scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    def dense(width: int, depth: int, activation: str = "identity") -> Dense:
        return Dense(normal(width, depth, scale=depth**-0.5), normal(width, scale=0.1), activation)

    def norm(width: int = hidden) -> Norm:
        weight = 1 + normal(width, scale=0.2)
        return Norm(weight, None, 1e-6, False) if parts.is_rms else Norm(weight, normal(width, scale=0.1), 1e-6)

    biased = DistanceAttention(normal(heads.queries, 2 * 30 + 1, scale=1.0))  # the same in every layer

    def layer(window: int | None) -> Layer[Dense]:
        inner = _INTERMEDIATE
        return Layer(
            qkv=dense(heads.width + 2 * heads.key_width, hidden),
            attention=biased if parts.has_biases else _rotary(parts, window, lambda: norm(heads.dim)),
            attention_output=dense(hidden, heads.width),
            attention_norm=norm(),
            up=dense(inner, hidden, "relu") if parts.gate is None else dense(2 * inner, hidden),
            down=dense(hidden, inner),
            output_norm=norm(),
            gate=parts.gate,
            inner_norms=(norm(), norm()) if parts.has_inner_norms else None,
        )

    return Encoder(
        embeddings=Embeddings(normal(VOCAB, hidden, scale=1.0), None, None, None if parts.pre_norm else norm()),
        projection=None,
        layers=tuple(layer(window) for window in parts.windows),
        heads=heads,
        max_tokens=parts.max_tokens,
        pre_norm=parts.pre_norm,
        first_norm=norm() if parts.pre_norm else None,
    )


def without_turn(attention: Attention) -> Attention:
    """The attention to queries and keys that are normalised and turned already."""
    if not isinstance(attention, RotaryAttention):
        return attention
    cosines, sines = torch.ones_like(attention.cosines), torch.zeros_like(attention.sines)
    return replace(attention, cosines=cosines, sines=sines, query_norm=None, key_norm=None)


def _rotary(parts: Parts, window: int | None, norm: Callable[[], Norm]) -> RotaryAttention:
    steps = 1e4 ** (-torch.arange(0, parts.heads.dim, 2) / parts.heads.dim)
    angles = torch.arange(parts.max_tokens)[:, None] * steps
    norms = (norm(), norm()) if parts.has_head_norms else (None, None)
    return RotaryAttention(angles.cos(), angles.sin(), window, parts.is_causal, *norms)
