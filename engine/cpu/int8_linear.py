"""Matrix multiplication in eight-bit integers on a CPU, of rows and weights that are rotated first.

Each row, and the weights of each output, have one scale: the largest magnitude / 127. A large value would take the
digits of all others. So rows and weights are multiplied by an orthogonal Hadamard matrix, which spreads a value over 16
to 128 places and leaves their products as they were (QuaRot, Ashkboos et al. 2024).

A product of integers is exact, and the other operations round each value by itself. So a row's result does not depend
on the other rows, bit for bit.
"""

import math

import numpy as np
import torch
from torch import Tensor

from penstock.engine.cpu.int8_kernels import load_kernels
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.model.dense import HAS_ONEDNN, activate, require_activation
from penstock.engine.model.weights import Dense

_LEAST_SPREAD, _MOST_SPREAD = 16, 128
_PIECE = 16  # values of a vector register: a row is rotated by additions of pieces that are no shorter
_ROWS = 256  # computed at a time, so that what one operation writes is in the cache for the next
_MOST_LOST = 0.02  # of the weights of an output, relative; of normally distributed ones it is 0.01


def require_int8_products() -> None:
    """Raise UnsupportedDevice where products of int8 are not known to be exact, and faster than of float32."""
    if HAS_ONEDNN and torch.cpu._is_vnni_supported():
        return
    capability = torch.backends.cpu.get_cpu_capability()
    raise UnsupportedDevice(
        f"dtype 'int8' needs oneDNN and a processor with AVX-512 VNNI; torch has {capability} here, "
        f"{'with' if HAS_ONEDNN else 'without'} oneDNN. Use auto, float32 or bfloat16."
    )


def why_not_int8(dense: Dense) -> str | None:
    """The reason why a layer's weights cannot be eight-bit integers, or None."""
    depth = dense.weight.shape[1]
    spread = _spread(depth)
    if spread < _LEAST_SPREAD:
        return f"no power of two from {_LEAST_SPREAD} divides the {depth} inputs into pieces of {_PIECE} or more"
    # Rounding to steps of a scale adds scale / sqrt(12) to each; the rotated weights are sqrt(spread) times as large.
    _, scales = _quantise(dense.weight, spread)
    size = (dense.weight.square().mean(dim=1) * spread).sqrt()
    lost = torch.where(size > 0, scales / size / math.sqrt(12), 0.0).max().item()
    return None if lost <= _MOST_LOST else f"an output would lose {lost:.3f} of its weights, more than {_MOST_LOST}"


class Int8Linear:
    """Implements `penstock.engine.cpu.linear.Linear` in float32, for a layer for which `why_not_int8` is None."""

    def __init__(self, dense: Dense) -> None:
        require_activation(dense.activation)
        width, depth = dense.weight.shape
        self._spread = _spread(depth)
        integers, scales = _quantise(dense.weight, self._spread)
        self._weight = integers.t()
        self._scales = (scales / self._spread).numpy()
        self._bias = np.zeros(width, np.float32) if dense.bias is None else dense.bias.numpy()
        self._activation = dense.activation

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_empty(len(x), len(self._scales))
        for rows, part in zip(torch.split(out, _ROWS), torch.split(x, _ROWS), strict=True):
            self._multiply(part, rows)
            rows.copy_(activate(rows, self._activation))
        return out

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        out = torch.empty_like(residual)
        for rows, part, more in zip(*(torch.split(y, _ROWS) for y in (out, x, residual)), strict=True):
            self._multiply(part, rows)
            rows.add_(more)
        return out

    def _multiply(self, x: Tensor, out: Tensor) -> None:
        integers, scales = _quantise(x, self._spread)
        sums = torch._int_mm(integers, self._weight)
        load_kernels().rescale(sums.numpy(), scales.numpy(), self._scales, self._bias, out.numpy())


def _quantise(x: Tensor, spread: int) -> tuple[Tensor, Tensor]:
    """Rotated rows in int8, and their scales [n]."""
    integers, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(len(x))
    load_kernels().rotate_and_quantise(x.contiguous().numpy(), spread, integers.numpy(), scales.numpy())
    return integers, scales


def _spread(depth: int) -> int:
    """Places over which a value is spread: the most that divide `depth`, are a power of two, and leave whole pieces."""
    spread = 1
    while 2 * spread <= _MOST_SPREAD and depth % (2 * spread) == 0 and depth // (2 * spread) >= _PIECE:
        spread *= 2
    return spread
