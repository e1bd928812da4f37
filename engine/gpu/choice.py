"""Choice of the attention kernel for a batch, and the plan that some kernels take. Crossovers measured on an H200.

Microseconds a layer, float16, 12 heads of 64, packed with 128 and with 64 queries a block, torch's FlashAttention-2:

    16k tokens of 2-100            short 45   packed 44, 50    flash 98
    16k tokens of 5-500                       packed 70, 81    flash 126
    16 sequences of 205-1,024                 packed 79, 85    flash 111
    one sequence of 250                       packed 7.4, 5.2  flash 9.3
    one sequence of 50             short 3.5                   flash 6.4

Of another H200, with the plain kernel of the same run beside it:

                                   packed with 128 queries a block     biased
    16k tokens of 2-100                       43                       50
    16k tokens of 5-500                       69                       76
    16k tokens of 100-2,000                   214                      230

Of another H200, blocks of 64 and of 128 queries, and the long kernel, which `LongAttention.of` decides on:

                                   12 heads of 64    16 causal of 128, 8 of keys   14 causal of 64, 2 of keys
    16k tokens of 2-100            45,  47,  70      113, 157, 105                 45,  48,  69
    16k tokens of 5-500            82,  76,  69      133, 155,  95                 58,  59,  59
    16k tokens of 100-2,000        234, 213, 153     348, 372, 191                 149, 145, 121
    4,096 tokens of 5-500          23,  23,  20      37,  42,  29                  18,  20,  21
    1,024 tokens of 5-500          14,  12,  10      14,  15,  11                  9.6, 13,  8.4
    one sequence of 256            5.8, 8.2, 7.2     8.2, 10,  7.7                 5.9, 8.2, 5.7
    one sequence of 512            10.4, 14, 10.2    14,  17,  10                  9.5, 13,  8.0
    one sequence of 2,048          60,  61,  27      82,  86,  41                  45,  57,  31

Of another H200, 12 disentangled heads of 64:

                                   disentangled  long and disentangled
    16k tokens of 2-100                91              107
    8k tokens of 2-100                 49               57
    128 sequences of 128               90               65
    16k tokens of 5-500               215              140
    16k tokens of 100-2,000           719              388
    1,024 tokens of 5-500              31               20
    one sequence of 128                 9.1              7.6
    one sequence of 256                15.0             13.1
    one sequence of 512                26               22

Of another H200, 12 heads of 64: blocks of 64 queries, and long with 192 and with 128 queries a block:

    one sequence of 256, 384, 512  5.2, 6.3, 5.3     8.6, 7.8, 6.4     11.1, 9.7, 8.0
    2 and 3 sequences of 256       7.0, 6.8, 5.7     9.4, 7.4, 6.3
    2 and 3 of 512                 14,  10.4, 8.7    17,  10.7, 14
    4 of 200, 6 of 160             8.8, 7.8, 6.8     7.1, 8.0, 9.2
"""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels import (
    disentangled_attention,
    long_disentangled,
    packed_attention,
    rotate,
    short_attention,
)
from penstock.engine.model.weights import (
    Attention,
    DisentangledAttention,
    DistanceAttention,
    Encoder,
    PlainAttention,
    RotaryAttention,
)
from penstock.engine.types import Int32Array

# One warp for sixteen queries is fastest for the shortest sequences, and for batches of few rows.
_SHORT_TOKENS, _SHORT_ROWS = 64, 2048
# From this many rows on, blocks of 128 queries fill an H200 at 12 heads. Below, twice as many of 64 finish earlier.
_ROWS_THAT_FILL = 2816
# Batches whose longest sequence has more tokens gain from Hopper's tensor cores. Powers of two, as buckets round it.
_WIDE_HEADS, _LONG_TOKENS_OF_WIDE, _LONG_TOKENS, _LONG_TOKENS_CAUSAL = 128, 64, 256, 512
_LONG_TOKENS_DISENTANGLED = 128
# Blocks of 192 queries do not fill the device in batches of few rows. Those of 128 gain there from fewer tokens on.
_FEW_LONG_ROWS, _LONG_TOKENS_OF_FEW, _ROWS_OF_SEVERAL = 1024, 128, 256

