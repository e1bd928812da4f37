"""Matrix multiplication with a weight that is laid out for the processor at load.

oneDNN's fused linear with a reordered weight was measured at 1.05 (1,024 tokens) to 1.3 (16 tokens) times the speed of
F.linear on AVX-512, with activation or residual addition fused. Builds of torch without oneDNN use plain operators.

oneDNN's result for a row does not depend on the other rows, bit for bit, if there are at least two: a single row takes
another way through long sums. So a sequence's result on a CPU does not depend on its batch.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.dense import HAS_ONEDNN, activate, require_activation
from penstock.engine.model.weights import Dense

# config.json's name -> oneDNN's attribute and algorithm. "gelu" is the exact erf form.
_FUSED: dict[str, tuple[str, str]] = {
    "identity": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "gelu_fast": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "swish": ("swish", ""),
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
        # The operator that torch's compiler emits for frozen weights; it has no public name.
        self._run = torch.ops.mkldnn._linear_pointwise.default
        self._run_plus = torch.ops.mkldnn._linear_pointwise.binary
        self._weight = torch.ops.mkldnn._reorder_linear_weight(dense.weight.to(dtype).contiguous(), None)
        self._bias = None if dense.bias is None else dense.bias.to(dtype)
        # In bfloat16 a fused GELU took 8.8 ms against 6.9 as a separate pass (1,024 tokens, 384 to 1,536).
        fused = dtype != torch.bfloat16
        self._after = "identity" if fused else dense.activation
        self._attribute, self._algorithm = _FUSED[dense.activation if fused else "identity"]

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            return self(x.repeat(2, 1))[:1]
        product = self._run(x, self._weight, self._bias, self._attribute, [], self._algorithm)
        return activate(product, self._after)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        if len(x) == 1:
            return self.plus(x.repeat(2, 1), residual.repeat(2, 1))[:1]
        result: Tensor = self._run_plus(x, residual, self._weight, self._bias, "add")
        return result


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
