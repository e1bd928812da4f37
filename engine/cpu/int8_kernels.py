"""Compiled loops around a product of eight-bit integers: each reads a row once and writes it once."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from penstock.engine.compiling import Compile, load_compiled
from penstock.engine.types import Float32Array

_LANES = 16  # values of a vector register
_ROUND = np.float32(12_582_912.0)  # 1.5 * 2**23: a small number added to it is rounded to even, in the lowest byte


def _vector_of(element: ir.Type) -> ir.VectorType:
    return ir.VectorType(element, _LANES)


_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = _vector_of(_FLOAT), _vector_of(_INT)


def _rotation(block: int) -> Any:
    """rotate(x, factors, out, start): out = (x * factors) @ H for `block` values from `start` of float32 arrays.

    H is the Hadamard matrix of `block`, a multiple of 16, without its factor 1 / sqrt(block). Returns the largest
    magnitude, or NaN if there is one. It is written in LLVM's vectors, as a compiler makes no good use of registers of
    the loops: 0.28 ns a value were measured, and 0.73 of the loops for a matrix of 8.
    """

    @intrinsic
    def rotate(typing: Any, x: Any, factors: Any, out: Any, start: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            bases = [context.make_array(signature.args[i])(context, builder, args[i]).data for i in range(3)]
            places = [builder.add(args[3], args[3].type(_LANES * i)) for i in range(block // _LANES)]

            def vector_at(array: int, place: Any) -> Any:
                return builder.bitcast(builder.gep(bases[array], [place]), _FLOATS.as_pointer())

            def load(array: int, place: Any) -> Any:
                return builder.load(vector_at(array, place), align=4)

            rotated = _rotate(builder, [builder.fmul(load(0, place), load(1, place)) for place in places])
            for place, values in zip(places, rotated, strict=True):
                builder.store(values, vector_at(2, place), align=4)
            return _largest(builder, rotated)

        return types.float32(x, factors, out, start), generate

    return rotate


def _rotate(builder: ir.IRBuilder, values: list[Any]) -> list[Any]:
    """Sums and differences of vectors, then of lanes."""
    half = 1
    while half < len(values):
        for i in range(len(values)):
            if not i & half:
                one, other = values[i], values[i | half]
                values[i], values[i | half] = builder.fadd(one, other), builder.fsub(one, other)
        half *= 2
    multiply_add = _function(builder, "llvm.fma.v16f32", _FLOATS, 3)
    for half in (1, 2, 4, 8):
        swapped = _INTS([i ^ half for i in range(_LANES)])
        signs = _FLOATS([-1.0 if i & half else 1.0 for i in range(_LANES)])
        values = [
            builder.call(multiply_add, [value, signs, builder.shuffle_vector(value, value, swapped)])
            for value in values
        ]
    return values


def _largest(builder: ir.IRBuilder, values: list[Any]) -> Any:
    """The largest magnitude, by the order of their bits, where NaN is the largest."""
    magnitude = _function(builder, "llvm.fabs.v16f32", _FLOATS, 1)
    larger = _function(builder, "llvm.smax.v16i32", _INTS, 2)
    first, *others = [builder.bitcast(builder.call(magnitude, [value]), _INTS) for value in values]
    for other in others:
        first = builder.call(larger, [first, other])
    largest = _function(builder, "llvm.vector.reduce.smax.v16i32", _INTS, 1, result=_INT)
    return builder.bitcast(builder.call(largest, [first]), _FLOAT)


def _function(builder: ir.IRBuilder, name: str, vector: Any, arity: int, *, result: Any = None) -> Any:
    """LLVM's own function of that name."""
    kind = ir.FunctionType(result or vector, [vector] * arity)
    return cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]  # numba


_rotate_128, _rotate_64 = _rotation(128), _rotation(64)  # of the module, as numba keeps no closure between processes


def _rotate_and_quantise(
    x: Float32Array, factors: Float32Array, block: int, integers: Any, scales: Float32Array
) -> None:
    """x [n, depth] * factors [depth], rotated in blocks of 128 or 64, to int8 [n, depth] with a scale [n] of each row.

    The scale of a row of zeros is 1. That of a row with NaN or infinity is not finite, so its results are not.
    """
    n, depth = x.shape
    rotated = np.empty(depth, np.float32)
    bits = rotated.view(np.int32)
    for row in range(n):
        largest = np.float32(0.0)
        for start in range(0, depth, block):
            if block == 128:
                found = _rotate_128(x[row], factors, rotated, start)
            else:
                found = _rotate_64(x[row], factors, rotated, start)
            if not (found <= largest or np.isnan(largest)):
                largest = found
        scale = largest / np.float32(127.0) if largest != 0 else np.float32(1.0)
        scales[row] = scale
        factor = np.float32(1.0) / scale
        for i in range(depth):
            rotated[i] = rotated[i] * factor + _ROUND
        for i in range(depth):
            integers[row, i] = np.int8(bits[i])


def _rescale(
    sums: Any, rows: Float32Array, columns: Float32Array, bias: Float32Array, residual: Float32Array, out: Float32Array
) -> None:
    """out = sums * rows[:, None] * columns + bias + residual, of int32 sums [n, width]; no residual has no rows."""
    n, width = sums.shape
    for row in range(n):
        scale = rows[row]
        for i in range(width):
            out[row, i] = np.float32(sums[row, i]) * scale * columns[i] + bias[i]
        if len(residual):
            for i in range(width):
                out[row, i] += residual[row, i]


def load_kernels() -> Any:
    """Both by their names: see `load_compiled`."""
    return load_compiled(_make, nogil=True, error_model="numpy")


def _make(compiled: Compile) -> Any:
    kernels = SimpleNamespace(rotate_and_quantise=compiled(_rotate_and_quantise), rescale=compiled(_rescale))
    for block in (128, 64):
        x, integers = np.ones((1, block), np.float32), np.empty((1, block), np.int8)
        scales, out = np.empty(1, np.float32), np.empty((1, block), np.float32)
        kernels.rotate_and_quantise(x, x[0], block, integers, scales)
        kernels.rescale(integers.astype(np.int32), scales, x[0], x[0], x, out)
        if abs(out[0, 0] - block - 2) > 1e-3 or (out[0, 1:] != 2).any():
            raise RuntimeError(f"The compiled loops give {integers} and {out}. This is a bug.")
    return kernels
