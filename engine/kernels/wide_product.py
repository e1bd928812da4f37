"""Launch of products of many rows with the activation in the epilogue, on Hopper."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.activation import KINDS
from penstock.engine.kernels.hopper import CAPABILITY, hopper_kernel, tensor_map
from penstock.engine.kernels.library import VECTOR, Kernel, index_of, multiprocessors, pointer, pointer_or_null

# As in wide_product.cu.
_CLUSTER, _THREADS, _STAGES, _STAGE_DEPTH = 2, 384, 6, 64
_BLOCK_ROWS, _BLOCK_COLUMNS = 128, 128
_OUT_ROWS = 16
_WARPS, _OUT_BUFFERS = 8, 2
_ROW_BYTES = 128
_SHARED_BYTES = (
    1024  # the ring begins on such a boundary
    + _STAGES * (_BLOCK_ROWS + _BLOCK_COLUMNS) * _ROW_BYTES
    + _WARPS * _OUT_BUFFERS * _OUT_ROWS * _ROW_BYTES
    + _STAGES * 2 * 8  # barriers
)


def prepare(kind: str, dtype: torch.dtype, device: int, *, is_gated: bool = False) -> None:
    """Compile and load for CUDA device `device`. Raises UnsupportedDevice where `wide_product` does not run."""
    _kernel(kind, dtype, device, is_gated=is_gated)


def num_groups(device: int) -> int:
    """Tiles that CUDA device `device` computes at a time; 0 where `wide_product` does not run."""
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        return 0
    return 2 * (multiprocessors(device) // _CLUSTER)


def num_tiles(rows: int, width: int) -> int:
    """Tiles of a product. Two blocks compute each."""
    return -(-rows // (_BLOCK_ROWS * _CLUSTER)) * -(-width // _BLOCK_COLUMNS)


def wide_product(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, *, is_gated: bool = False
) -> None:
    """out = act(x weight' + bias): out [R, N], x [R, K], weight [N, K], bias [N], all float16 or all bfloat16.

    is_gated: weight and bias have 2N rows, and out = act(first N columns) * last N columns, as in GeGLU.
    kind: one of activation.KINDS. N and K are multiples of 8; no aliasing. One launch, on compute capability 9.0.
    Raises ValueError for anything else, UnsupportedDevice elsewhere.
    """
    (rows, width), depth = out.shape, x.shape[1]
    if width % VECTOR or depth % VECTOR or not width or not depth:
        raise ValueError(f"{rows} rows of {depth} to {width}: widths must be positive multiples of {VECTOR}")
    pointer("out", out, out.dtype, (rows, width))
    pointer("x", x, out.dtype, (rows, depth))
    columns = 2 * width if is_gated else width
    pointer("weight", weight, out.dtype, (columns, depth))
    shift = pointer_or_null("bias", bias, out.dtype, (columns,))
    device = index_of(out)
    run = _kernel(kind, out.dtype, device, is_gated=is_gated)
    if not rows:
        return
    args = (
        tensor_map(out, _OUT_ROWS, _STAGE_DEPTH),
        tensor_map(x, _BLOCK_ROWS, _STAGE_DEPTH),
        tensor_map(weight, _BLOCK_COLUMNS // _CLUSTER, _STAGE_DEPTH),
        shift,
        np.int32(rows),
        np.int32(width),
        np.int32(depth),
    )
    clusters = min(multiprocessors(device) // _CLUSTER, num_tiles(rows, columns))
    run((clusters * _CLUSTER,), (_THREADS,), args, _SHARED_BYTES)


def _kernel(kind: str, dtype: torch.dtype, device: int, *, is_gated: bool) -> Kernel:
    if kind not in KINDS:
        raise ValueError(f"activation {kind!r} is not one of {', '.join(KINDS)}")
    type_name = kind.replace("_", " ").title().replace(" ", "")  # in activations.cuh
    return hopper_kernel(
        "wide_product", "wide_product", dtype, f"Gated<{type_name}>" if is_gated else type_name, device
    )
