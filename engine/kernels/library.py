"""Kernels from source to launch: compiled by CuPy at first use, cached on disk, launched on torch's current stream."""

import struct
import threading
from functools import cache, lru_cache
from importlib import import_module, resources
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels.launch import copy_pinned, launch
from penstock.engine.model.weights import Norm

OPTIONS = ("-std=c++17",)  # one tuple for all: CuPy runs the compiler once for each, even when the result is cached
_thread = threading.local()
_SCALARS = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
_FREE_SHARED_BYTES = 48 * 1024  # a kernel must request more
_HEADERS = {  # beside those that all kernels have
    **dict.fromkeys(("short_product", "short_lstm"), ("short_tile",)),
    **dict.fromkeys(("packed_attention", "biased_attention", "windowed_attention"), ("packed_tile",)),
    "mid_product": ("hopper", "epilogues", "mid_tile"),
    **dict.fromkeys(("long_attention", "long_disentangled"), ("hopper", "warpgroups")),
    "wide_product": ("hopper", "wide_tile", "epilogues"),
    "int8_product": ("hopper", "wide_tile", "int8_tile", "rotation"),
    "int8_blocks": ("hopper", "wide_tile", "int8_tile"),
    "residual_norm": ("rows",),
    "int8_rows": ("rows", "rotation"),
}
_NORM = struct.Struct("PPfi")
VECTOR = 8  # values that every kernel reads at a time: rows are multiples of it
_WARP = 32
_VECTORS_PER_THREAD = 4
_WIDE_WARPS = 8
MAX_HIDDEN = _WIDE_WARPS * _WARP * _VECTORS_PER_THREAD * VECTOR  # the longest row that a block holds in registers


def source_text(source: str, dtype: torch.dtype) -> str:
    """The translation unit of `source`.cu for `dtype`, without #include of our files: CuPy's cache hashes this text."""
    folder = resources.files("penstock.engine.kernels")
    return "\n".join(
        (
            "#include <cuda_fp16.h>",
            "#include <cuda_bf16.h>",
            f"using scalar = {_scalar(dtype)};",
            (folder / "common.cuh").read_text("utf-8"),
            (folder / "activations.cuh").read_text("utf-8"),
            *((folder / f"{name}.cuh").read_text("utf-8") for name in _HEADERS.get(source, ())),
            (folder / f"{source}.cu").read_text("utf-8"),
        )
    )


class Kernel:
    """An entry point on one device. Launches may be captured in a CUDA graph; creating this object may not."""

    def __init__(self, entry: Any, device: int) -> None:
        """entry: a cupy.RawKernel, whose code is loaded to `device` here."""
        self._entry = entry
        self._device = device
        self._capability = torch.cuda.get_device_capability(device)
        with torch.cuda.device(device):
            self._function = entry.kernel.ptr
            self._free_bytes = _FREE_SHARED_BYTES - entry.shared_size_bytes  # less the kernel's own arrays

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        shared_bytes: int = 0,
        *,
        are_together: bool = False,
    ) -> None:
        """Launch on torch's current stream of the device, without waiting for anything. Arguments as in `launch`.

        shared_bytes: dynamic shared memory of a block. are_together: see `launch`.
        """
        if torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                self(grid, block, args, shared_bytes, are_together=are_together)
            return
        if shared_bytes > self._free_bytes:
            self._entry.max_dynamic_shared_size_bytes = self._free_bytes = shared_bytes
        stream, more = _raw_stream(self._device), {"are_together": True} if are_together else {}
        launch(self._function, grid, block, args, shared_bytes, stream, self._capability, **more)


def copy_to_device(target: int, source: int, num_bytes: int, device: torch.device) -> None:
    """Queue a copy from pinned memory on torch's current stream of the device, at a third of `Tensor.copy_`'s time.

    target, source: addresses.
    """
    if not getattr(_thread, "has_context", False):
        torch.cuda.current_stream(device).query()  # by CUDA's runtime, which gives the driver a context on this thread
        _thread.has_context = True
    copy_pinned(target, source, num_bytes, _raw_stream(device.index))


def kernel(source: str, entry: str, operand: Tensor) -> Kernel:
    """`entry` of `source`.cu for the operand's type, on the operand's device; compiled when first asked for.

    source: the file's name without its ending. Raises UnsupportedDevice without CuPy, ValueError for a type or a device
    without kernels.
    """
    return _kernel(source, entry, operand.dtype, index_of(operand))


def index_of(operand: Tensor) -> int:
    """The CUDA device of a tensor. ValueError if it is on none."""
    if operand.device.index is None:
        raise ValueError(f"kernels take tensors on a CUDA device, not on {operand.device}")
    return operand.device.index