_FLASH_STEP, _FLASH_MOST = 8, 256  # sizes of heads that torch's FlashAttention-2 takes


class AttentionKernel(Enum):
    SHORT = "short"
    PACKED_64 = "packed, 64 queries a block"
    PACKED_128 = "packed, 128 queries a block"
    LONG_128 = "long, 128 queries a block"
    LONG_192 = "long, 192 queries a block"
    LONG_CAUSAL = "long and causal, 128 queries a block"
    DISENTANGLED = "disentangled"
    LONG_DISENTANGLED = "long and disentangled"
    FLASH = "flash"


class LongAttention(NamedTuple):
    """A kernel for Hopper, of batches of more `rows` with a longest sequence of more `tokens`.

    For LONG_192, LONG_128 stands in where batches have few rows.
    """

    kernel: AttentionKernel
    tokens: int
    rows: int

    @classmethod
    def of(cls, kernel: AttentionKernel, head_dim: int, *, is_causal: bool, has_windows: bool) -> "LongAttention":
        """is_causal, has_windows: whether any layer is, or has one.

        A layer with a window follows the plan of 128 queries a block, with which few rows do not fill the device.
        """
        of_narrow = _LONG_TOKENS_CAUSAL if is_causal else _LONG_TOKENS
        tokens = _LONG_TOKENS_OF_WIDE if head_dim >= _WIDE_HEADS else of_narrow
        return cls(kernel, tokens, _ROWS_THAT_FILL if has_windows else 0)

    @classmethod
    def of_disentangled(cls) -> "LongAttention":
        """For layers with both terms."""
        return cls(AttentionKernel.LONG_DISENTANGLED, _LONG_TOKENS_DISENTANGLED, 0)

    def choose(self, max_seqlen: int, rows: int) -> AttentionKernel | None:
        """The kernel for batches of this longest sequence and so many rows; None if it is not faster."""
        is_few = self.kernel is AttentionKernel.LONG_192 and rows <= _FEW_LONG_ROWS
        tokens = _LONG_TOKENS_OF_FEW if is_few and rows > _ROWS_OF_SEVERAL else self.tokens
        if not tokens < max_seqlen <= packed_attention.MAX_SEQLEN or rows <= self.rows:
            return None
        return AttentionKernel.LONG_128 if is_few else self.kernel


def choose_kernel(
    attention: Attention,
    head_dim: int,
    max_seqlen: int,
    rows: int,
    *,
    shared_bytes: int,
    seen_whole: int = 0,
    long: LongAttention | None = None,
) -> AttentionKernel:
    """The kernel for `rows` tokens in sequences of up to `max_seqlen`. Raises UnsupportedDevice if there is none.

    attention: a layer's, of the kind of all. shared_bytes: the most shared memory of a block on the device. seen_whole:
    of `longest_seen_whole`, which rotary attention asks. long: of `attention.prepare_long`.
    """
    if isinstance(attention, DistanceAttention):
        shared_bytes -= packed_attention.table_bytes(attention.bias)
    for_long = None if long is None else long.choose(max_seqlen, rows)
    packed = for_long or _packed(head_dim, max_seqlen, rows, shared_bytes)
    match attention:
        case PlainAttention():
            return _short(head_dim, max_seqlen, rows) or packed or _flash(head_dim)
        case DistanceAttention() if packed is not None:
            return _short(head_dim, max_seqlen, rows) or packed
        case RotaryAttention() if rotate.supports(head_dim):
            short = _short(head_dim, max_seqlen, rows) if max_seqlen <= seen_whole else None
            return short or packed or _flash(head_dim)
        case DisentangledAttention() if disentangled_attention.supports(head_dim):
            return for_long or AttentionKernel.DISENTANGLED
        case DistanceAttention() | RotaryAttention() | DisentangledAttention():
            name = type(attention).__name__
            if max_seqlen > packed_attention.MAX_SEQLEN:
                raise UnsupportedDevice(f"{name} does not support {max_seqlen:,} tokens on this GPU; use device='cpu'.")
            raise UnsupportedDevice(f"{name} does not support heads of {head_dim} on this GPU; use device='cpu'.")
        case _:
            raise RuntimeError(f"no kernel for {type(attention).__name__}. This is a bug.")


