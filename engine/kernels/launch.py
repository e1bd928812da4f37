"""Kernel launch by the CUDA driver with programmatic dependent launch, which neither torch nor CuPy offers.

From compute capability 9.0 on (CUDA programming guide), a kernel's blocks may start while the kernel before it is
ending, and wait inside, in `wait_for_previous`. That hides the gap between two kernels and the loads before the wait.
Kernels captured in a CUDA graph keep the attribute.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np

_COOPERATIVE, _PROGRAMMATIC_STREAM_SERIALIZATION = 2, 6  # CUlaunchAttributeID
_FIRST_CAPABILITY = (9, 0)


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


_EARLY = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))
_TOGETHER = _Attribute(_COOPERATIVE, 0, (1,))


def launch(
    function: int,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: tuple[Any, ...],
    shared_bytes: int,
    stream: int,
    capability: tuple[int, int],
    *,
    are_together: bool = False,
) -> None:
    """Queue a kernel on a stream. `function` is a CUfunction whose kernel begins with `wait_for_previous`.

    args: pointers and long long as int, 0 for null; int as numpy.int32, float as numpy.float32, a struct as bytes.
    capability: the device's. are_together: the device runs all blocks at the same time, so that they may wait for one
    another; such a kernel starts after the one before it has ended. Raises RuntimeError with the driver's name for the
    error.
    """
    values = [_as_c(argument) for argument in args]
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    config = _Config(
        grid=(*grid, *(1,) * (3 - len(grid))),
        block=(*block, *(1,) * (3 - len(block))),
        shared_bytes=shared_bytes,
        stream=stream,
        attributes=ctypes.pointer(_TOGETHER if are_together else _EARLY),
        num_attributes=int(are_together or capability >= _FIRST_CAPABILITY),
    )
    code = driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), pointers, None)
    check(code, f"a launch of {grid} blocks of {block} threads")


def copy_pinned(target: int, source: int, num_bytes: int, stream: int) -> None:
    """Queue a copy from pinned memory to the device. target, source: addresses. Raises as `launch` does."""
    code = _copy_function()(target, source, num_bytes, stream)
    if code:
        check(code, f"a copy of {num_bytes} bytes to the device")


def check(code: int, what: str) -> None:
    """Raise RuntimeError with the driver's name for the error, unless the code is success. `what` was attempted."""
    if code:
        raise RuntimeError(f"{_error_name(code)} at {what}.")


@cache
def driver() -> ctypes.CDLL:
    """The CUDA driver's functions, called with the GIL held.

    Each takes microseconds. A call that released the GIL might wait for a busy event loop to give it back.
    """
    return ctypes.PyDLL("libcuda.so.1")


@cache
def _copy_function() -> Any:
    function = driver().cuMemcpyHtoDAsync_v2
    function.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return function


def _as_c(argument: Any) -> Any:
    if isinstance(argument, np.int32):
        return ctypes.c_int(int(argument))
    if isinstance(argument, np.float32):
        return ctypes.c_float(float(argument))
    if isinstance(argument, int):
        return ctypes.c_uint64(argument)
    if isinstance(argument, bytes):
        return (ctypes.c_char * len(argument)).from_buffer_copy(argument)
    raise TypeError(f"a kernel's argument is an int, numpy.int32, numpy.float32 or bytes, not {type(argument)}.")


def _error_name(code: int) -> str:
    """CUDA_ERROR_INVALID_VALUE and the like."""
    name = ctypes.c_char_p()
    driver().cuGetErrorName(code, ctypes.byref(name))
    return f"CUDA error {code}" if name.value is None else name.value.decode()
