"""Angles of rotary positions by config.json, in the arithmetic of transformers' `modeling_rope_utils`."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting

_TYPES = ("rope_type", "type")  # the newer name, and the older
_OF_TYPE = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
}
_NEUTRAL = {"partial_rotary_factor": 1.0}  # a setting of any type, where it says nothing


def rotary_angles(
    checkpoint: Checkpoint, head_dim: int, theta: float, *, kind: str | None = None, max_tokens: int = 0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [the larger of max_position_embeddings and max_tokens, head_dim / 2].

    theta: the base where config.json states none. kind: of layers, where each has its own settings. max_tokens: where
    config.json states none. Raises UnsupportedCheckpoint for a scaling that is not implemented, by its name.
    """
    if head_dim % 2:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: heads of {head_dim} cannot be rotated: the size is odd.")
    config, settings = checkpoint.config, _settings(checkpoint, kind)
    theta = setting(settings, "rope_theta", setting(config, "rope_theta", theta))
    frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))
    tokens = require_int(config, "max_position_embeddings", max_tokens)
    angles = torch.arange(max(tokens, max_tokens)).float()[:, None] * _scaled(checkpoint, frequencies, settings, tokens)
    return angles.cos(), angles.sin()


def _settings(checkpoint: Checkpoint, kind: str | None) -> Mapping[str, Any]:
    """The settings of one kind of layers. Older files call them rope_scaling, which counts before the newer name."""
    config = checkpoint.config
    settings = setting(config, "rope_scaling", {}) or setting(config, "rope_parameters", {})
    settings = setting(settings, kind, settings) if kind is not None else settings
    rope_type = _rope_type(settings)
    known = {*_TYPES, "rope_theta", *_OF_TYPE.get(rope_type, ())}
    unknown = sorted(key for key in settings if key not in known and settings[key] != _NEUTRAL.get(key))
    if rope_type not in _OF_TYPE or unknown:
        what = f"scaled by {rope_type!r}" if rope_type not in _OF_TYPE else f"with {', '.join(unknown)}"
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: rotary positions {what} are not implemented.")
    if setting(config, "partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: partial_rotary_factor is not implemented.")
    return settings


def _rope_type(settings: Mapping[str, Any]) -> str:
    return setting(settings, _TYPES[0], setting(settings, _TYPES[1], "default"))


def _scaled(checkpoint: Checkpoint, frequencies: Tensor, settings: Mapping[str, Any], max_tokens: int) -> Tensor:
    match _rope_type(settings):
        case "default":
            return frequencies
        case "linear":
            return frequencies / _number(checkpoint, settings, "factor")
        case "llama3":
            low, high = (_number(checkpoint, settings, f"{name}_freq_factor") for name in ("low", "high"))
            trained = require_int(settings, "original_max_position_embeddings", max_tokens)
            return _by_wavelength(frequencies, _number(checkpoint, settings, "factor"), low, high, trained)
        case other:
            raise RuntimeError(f"rotary positions of type {other!r} passed the check. This is a bug.")


def _by_wavelength(frequencies: Tensor, factor: float, low: float, high: float, trained: int) -> Tensor:
    """Llama 3.1: short waves as they are, long ones divided by the factor, those between in proportion."""
    waves = 2 * math.pi / frequencies
    scaled = torch.where(waves > trained / low, frequencies / factor, frequencies)
    share = (trained / waves - low) / (high - low)
    between = ~(waves < trained / high) & ~(waves > trained / low)
    return torch.where(between, (1 - share) * scaled / factor + share * scaled, scaled)


def _number(checkpoint: Checkpoint, settings: Mapping[str, Any], key: str) -> float:
    value = setting(settings, key, math.nan)
    if not value > 0 or math.isinf(value):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: rotary positions need a positive {key!r}, not {value}.")
    return value
