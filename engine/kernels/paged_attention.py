"""Launch of attention from single tokens to paged keys and values."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import head_dim_of, kernel, pointer, pointer_or_null

_HEAD_DIMS = (32, 64, 128)
_WARP, _WARPS = 32, 4  # of a block, as in paged_attention.cu


def supports(head_dim: int) -> bool:
    """Whether `paged_attention` supports heads of `head_dim` elements."""
    return head_dim in _HEAD_DIMS


def paged_attention(
    out: Tensor,
    query: Tensor,
    cache: Tensor,
    table: Tensor,
    page_size: int,
    lengths: Tensor,
    lines: Tensor | None,
    num_heads: int,
    scale: float,
    bias: Tensor | None,
) -> None:
    """softmax(scale q k' + bias) v over the first `lengths` positions of each row's line, into `out`. One launch.

    out [R, W]; query [R, W], or qkv [R, 3W] whose keys and values are those of each line's last position, and are
    written to the cache; no two rows then have one line. cache [slots, 2W]: key, then value; each [num_heads,
    head_dim]. All float16 or all bfloat16, no aliasing. table [N, C] int32: pages of page_size slots, a power of two;
    lengths [N] int32, each at most C * page_size; lines [R] int32: row of the table of each row; None: its own. Rows of
    length 0 become zero. bias [num_heads, 2D + 1], by the distance of a key after the last position, clamped to D.
    Raises ValueError for other shapes, types or alignment.
    """
    (rows, width), dtype = out.shape, out.dtype
    head_dim = head_dim_of(width, num_heads, _HEAD_DIMS)
    num_lines, columns = table.shape
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"page_size must be a power of two, not {page_size}")
    is_fresh = query.shape[1] != width
    if (lines is None or is_fresh) and num_lines < rows:
        raise ValueError(f"{rows} rows need a line each; the table has {num_lines}")
    reach = 0 if bias is None else bias.shape[1] // 2
    args = (
        pointer("out", out, dtype, (rows, width)),
        pointer("query", query, dtype, (rows, 3 * width if is_fresh else width)),
        query.shape[1],
        pointer("cache", cache, dtype, (len(cache), 2 * width)),
        pointer("table", table, torch.int32, (num_lines, columns)),
        np.int32(columns),
        np.int32(page_size.bit_length() - 1),
        pointer("lengths", lengths, torch.int32, (num_lines,)),
        pointer_or_null("lines", lines, torch.int32, (rows,)),
        np.int32(rows),
        np.int32(num_heads),
        np.float32(scale),
        pointer_or_null("bias", bias, dtype, (num_heads, 2 * reach + 1)),
        np.int32(reach),
        np.int32(is_fresh),
    )
    if rows:
        blocks = -(-rows * num_heads // _WARPS)
        kernel("paged_attention", f"paged_attention_{head_dim}", out)((blocks,), (_WARP * _WARPS,), args)