def longest_seen_whole(encoder: Encoder[Any]) -> int:
    """Tokens of the longest sequence that is plain attention in every layer once it is turned.

    0 where attention is causal or heads share keys: no sequence is.
    """
    rotary = [layer.attention for layer in encoder.layers if isinstance(layer.attention, RotaryAttention)]
    if encoder.heads.keys != encoder.heads.queries or any(attention.is_causal for attention in rotary):
        return 0
    windows = [attention.window for attention in rotary if attention.window is not None]
    return min(windows, default=packed_attention.MAX_SEQLEN) + 1


def _short(head_dim: int, max_seqlen: int, rows: int) -> AttentionKernel | None:
    is_small = max_seqlen <= _SHORT_TOKENS or rows <= _SHORT_ROWS
    return AttentionKernel.SHORT if is_small and short_attention.supports(head_dim, max_seqlen) else None


def _packed(head_dim: int, max_seqlen: int, rows: int, shared_bytes: int) -> AttentionKernel | None:
    if rows > _ROWS_THAT_FILL and packed_attention.supports(head_dim, max_seqlen, 128, shared_bytes):
        return AttentionKernel.PACKED_128
    is_supported = packed_attention.supports(head_dim, max_seqlen, 64, shared_bytes)
    return AttentionKernel.PACKED_64 if is_supported else None


def _flash(head_dim: int) -> AttentionKernel:
    if head_dim % _FLASH_STEP or head_dim > _FLASH_MOST:
        raise UnsupportedDevice(
            f"attention does not support heads of {head_dim} on a GPU, only multiples of {_FLASH_STEP} up to "
            f"{_FLASH_MOST}; use device='cpu'."
        )
    return AttentionKernel.FLASH


class _Plans(NamedTuple):
    """Planning of the batches of a kernel that follows a plan."""

    capacity: Callable[[int, int], int]
    items: Callable[[Int32Array, int], Int32Array]
    longest: int


_PLANS = {
    AttentionKernel.SHORT: _Plans(
        short_attention.plan_capacity, short_attention.plan_items, short_attention.MAX_SEQLEN
    ),
    **{
        kernel: _Plans(
            partial(packed_attention.plan_capacity, queries=queries),
            partial(packed_attention.plan_items, queries=queries, is_causal=kernel is AttentionKernel.LONG_CAUSAL),
            packed_attention.MAX_SEQLEN,
        )
        for kernel, queries in (
            (AttentionKernel.PACKED_64, 64),
            (AttentionKernel.PACKED_128, 128),
            (AttentionKernel.LONG_128, 128),
            (AttentionKernel.LONG_192, 192),
            (AttentionKernel.LONG_CAUSAL, 128),
            (AttentionKernel.LONG_DISENTANGLED, long_disentangled.QUERIES),
        )
    },
}


def plan_capacity(kernel: AttentionKernel, rows: int, sequences: int) -> int:
    """Rows of the plan [*, 2] that any batch of this shape may need; 0 for a kernel without a plan."""
    return _PLANS[kernel].capacity(rows, sequences) if kernel in _PLANS else 0


def longest_planned(kernel: AttentionKernel) -> int | None:
    """Tokens of the longest sequence that a plan may hold: the launch does not depend on the batch's longest.

    None for a kernel without a plan, whose launch does.
    """
    return _PLANS[kernel].longest if kernel in _PLANS else None


def plan_items(kernel: AttentionKernel, cu_seqlens: Int32Array, capacity: int) -> Int32Array:
    """The plan [capacity, 2] of a batch."""
    return _PLANS[kernel].items(cu_seqlens, capacity) if kernel in _PLANS else np.empty((0, 2), np.int32)
