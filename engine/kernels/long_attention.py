"""Launch of attention over long packed sequences on Hopper: to all keys or to those up to the query, or shared ones."""

import math

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.hopper import CAPABILITY, hopper_kernel, tensor_map
from penstock.engine.kernels.library import head_dim_of, index_of, multiprocessors, pointer
from penstock.engine.model.weights import Heads

# As in long_attention.cu.
_BOX, _KEYS, _QUERY_BUFFERS, _GROUP_THREADS = 64, 128, 2, 128
_STAGES = {(64, 128): 4, (64, 192): 3, (128, 128): 2}  # by head_dim and queries
_HEAD_DIMS = (64, 128)
_BYTES_PER_VALUE = 2  # float16 and bfloat16


def supports(head_dim: int, device: int) -> bool:
    """Whether `long_attention` supports heads of `head_dim` elements on CUDA device `device`."""
    return head_dim in _HEAD_DIMS and torch.cuda.get_device_capability(device) == CAPABILITY


def shared_bytes(head_dim: int, queries: int) -> int:
    """Shared memory of a block."""
    stages = _STAGES[head_dim, queries]
    buffers = (_QUERY_BUFFERS * queries + 2 * stages * _KEYS) * head_dim * _BYTES_PER_VALUE
    return 1024 + buffers + (_QUERY_BUFFERS + 2 * stages) * 2 * 8  # where the buffers begin; two barriers for each


def prepare(head_dim: int, queries: int, is_causal: bool, dtype: torch.dtype, device: int) -> None:
    """Compile and load for CUDA device `device`. Raises UnsupportedDevice where `long_attention` does not run."""
    hopper_kernel("long_attention", _entry(head_dim, queries, is_causal), dtype, None, device)


def long_attention(
    out: Tensor, qkv: Tensor, plan: Tensor, heads: Heads, scale: float, queries: int = 128, *, is_causal: bool = False
) -> None:
    """softmax(scale q k') v within each sequence of the plan, into `out`. One launch, nothing allocated.

    out [R, heads.width] and qkv [R, heads.width + 2 * heads.key_width], float16 or bfloat16, no aliasing. Rows in no
    sequence of the plan are not written, and no result depends on them. plan [C, 2] int32 on the device:
    `packed_attention.plan_items` for as many `queries`, 128, or 192 for heads of 64 that are not causal. is_causal:
    whether a query sees no key after it. scale > 0. A row's bits depend on its own sequence alone, and on `queries`.
    Raises ValueError for other shapes, types or alignment, UnsupportedDevice for other devices.
    """
    (rows, hidden), dtype, items = out.shape, out.dtype, len(plan)
    head_dim = head_dim_of(hidden, heads.queries, _HEAD_DIMS)
    if plan.data_ptr() % 8:
        raise ValueError("plan must begin on an 8-byte boundary")
    if not scale > 0:
        raise ValueError(f"scale must be positive, not {scale}")
    entry = _entry(head_dim, queries, is_causal)
    to = pointer("out", out, dtype, (rows, heads.width))
    pointer("qkv", qkv, dtype, (rows, heads.width + 2 * heads.key_width))
    follows = pointer("plan", plan, torch.int32, (items, 2))
    device = index_of(out)
    run = hopper_kernel("long_attention", entry, dtype, None, device)
    if not items or not rows:
        return
    args = (
        to,
        tensor_map(qkv, _BOX, _BOX),
        follows,
        np.int32(items),
        np.int32(heads.queries),
        np.int32(heads.queries // heads.keys),
        np.float32(scale * math.log2(math.e)),
    )
    groups, units = queries // _BOX, items * heads.queries
    block = ((groups + 1) * _GROUP_THREADS,)
    run((min(multiprocessors(device), units),), block, args, shared_bytes(head_dim, queries))


def _entry(head_dim: int, queries: int, is_causal: bool) -> str:
    if (head_dim, queries) not in _STAGES or (is_causal and queries != 128):
        kind = "causal " if is_causal else ""
        raise ValueError(f"{queries} queries: no block of {kind}heads of {head_dim} has as many")
    return f"{'causal' if is_causal else 'long'}_attention_{head_dim}_{queries}"