@cache
def multiprocessors(device: int) -> int:
    """Streaming multiprocessors of CUDA device `device`."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def block_shared_bytes(device: torch.device) -> int:
    """The most shared memory that a block on this CUDA device can have."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


class RowGeometry(NamedTuple):
    """Launch geometry of kernels that hold whole rows in registers and loop over rows."""

    entry: str  # suffix of the entry point: warps a row, and vectors of eight a thread
    grid: tuple[int, ...]
    block: tuple[int, ...]


# Blocks that a multiprocessor holds, by warps a row and vectors a thread: as ROW_GEOMETRIES in common.cuh.
_BLOCKS_PER_PROCESSOR = {(1, 1): 6, (1, 2): 4, (1, 3): 3, (1, 4): 2, (8, 1): 3, (8, 2): 2, (8, 3): 1, (8, 4): 1}


@lru_cache(maxsize=4096)
def row_geometry(rows: int, hidden: int, processors: int) -> RowGeometry:
    """A warp a row if its registers hold one, else a block of eight warps. ValueError if neither does.

    processors: multiprocessors of the device. The grid fills each once; the blocks loop over the other rows.
    """
    warps = 1 if hidden <= _WARP * _VECTORS_PER_THREAD * VECTOR else _WIDE_WARPS
    vectors = -(-hidden // (warps * _WARP * VECTOR))
    if hidden % VECTOR or not 1 <= vectors <= _VECTORS_PER_THREAD:
        raise ValueError(f"hidden size {hidden}: must be a positive multiple of {VECTOR}, at most {MAX_HIDDEN}")
    rows_per_block = 4 if warps == 1 else 1
    blocks = min(-(-rows // rows_per_block), processors * _BLOCKS_PER_PROCESSOR[warps, vectors])
    return RowGeometry(f"w{warps}_v{vectors}", (blocks,), (_WARP * warps * rows_per_block,))


def head_dim_of(hidden: int, num_heads: int, supported: tuple[int, ...]) -> int:
    """Elements of a head. ValueError unless a kernel supports it."""
    head_dim = hidden // num_heads
    if head_dim not in supported or head_dim * num_heads != hidden:
        raise ValueError(f"{num_heads} heads of {hidden / num_heads:g}: a head must have one of {supported} elements")
    return head_dim


def pointer(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """The address of a CUDA tensor. ValueError unless it is contiguous, aligned, and of that type and shape.

    Alignment is 16 bytes for floats and int8; for other integers, that of their type.
    """
    if tensor.dtype is not dtype or tensor.shape != shape:
        raise ValueError(f"{name} must be {dtype} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}")
    address = tensor.data_ptr()
    alignment = 16 if dtype.is_floating_point or dtype is torch.int8 else tensor.element_size()
    if address % alignment or not tensor.is_contiguous() or not tensor.is_cuda:
        raise ValueError(f"{name} must be contiguous, aligned to {alignment} bytes and on a CUDA device")
    return address


def pointer_or_null(name: str, tensor: Tensor | None, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """As `pointer`; 0 for None."""
    return 0 if tensor is None else pointer(name, tensor, dtype, shape)


def packed_norm(norm: Norm | None, dtype: torch.dtype, width: int) -> bytes:
    """The struct `Norm` of common.cuh, of a norm over `width` values; without weights for None. Raises as `pointer`."""
    if norm is None:
        return _NORM.pack(0, 0, 0.0, 0)
    gamma = pointer("norm.weight", norm.weight, dtype, (width,))
    beta = pointer_or_null("norm.bias", norm.bias, dtype, (width,))
    return _NORM.pack(gamma, beta, norm.eps, norm.subtracts_mean)


@cache
def _kernel(source: str, entry: str, dtype: torch.dtype, device: int) -> Kernel:
    return Kernel(_module(source, dtype).get_function(entry), device)


@cache
def _module(source: str, dtype: torch.dtype) -> Any:
    return _cupy().RawModule(code=source_text(source, dtype), options=OPTIONS)


def _raw_stream(device: int) -> int:
    """torch.cuda.current_stream(device).cuda_stream, at a fifth of the time."""
    return int(torch._C._cuda_getCurrentRawStream(device))


def _cupy() -> Any:
    try:
        return import_module("cupy")
    except ImportError as error:
        raise UnsupportedDevice(
            "The kernels need CuPy: pip install 'penstock[gpu]' (CUDA 12) or 'penstock[gpu-cuda13]' (CUDA 13)."
        ) from error


def _scalar(dtype: torch.dtype) -> str:
    if dtype not in _SCALARS:
        raise ValueError(f"no kernels for {dtype}, only for {', '.join(map(str, _SCALARS))}")
    return _SCALARS[dtype]
