"""Dense layers on any device: the activations of config.json, and a product whose rows do not depend on each other."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.errors import UnsupportedCheckpoint

HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _gelu_tanh(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.gelu_(x, approximate="tanh")
    return result


def _silu(x: Tensor) -> Tensor:
    return F.silu(x, inplace=True)


# By config.json's name. "gelu" is the exact erf form. Each may overwrite its argument.
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "gelu": torch.ops.aten.gelu_,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "relu": torch.relu_,
    "silu": _silu,
    "swish": _silu,
    "tanh": torch.tanh_,
}


def activate(x: Tensor, name: str) -> Tensor:
    """The elementwise activation of a name in config.json. May overwrite `x`. Raises UnsupportedCheckpoint."""
    require_activation(name)
    return _ACTIVATIONS[name](x)


def require_activation(name: str) -> None:
    """Raise UnsupportedCheckpoint for an activation that is not implemented."""
    if name not in _ACTIVATIONS:
        raise UnsupportedCheckpoint(
            f"activation {name!r} is not implemented. Supported: {', '.join(sorted(_ACTIVATIONS))}."
        )


def linear_by_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear of [N, in]. On a CPU with oneDNN a row's result does not depend on the other rows, bit for bit."""
    if not HAS_ONEDNN or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    if len(x) == 1:
        return linear_by_row(x.repeat(2, 1), weight, bias)[:1]
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return result
