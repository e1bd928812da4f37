"""Which attention kernel a batch gets, and the plan that some of them take. The crossovers were measured on an H200.

Microseconds a layer, float16, 12 heads of 64, packed with 128 and with 64 queries a block, torch's FlashAttention-2:

    16k tokens of 2-100            short 45   packed 44, 50    flash 98
    16k tokens of 5-500                       packed 70, 81    flash 126
    16 sequences of 205-1,024                 packed 79, 85    flash 111
    one sequence of 250                       packed 7.4, 5.2  flash 9.3
    one sequence of 50             short 3.5                   flash 6.4
"""

from enum import Enum

import numpy as np

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels import disentangled_attention, packed_attention, short_attention
from penstock.engine.model.weights import (
    Attention,
    BiasedAttention,
    DisentangledAttention,
    PlainAttention,
    RotaryAttention,
)
from penstock.engine.types import Int32Array

# A warp for sixteen queries is quickest for the shortest sequences, and where few warps are all there is to do.
_SHORT_TOKENS, _SHORT_ROWS = 64, 2048
# Blocks of 128 queries fill an H200 from here on, at 12 heads; below it, twice as many of 64 are sooner done.
_ROWS_THAT_FILL = 2816

_FLASH_STEP, _FLASH_MOST = 8, 256  # sizes of heads that torch's FlashAttention-2 takes


class AttentionKernel(Enum):
    """One launch, or for ONE_BY_ONE one a sequence."""

    SHORT = "short"
    PACKED_64 = "packed, 64 queries a block"
    PACKED_128 = "packed, 128 queries a block"
    DISENTANGLED = "disentangled"
    FLASH = "flash"
    ONE_BY_ONE = "one by one"


def choose_kernel(
    attention: Attention, head_dim: int, max_seqlen: int, rows: int, *, shared_bytes: int
) -> AttentionKernel:
    """For `rows` tokens in sequences of up to `max_seqlen`. Raises UnsupportedDevice where there is none.

    shared_bytes: what a block on the device can ask for.
    """
    match attention:
        case PlainAttention():
            is_small = max_seqlen <= _SHORT_TOKENS or rows <= _SHORT_ROWS
            if is_small and short_attention.supports(head_dim, max_seqlen):
                return AttentionKernel.SHORT
            if rows > _ROWS_THAT_FILL and packed_attention.supports(head_dim, max_seqlen, 128, shared_bytes):
                return AttentionKernel.PACKED_128
            if packed_attention.supports(head_dim, max_seqlen, 64, shared_bytes):
                return AttentionKernel.PACKED_64
            return _flash(head_dim)
        case BiasedAttention():
            is_short = short_attention.supports(head_dim, max_seqlen)
            return AttentionKernel.SHORT if is_short else AttentionKernel.ONE_BY_ONE
        case DisentangledAttention():
            if not disentangled_attention.supports(head_dim):
                raise UnsupportedDevice(
                    f"disentangled attention takes no heads of {head_dim} on a GPU; use device='cpu'."
                )
            return AttentionKernel.DISENTANGLED
        case RotaryAttention():
            return _flash(head_dim)
        case _:
            raise RuntimeError(f"no kernel for {type(attention).__name__}. This is a bug.")


def _flash(head_dim: int) -> AttentionKernel:
    if head_dim % _FLASH_STEP or head_dim > _FLASH_MOST:
        raise UnsupportedDevice(
            f"attention takes no heads of {head_dim} on a GPU: multiples of {_FLASH_STEP} up to {_FLASH_MOST}; "
            "use device='cpu'."
        )
    return AttentionKernel.FLASH


def plan_capacity(kernel: AttentionKernel, rows: int, slots: int) -> int:
    """Rows of the plan [*, 2] that any batch of this shape may need."""
    match kernel:
        case AttentionKernel.SHORT:
            return short_attention.plan_capacity(rows, slots)
        case AttentionKernel.PACKED_64:
            return packed_attention.plan_capacity(rows, slots, 64)
        case AttentionKernel.PACKED_128:
            return packed_attention.plan_capacity(rows, slots, 128)
        case _:
            return 0


def longest_planned(kernel: AttentionKernel) -> int | None:
    """Tokens of the longest sequence that a plan may hold: all that such a kernel's launch knows of lengths. None for a
    kernel that follows no plan: its launch is for the longest of a batch.
    """
    match kernel:
        case AttentionKernel.SHORT:
            return short_attention.MAX_SEQLEN
        case AttentionKernel.PACKED_64 | AttentionKernel.PACKED_128:
            return packed_attention.MAX_SEQLEN
        case _:
            return None


def plan_items(kernel: AttentionKernel, cu_seqlens: Int32Array, capacity: int) -> Int32Array:
    """The plan [capacity, 2] of a batch."""
    match kernel:
        case AttentionKernel.SHORT:
            return short_attention.plan_items(cu_seqlens, capacity)
        case AttentionKernel.PACKED_64:
            return packed_attention.plan_items(cu_seqlens, capacity, 64)
        case AttentionKernel.PACKED_128:
            return packed_attention.plan_items(cu_seqlens, capacity, 128)
        case _:
            return np.empty((0, 2), np.int32)
