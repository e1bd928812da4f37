"""Which attention kernel a batch gets, and the plan that some of them take. The crossovers were measured on an H200.

Microseconds a layer, float16, 12 heads of 64: 16k tokens of 2-100: short 45, packed 43, torch's FlashAttention-2 98;
one sequence of 50: short 3.5, flash 6.4; 16k tokens of 5-500: packed 73, flash 125; 16 sequences of 205-1,024: packed
81, flash 110.
"""

from enum import Enum

import numpy as np

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels import disentangled_attention, packed_attention, short_attention
from penstock.engine.types import Int32Array
from penstock.engine.weights import (
    Attention,
    BiasedAttention,
    DisentangledAttention,
    PlainAttention,
    RotaryAttention,
)

PACKED_QUERIES = 64  # of a CTA; 128 is 5 % faster for 512 tokens and up to 40 % slower for few short sequences
_SHORT = 64  # tokens: up to here a warp for sixteen queries is quickest


class AttentionKernel(Enum):
    """One launch, or for ONE_BY_ONE one a sequence."""

    SHORT = "short"
    PACKED = "packed"
    DISENTANGLED = "disentangled"
    FLASH = "flash"
    ONE_BY_ONE = "one by one"


def choose_kernel(attention: Attention, head_dim: int, max_seqlen: int) -> AttentionKernel:
    """For sequences of up to `max_seqlen` tokens. Raises UnsupportedDevice where there is none."""
    match attention:
        case PlainAttention():
            if max_seqlen <= _SHORT and short_attention.supports(head_dim, max_seqlen):
                return AttentionKernel.SHORT
            if packed_attention.supports(head_dim, max_seqlen):
                return AttentionKernel.PACKED
            return AttentionKernel.FLASH
        case BiasedAttention():
            is_short = short_attention.supports(head_dim, max_seqlen)
            return AttentionKernel.SHORT if is_short else AttentionKernel.ONE_BY_ONE
        case DisentangledAttention():
            if not disentangled_attention.supports(head_dim):
                raise UnsupportedDevice(f"disentangled attention takes no heads of {head_dim} on a GPU; use the CPU.")
            return AttentionKernel.DISENTANGLED
        case RotaryAttention():
            return AttentionKernel.FLASH
        case _:
            raise RuntimeError(f"no kernel for {type(attention).__name__}. This is a bug.")


def plan_capacity(kernel: AttentionKernel, rows: int, slots: int) -> int:
    """Rows of the plan [*, 2] that any batch of this shape may need."""
    match kernel:
        case AttentionKernel.SHORT:
            return short_attention.plan_capacity(rows, slots)
        case AttentionKernel.PACKED:
            return packed_attention.plan_capacity(rows, slots, PACKED_QUERIES)
        case _:
            return 0


def plan_items(kernel: AttentionKernel, cu_seqlens: Int32Array, capacity: int) -> Int32Array:
    """The plan [capacity, 2] of a batch."""
    match kernel:
        case AttentionKernel.SHORT:
            return short_attention.plan_items(cu_seqlens, capacity)
        case AttentionKernel.PACKED:
            return packed_attention.plan_items(cu_seqlens, capacity, PACKED_QUERIES)
        case _:
            return np.empty((0, 2), np.int32)
