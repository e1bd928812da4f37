"""YaRN's scaling of rotary positions (Peng et al. 2023), in the arithmetic of transformers' `modeling_rope_utils`."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting

TRAINED = "original_max_position_embeddings"


def yarn(
    checkpoint: Checkpoint, settings: Mapping[str, Any], periods: Tensor, theta: float, max_tokens: int
) -> tuple[Tensor, float]:
    """Frequencies [head_dim / 2], and the factor of cosines and sines.

    Short waves stay as they are, long ones are stretched by the factor, those between in proportion to their dimension.
    periods [head_dim / 2]: without scaling, powers of theta. max_tokens: of the model, in place of the trained length.
    """
    trained = require_int(settings, TRAINED, max_tokens)
    factor = max_tokens / trained
    if settings.get("factor") is not None:
        factor = positive(checkpoint, settings, "factor")
    fast, slow = (  # 0 is none, as in the reference
        positive(checkpoint, settings, key) if settings.get(key) else default
        for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    dim = 2 * len(periods)
    try:
        low, high = (dim * math.log(trained / (turn * 2 * math.pi)) / (2 * math.log(theta)) for turn in (fast, slow))
    except (ValueError, ZeroDivisionError) as error:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: rotary positions of type 'yarn' cannot be computed for rope_theta {theta}, "
            f"beta_fast {fast} and beta_slow {slow}."
        ) from error
    if "truncate" not in settings or setting(settings, "truncate", False):  # null is false, as in the reference
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0
    is_short = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = 1.0 / (factor * periods) * (1 - is_short) + 1.0 / periods * is_short
    return frequencies, _factor_of_scores(checkpoint, settings, factor)


def positive(checkpoint: Checkpoint, settings: Mapping[str, Any], key: str) -> float:
    """A setting that must be there, and be a positive number."""
    value = setting(settings, key, math.nan)
    if not value > 0 or math.isinf(value):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: rotary positions need a positive {key!r}, not {value}.")
    return value


def _factor_of_scores(checkpoint: Checkpoint, settings: Mapping[str, Any], factor: float) -> float:
    """That of queries and of keys: as stated, or by the logarithm of the factor."""
    if settings.get("attention_factor") is not None:
        return positive(checkpoint, settings, "attention_factor")
    scale, scale_all = (setting(settings, key, 0.0) for key in ("mscale", "mscale_all_dim"))
    if not (scale and scale_all):
        return _by_logarithm(factor, 1.0)
    return _by_logarithm(factor, scale) / _by_logarithm(factor, scale_all)


def _by_logarithm(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
