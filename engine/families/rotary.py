"""Angles of rotary positions by config.json, in the arithmetic of transformers' `modeling_rope_utils`."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.engine.errors import NotPacked, UnsupportedCheckpoint
from penstock.engine.families.late_interaction import stated_lengths
from penstock.engine.families.yarn import TRAINED, positive, yarn
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import Config, require_int, setting
from penstock.engine.model.modules import max_tokens_beyond

_TYPES = ("rope_type", "type")  # the newer name, and the older
_OF_TYPE = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", TRAINED}),
    "yarn": frozenset(
        {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", TRAINED}
    ),
}
_POSITIONS = "max_position_embeddings"
_MOST_ROWS = 1 << 20  # of angles: 512 MiB for heads of 128, where a text may have so many tokens
_NEUTRAL = {"partial_rotary_factor": 1.0}  # a setting of any type, where it says nothing


def rotary_angles(
    checkpoint: Checkpoint,
    head_dim: int,
    theta: float,
    *,
    kind: str | None = None,
    is_scaled: bool = True,
    max_tokens: int = 0,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [tokens of the longest sequence, head_dim / 2], times the factor by which YaRN scales scores.

    theta: the base where config.json states none. kind: of layers, where each has its own settings. is_scaled: whether
    an older file's rope_scaling is of this kind too. max_tokens: max_position_embeddings where config.json states none.
    Raises NotPacked for a scaling that is not implemented, by its name.
    """
    if head_dim % 2:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: heads of {head_dim} cannot be rotated: the size is odd.")
    config = checkpoint.config
    settings = _settings(config) if kind is None else _settings_of(checkpoint, kind, is_scaled=is_scaled)
    _require_known(checkpoint, settings)
    theta = setting(settings, "rope_theta", theta if kind is not None else setting(config, "rope_theta", theta))
    periods = theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    tokens, factor = _positions(config, max_tokens), 1.0
    rows = torch.arange(_longest(checkpoint, tokens)).float()
    if _rope_type(settings) == "yarn":
        if kind is not None and "truncate" in settings:  # the reference does not look for it there
            raise NotPacked(f"{checkpoint.directory}: truncate of one kind of layers is not implemented.")
        frequencies, factor = yarn(checkpoint, settings, periods, theta, tokens)
    else:
        frequencies = _scaled(checkpoint, 1.0 / periods, settings, tokens)
    angles = rows[:, None] * frequencies
    return angles.cos() * factor, angles.sin() * factor


def _positions(config: Config, default: int) -> int:
    """`max_position_embeddings`, of which there may be more than of other sizes."""
    stated = config.get(_POSITIONS)
    return stated if type(stated) is int and stated > _MOST_ROWS else require_int(config, _POSITIONS, default)


def _longest(checkpoint: Checkpoint, positions: int) -> int:
    """Tokens of the longest text that is admitted. Raises NotPacked where a table of so many would be too large."""
    longest = max_tokens_beyond(checkpoint, positions, stated_lengths(checkpoint))
    if longest > _MOST_ROWS:
        raise NotPacked(f"{checkpoint.directory}: {longest:,} rotary positions are not implemented.")
    return longest


def _settings(config: Config) -> Mapping[str, Any]:
    """The settings of all layers. Older files call them rope_scaling, which counts before the newer name."""
    return setting(config, "rope_scaling", {}) or setting(config, "rope_parameters", {})


def _settings_of(checkpoint: Checkpoint, kind: str, *, is_scaled: bool) -> Mapping[str, Any]:
    """The settings of one kind of layers, to which older files' rope_scaling is added."""
    by_kind = setting(checkpoint.config, "rope_parameters", {})
    if flat := sorted(key for key, value in by_kind.items() if not isinstance(value, dict | None)):
        raise NotPacked(f"{checkpoint.directory}: rope_parameters has {', '.join(flat)} beside the kinds of layers.")
    scaling = setting(checkpoint.config, "rope_scaling", {}) if is_scaled else {}
    # Where no kind is stated the reference begins with this, so that the older name of the type has no effect.
    unstated = {"rope_type": "default"} if checkpoint.config.get("rope_parameters") is None else {}
    return {**setting(by_kind, kind, unstated), **scaling}


def _require_known(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> None:
    rope_type = _rope_type(settings)
    known = {*_TYPES, "rope_theta", *_OF_TYPE.get(rope_type, ())}
    unknown = sorted(key for key in settings if key not in known and settings[key] != _NEUTRAL.get(key))
    if rope_type not in _OF_TYPE or unknown:
        what = f"scaled by {rope_type!r}" if rope_type not in _OF_TYPE else f"with {', '.join(unknown)}"
        raise NotPacked(f"{checkpoint.directory}: rotary positions {what} are not implemented.")
    if setting(checkpoint.config, "partial_rotary_factor", 1.0) != 1.0:
        raise NotPacked(f"{checkpoint.directory}: partial_rotary_factor is not implemented.")
    if rope_type in ("llama3", "yarn") and checkpoint.config.get(TRAINED) is not None:
        raise NotPacked(f"{checkpoint.directory}: {TRAINED} outside the rotary settings is not implemented.")


def _rope_type(settings: Mapping[str, Any]) -> str:
    return setting(settings, _TYPES[0], setting(settings, _TYPES[1], "default"))


def _scaled(checkpoint: Checkpoint, frequencies: Tensor, settings: Mapping[str, Any], max_tokens: int) -> Tensor:
    match _rope_type(settings):
        case "default":
            return frequencies
        case "linear":
            return frequencies / positive(checkpoint, settings, "factor")
        case "llama3":
            low, high = (positive(checkpoint, settings, f"{name}_freq_factor") for name in ("low", "high"))
            trained = require_int(settings, TRAINED, max_tokens)
            return _by_wavelength(frequencies, positive(checkpoint, settings, "factor"), low, high, trained)
        case other:
            raise RuntimeError(f"rotary positions of type {other!r} passed the check. This is a bug.")


def _by_wavelength(frequencies: Tensor, factor: float, low: float, high: float, trained: int) -> Tensor:
    """Llama 3.1: short waves as they are, long ones divided by the factor, those between in proportion."""
    waves = 2 * math.pi / frequencies
    scaled = torch.where(waves > trained / low, frequencies / factor, frequencies)
    share = (trained / waves - low) / (high - low)
    between = ~(waves < trained / high) & ~(waves > trained / low)
    return torch.where(between, (1 - share) * scaled / factor + share * scaled, scaled)
