"""Epilogues of products, as epilogues.cuh has them: names, and what they read beside a bias."""

import struct

import torch
from torch import Tensor

from penstock.engine.kernels.activation import KINDS
from penstock.engine.kernels.library import pointer
from penstock.engine.model.weights import Heads, RotaryAttention

_ROTARY = struct.Struct("PPPi4x")
NOT_TURNED = _ROTARY.pack(0, 0, 0, 0)
TURNED_DIMS = (32, 64, 128)  # of heads, which a tile must not divide


def activated(kind: str, *, is_gated: bool = False) -> str:
    """The epilogue of an activation, or of a gate. Raises ValueError for a kind that is not of KINDS."""
    if kind not in KINDS:
        raise ValueError(f"activation {kind!r} is not one of {', '.join(KINDS)}")
    type_name = kind.replace("_", " ").title().replace(" ", "")  # in activations.cuh
    return f"Gated<{type_name}>" if is_gated else type_name


def turned(head_dim: int, rotary: RotaryAttention | None) -> str | None:
    """The epilogue of rotary positions; None for heads that no product turns: of other sizes, or with norms."""
    if rotary is None or rotary.query_norm is not None or rotary.key_norm is not None:
        return None
    return f"Turned<{head_dim}>" if head_dim in TURNED_DIMS else None


def packed_rotary(out: Tensor, positions: Tensor, heads: Heads, rotary: RotaryAttention) -> tuple[str, bytes]:
    """The epilogue of a product to `out` [R, (queries + 2 keys) * dim], and its struct `Rotary`.

    positions int32 [R], each with a row in `rotary`'s angles, which are float32. Raises ValueError for heads without an
    epilogue, and for other sizes, types or alignment.
    """
    rows, width = out.shape
    epilogue = turned(heads.dim, rotary)
    if epilogue is None or width != heads.width + 2 * heads.key_width:
        raise ValueError(f"{width} columns of {heads}: no heads that are turned in a product")
    at = pointer("positions", positions, torch.int32, (rows,))
    tables = rotary.cosines, rotary.sines
    angles = [pointer("angles", one, torch.float32, (len(one), heads.dim // 2)) for one in tables]
    return epilogue, _ROTARY.pack(at, *angles, heads.width + heads.key_width)
