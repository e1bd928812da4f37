"""Launch of plain attention over long packed sequences on Hopper."""

import math

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.hopper import CAPABILITY, hopper_kernel, tensor_map
from penstock.engine.kernels.library import head_dim_of, index_of, multiprocessors, pointer

QUERIES = 128  # of a block: it follows `packed_attention.plan_items` for as many
# As in long_attention.cu.
_BOX, _KEYS, _STAGES, _QUERY_BUFFERS = 64, 128, 4, 2
_THREADS = 384
_HEAD_DIMS = (64, 128)
_ROW_BYTES = 128  # of a box


def supports(head_dim: int, device: int) -> bool:
    """Whether `long_attention` supports heads of `head_dim` elements on CUDA device `device`."""
    return head_dim in _HEAD_DIMS and torch.cuda.get_device_capability(device) == CAPABILITY


def shared_bytes(head_dim: int) -> int:
    """Shared memory of a block."""
    boxes = head_dim // _BOX
    stages = _STAGES // boxes
    buffers = (_QUERY_BUFFERS * QUERIES + 2 * stages * _KEYS) * boxes * _ROW_BYTES
    return 1024 + buffers + (_QUERY_BUFFERS + 2 * stages) * 2 * 8  # where the buffers begin; two barriers for each


def prepare(head_dim: int, dtype: torch.dtype, device: int) -> None:
    """Compile and load for CUDA device `device`. Raises UnsupportedDevice where `long_attention` does not run."""
    hopper_kernel("long_attention", f"long_attention_{head_dim}", dtype, None, device)


def long_attention(out: Tensor, qkv: Tensor, plan: Tensor, num_heads: int, scale: float) -> None:
    """softmax(scale q k') v within each sequence of the plan, into `out`. One launch, nothing allocated.

    out [R, H] and qkv [R, 3H] (query, key, value; each [num_heads, head_dim]), float16 or bfloat16, no aliasing. Rows
    in no sequence of the plan are not written, and no result depends on them. plan [C, 2] int32 on the device:
    `packed_attention.plan_items` for QUERIES. scale > 0. A row's bits depend on its own sequence alone.
    Raises ValueError for other shapes, types or alignment, UnsupportedDevice for other devices.
    """
    (rows, hidden), dtype, items = out.shape, out.dtype, len(plan)
    head_dim = head_dim_of(hidden, num_heads, _HEAD_DIMS)
    if plan.data_ptr() % 8:
        raise ValueError("plan must begin on an 8-byte boundary")
    if not scale > 0:
        raise ValueError(f"scale must be positive, not {scale}")
    to = pointer("out", out, dtype, (rows, hidden))
    pointer("qkv", qkv, dtype, (rows, 3 * hidden))
    follows = pointer("plan", plan, torch.int32, (items, 2))
    device = index_of(out)
    run = hopper_kernel("long_attention", f"long_attention_{head_dim}", dtype, None, device)
    if not items or not rows:
        return
    args = (
        to,
        tensor_map(qkv, _BOX, _BOX),
        follows,
        np.int32(items),
        np.int32(num_heads),
        np.float32(scale * math.log2(math.e)),
    )
    run((min(multiprocessors(device), items * num_heads),), (_THREADS,), args, shared_bytes(head_dim))
