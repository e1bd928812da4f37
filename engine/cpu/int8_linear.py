"""Matrix multiplication in eight-bit integers on a CPU, of rows and weights that are rotated first.

Each row, and the weights of each output, have one scale: the largest magnitude / 127. A large value would take the
digits of all others. So rows and weights are multiplied by an orthogonal Hadamard matrix, which spreads a value over
128 places or 64 and leaves their products as they were (QuaRot, Ashkboos et al. 2024). Before that, inputs and their
weights are made of similar size (int8_balance.py).

A product of integers is exact, and the other operations round each value by itself. So a row's result does not depend
on the other rows, bit for bit.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.model.dense import HAS_ONEDNN, activate, require_activation
from penstock.engine.model.int8_balance import balance, block_of, require_digits
from penstock.engine.model.weights import Dense
from penstock.engine.types import Float32Array

_BLOCKS = (128, 64)  # values that are rotated together: the first that divides the inputs
_ROWS = 256  # computed at a time, so that what one operation writes is in the cache for the next
_NONE = torch.empty(0, 0)  # of a residual


def require_int8_products() -> None:
    """Raise UnsupportedDevice where products of int8 are not known to be exact, and faster than of float32."""
    if not HAS_ONEDNN or not torch.cpu._is_vnni_supported():
        capability = torch.backends.cpu.get_cpu_capability()
        raise UnsupportedDevice(
            f"dtype 'int8' needs oneDNN and a processor with AVX-512 VNNI; torch has {capability} here, "
            f"{'with' if HAS_ONEDNN else 'without'} oneDNN. Use auto, float32 or bfloat16."
        )
    from numba import config  # numba takes half a second to load

    if config.DISABLE_JIT:  # type: ignore[attr-defined]  # numba sets its attributes by name
        raise UnsupportedDevice(
            "dtype 'int8' needs loops that numba compiles, which NUMBA_DISABLE_JIT turns off. Unset it, or use auto, "
            "float32 or bfloat16."
        )
    largest = torch.full((16, 256), 127, dtype=torch.int8)
    if (torch._int_mm(largest, -largest.t()) != -127 * 127 * 256).any():
        raise UnsupportedDevice(
            "dtype 'int8' needs exact sums of products, which oneDNN does not give here (ONEDNN_MAX_CPU_ISA keeps it "
            "from AVX-512 VNNI?). Use auto, float32 or bfloat16."
        )


class Int8Linear:
    """Implements `penstock.engine.cpu.linear.Linear` in float32."""

    def __init__(self, dense: Dense, sizes: Tensor, product: Callable[[Tensor, Tensor], Tensor] = torch._int_mm):
        """sizes: [in], of the inputs, such as the root of their mean squares. Raises NoInt8.

        product: of int8 matrices to int32, exact.
        """
        require_activation(dense.activation)
        width, depth = dense.weight.shape
        self._block = block_of(depth, _BLOCKS)
        factors = balance(dense.weight, sizes)
        self._factors = (1.0 / factors).numpy()
        smooth = dense.weight * factors
        integers, scales = _quantise(smooth, np.ones(depth, np.float32), self._block)
        require_digits(smooth, torch.from_numpy(scales), self._block)
        self._weight = integers.t()
        self._scales = scales / np.float32(self._block)
        self._bias = np.zeros(width, np.float32) if dense.bias is None else dense.bias.numpy()
        self._activation = dense.activation
        self._product = product

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_empty(len(x), len(self._scales))
        for start in range(0, len(x), _ROWS):
            rows = out[start : start + _ROWS]
            self._multiply(x[start : start + _ROWS], _NONE, rows)
            if self._activation != "identity":
                rows.copy_(activate(rows, self._activation))
        return out

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        out = residual.new_empty(residual.shape)
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            self._multiply(x[rows], residual[rows].contiguous(), out[rows])
        return out

    def _multiply(self, x: Tensor, residual: Tensor, out: Tensor) -> None:
        integers, scales = _quantise(x, self._factors, self._block)
        sums = self._product(integers, self._weight)
        _kernels().rescale(sums.numpy(), scales, self._scales, self._bias, residual.numpy(), out.numpy())


@cache
def _kernels() -> Any:
    from penstock.engine.cpu.int8_kernels import load_kernels  # numba, which takes half a second to load

    return load_kernels()


def _quantise(x: Tensor, factors: Float32Array, block: int) -> tuple[Tensor, Float32Array]:
    """Rows times factors, rotated, in int8, and their scales [n]."""
    integers, scales = np.empty(x.shape, np.int8), np.empty(len(x), np.float32)
    _kernels().rotate_and_quantise(x.contiguous().numpy(), factors, block, integers, scales)
    return torch.from_numpy(integers), scales
