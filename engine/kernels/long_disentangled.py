"""Launch of DeBERTa-v2/v3's disentangled attention over long packed sequences on Hopper."""

import math

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.hopper import CAPABILITY, hopper_kernel, tensor_map
from penstock.engine.kernels.library import head_dim_of, index_of, multiprocessors, pointer

# As in long_disentangled.cu.
_HEAD_DIM, _BOX, _GROUPS, _BOXES, _STAGES, _POSITION_ROW, _GROUP_THREADS = 64, 64, 3, 7, 3, 136, 128
_PART_OF_RELATIVE = 8
_BYTES_PER_VALUE = 2  # float16 and bfloat16
QUERIES = _GROUPS * _BOX  # of a block
_ENTRY = "long_disentangled"


def supports(head_dim: int, device: int) -> bool:
    """Whether `long_disentangled` supports heads of `head_dim` elements on CUDA device `device`."""
    return head_dim == _HEAD_DIM and torch.cuda.get_device_capability(device) == CAPABILITY


def shared_bytes() -> int:
    """Shared memory of a block."""
    boxes = 2 * (_STAGES + _BOXES) * _BOX * _HEAD_DIM
    values = boxes + _GROUPS * _BOX * _POSITION_ROW
    return 1024 + values * _BYTES_PER_VALUE + (2 * _BOXES + _STAGES) * 8  # where the buffers begin; the barriers


def prepare(dtype: torch.dtype, device: int) -> None:
    """Compile and load for CUDA device `device`. Raises UnsupportedDevice where `long_disentangled` does not run."""
    hopper_kernel(_ENTRY, _ENTRY, dtype, None, device)


def by_distance(embeddings: Tensor, table: Tensor) -> Tensor:
    """[D, H], D odd: an eighth of the embeddings of distances -(D // 2) to D // 2, as `long_disentangled` takes them.

    embeddings [2 * span, H]; table [2 * reach - 1]: `penstock.engine.model.positions.relative_rows`. Where the table is
    constant at its ends, 64 rows are enough for all distances there.
    """
    reach = (len(table) + 1) // 2
    after, before = table[reach - 1 :], table[:reach].flip(0)
    last = 0  # constant from this distance on, on both sides
    for rows in (after, before):
        others = (rows != rows[-1]).nonzero()
        last = max(last, int(others[-1]) + 1 if len(others) else 0)
    most = last + _BOX - 1
    distances = torch.arange(-most, most + 1, device=table.device).clamp(1 - reach, reach - 1)
    return embeddings[table[distances + reach - 1].long()] / _PART_OF_RELATIVE


def long_disentangled(
    out: Tensor, qkv: Tensor, plan: Tensor, num_heads: int, kr: Tensor, qr: Tensor, scale: float
) -> None:
    """softmax(scale (q_i k_j + q_i kr_d + k_j qr_d)) v with d = i - j, within each sequence of the plan, into `out`.

    out [R, H] and qkv [R, 3H] (query, key, value; each [num_heads, 64]), float16 or bfloat16, no aliasing. Rows in no
    sequence of the plan are not written, and no result depends on them. plan [C, 2] int32 on the device:
    `packed_attention.plan_items` for QUERIES, of sequences no longer than the tables' reach. kr, qr [D, H], of the same
    type: `by_distance` of "c2p" and "p2c". scale > 0: 1 / sqrt(3 * 64) in DeBERTa. A row's bits depend on its own
    sequence alone. One launch, nothing allocated.
    Raises ValueError for other shapes, types or alignment, UnsupportedDevice for other devices.
    """
    (rows, hidden), dtype, items, distances = out.shape, out.dtype, len(plan), len(kr)
    head_dim_of(hidden, num_heads, (_HEAD_DIM,))
    if plan.data_ptr() % 8:
        raise ValueError("plan must begin on an 8-byte boundary")
    if not scale > 0:
        raise ValueError(f"scale must be positive, not {scale}")
    if distances % 2 == 0 or distances < 2 * _BOX - 1:
        raise ValueError(f"{distances} distances: kr and qr have an odd number of rows, at least {2 * _BOX - 1}")
    to = pointer("out", out, dtype, (rows, hidden))
    start = pointer("qkv", qkv, dtype, (rows, 3 * hidden))
    follows = pointer("plan", plan, torch.int32, (items, 2))
    for name, relative in (("kr", kr), ("qr", qr)):
        pointer(name, relative, dtype, (distances, hidden))
    device = index_of(out)
    run = hopper_kernel(_ENTRY, _ENTRY, dtype, None, device)
    if not items or not rows:
        return
    args = (
        to,
        start,
        *(tensor_map(matrix, _BOX, _BOX) for matrix in (qkv, kr, qr)),
        follows,
        np.int32(items),
        np.int32(num_heads),
        np.int32(distances),
        np.float32(scale * math.log2(math.e)),
    )
    grid = (min(multiprocessors(device), items * num_heads),)
    run(grid, ((_GROUPS + 1) * _GROUP_THREADS,), args, shared_bytes())
