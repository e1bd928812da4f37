"""Matrix multiplication with a weight that is laid out for the processor at load.

oneDNN's fused linear with a reordered weight was measured at 1.05 (1,024 tokens) to 1.3 (16 tokens) times the speed of
F.linear on AVX-512, with the activation fused. Builds of torch without oneDNN use plain operators.

A row's result does not depend on the other rows, bit for bit: `engine.model.row_counts` sees to that for products, and
`activate` for activations. The residual is added to the product: a fused addition has, in bfloat16 with AMX, other
results for 7 rows than for 300. `tests/engine/test_batch_independence.py` looks at all of it.
"""

from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.dense import HAS_ONEDNN, activate, function_of, require_activation
from penstock.engine.model.row_counts import product_by_row, reordered
from penstock.engine.model.weights import Dense

# Function -> oneDNN's attribute and algorithm. The others are a separate pass.
_FUSED: dict[str, tuple[str, str]] = {
    "identity": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}


class Linear(Protocol):
    """A dense layer of the encoder."""

    def __call__(self, x: Tensor) -> Tensor:
        """activation(x @ weight.T + bias): [T, in] to [T, out]."""
        ...

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """x @ weight.T + bias + residual, without the activation: [T, in], [T, out] to [T, out]."""
        ...


def make_linear(dense: Dense, dtype: torch.dtype) -> Linear:
    """The fastest `Linear` of this build of torch."""
    require_activation(dense.activation)
    return OneDnnLinear(dense, dtype) if HAS_ONEDNN else PlainLinear(dense, dtype)


class OneDnnLinear:
    """oneDNN with a reordered weight."""

    def __init__(self, dense: Dense, dtype: torch.dtype) -> None:
        self._width = len(dense.weight)
        self._weight = reordered(dense.weight.to(dtype))
        self._bias = None if dense.bias is None else dense.bias.to(dtype)
        # In bfloat16 a fused GELU took 8.8 ms against 6.9 as a separate pass (1,024 tokens, 384 to 1,536).
        function = function_of(dense.activation)
        fused = dtype != torch.bfloat16 and function in _FUSED
        self._after = "identity" if fused else function
        self._attribute, self._algorithm = _FUSED[function if fused else "identity"]

    def __call__(self, x: Tensor) -> Tensor:
        return activate(self._product(x, self._attribute, self._algorithm), self._after)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._product(x, "none", "").add_(residual)

    def _product(self, x: Tensor, attribute: str, algorithm: str) -> Tensor:
        return product_by_row(
            x, self._weight, self._bias, self._width, is_reordered=True, attribute=attribute, algorithm=algorithm
        )


class PlainLinear:
    """torch's public operators."""

    def __init__(self, dense: Dense, dtype: torch.dtype) -> None:
        self._weight = dense.weight.to(dtype)
        self._bias = None if dense.bias is None else dense.bias.to(dtype)
        self._activation = dense.activation

    def __call__(self, x: Tensor) -> Tensor:
        product = F.linear(x, self._weight, self._bias)
        return activate(product, self._activation)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias).add_(residual)


class RoundedLinear:
    """A product in bfloat16 of rows in float32, to float32. Bias, residual and activation are in float32."""

    def __init__(self, dense: Dense) -> None:
        self._product = make_linear(replace(dense, bias=None, activation="identity"), torch.bfloat16)
        self._bias = dense.bias
        self._activation = dense.activation

    def __call__(self, x: Tensor) -> Tensor:
        return activate(self._multiply(x), self._activation)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._multiply(x).add_(residual)

    def _multiply(self, x: Tensor) -> Tensor:
        out = self._product(x.bfloat16()).float()
        return out if self._bias is None else out.add_(self._bias)
