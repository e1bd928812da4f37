"""Compiled loops around a product of eight-bit integers: each reads a row once and writes it once."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from penstock.engine.types import Float32Array

_ROUND = np.float32(12_582_912.0)  # 1.5 * 2**23: a small number added to it is rounded to even, in the lowest byte
_NOT_SIGN = np.int32(0x7FFFFFFF)


@register_jitable
def _add_and_subtract(x: Float32Array, out: Float32Array, half: int) -> None:
    """Of each two neighbouring pieces of so many values, the sum and the difference."""
    for start in range(0, len(x), 2 * half):
        first, second = x[start : start + half], x[start + half : start + 2 * half]
        total, rest = out[start : start + half], out[start + half : start + 2 * half]
        for i in range(half):
            total[i] = first[i] + second[i]
            rest[i] = first[i] - second[i]


def rotate_and_quantise(x: Float32Array, spread: int, integers: Any, scales: Float32Array) -> None:
    """x [n, depth] @ H to int8 [n, depth], and the scale [n] of each row.

    H is the Hadamard matrix of `spread`, a power of two that divides depth, over equal pieces of a row. The scale of a
    row of zeros is 1. That of a row with NaN or infinity is not finite, so the row's results are not, either.
    """
    n, depth = x.shape
    one, other = np.empty(depth, np.float32), np.empty(depth, np.float32)
    for row in range(n):
        one[:] = x[row]
        parts = 1
        while parts < spread:
            _add_and_subtract(one, other, depth // parts // 2)
            one, other = other, one
            parts *= 2
        bits, largest = one.view(np.int32), np.int32(0)
        for i in range(depth):  # magnitudes in the order of their bits, where NaN is the largest
            largest = max(largest, bits[i] & _NOT_SIGN)
        bits_of_scale = other.view(np.int32)
        bits_of_scale[0] = largest
        scale = other[0] / np.float32(127.0) if largest else np.float32(1.0)
        scales[row] = scale
        factor, rounded = np.float32(1.0) / scale, other.view(np.int32)
        for i in range(depth):
            other[i] = one[i] * factor + _ROUND
        for i in range(depth):
            integers[row, i] = np.int8(rounded[i])


def rescale(sums: Any, rows: Float32Array, columns: Float32Array, bias: Float32Array, out: Float32Array) -> None:
    """out = sums * rows[:, None] * columns + bias, of int32 sums [n, width]."""
    n, width = sums.shape
    for row in range(n):
        scale = rows[row]
        for i in range(width):
            out[row, i] = np.float32(sums[row, i]) * scale * columns[i] + bias[i]


@cache
def load_kernels() -> Any:
    """Both by their names: at once where an earlier process kept them, else within seconds."""
    try:
        return _compiled(cache=True)
    except Exception:  # of numba's cache: no folder, one that is full or read-only, or files that are damaged or old
        return _compiled(cache=False)


def _compiled(*, cache: bool) -> Any:
    functions = (rotate_and_quantise, rescale)
    kernels = SimpleNamespace(
        **{function.__name__: njit(function, cache=cache, nogil=True, error_model="numpy") for function in functions}
    )
    x, integers, scales, out = (
        np.ones((1, 2), np.float32),
        np.empty((1, 2), np.int8),
        np.empty(1, np.float32),
        np.empty((1, 2), np.float32),
    )
    kernels.rotate_and_quantise(x, 2, integers, scales)
    kernels.rescale(np.ones((1, 2), np.int32), scales, x[0], x[0], out)
    if integers.tolist() != [[127, 0]] or abs(out[0, 0] - 1 - 2 / 127) > 1e-6:
        raise RuntimeError(f"The compiled loops give {integers} and {out}. This is a bug.")
    return kernels
