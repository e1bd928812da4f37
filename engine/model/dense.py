"""Dense layers on any device: the activations of config.json, and a product whose rows do not depend on each other."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.errors import NotPacked
from penstock.engine.model.row_counts import product_by_row

HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _gelu_tanh(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.gelu_(x, approximate="tanh")
    return result


def _silu(x: Tensor) -> Tensor:
    return F.silu(x, inplace=True)


_VECTORS = 64  # values of two vector registers, of the smallest type
_BLOCK = 16_384  # values that torch computes on one thread
_GRAIN = 32_768  # values below which torch may use fewer threads than it has

# By the name of the function. Each overwrites its argument with the result.
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,  # by erf
    "gelu_10": lambda x: torch.ops.aten.gelu_(x).clamp_(-10.0, 10.0),
    "gelu_tanh": _gelu_tanh,
    "hardswish": lambda x: F.hardswish(x, inplace=True),
    "identity": lambda x: x,
    "leaky_relu": lambda x: F.leaky_relu(x, inplace=True),
    "mish": lambda x: F.mish(x, inplace=True),
    "quick_gelu": lambda x: x.mul_(torch.sigmoid(1.702 * x)),
    "relu": torch.relu_,
    "relu2": lambda x: torch.relu_(x).square_(),
    "relu6": lambda x: F.relu6(x, inplace=True),
    "sigmoid": torch.sigmoid_,
    "silu": _silu,
    "tanh": torch.tanh_,
}
# Further names that config.json may give a function.
_OTHER_NAMES = {
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "linear": "identity",
    "swish": "silu",
}


def function_of(name: str) -> str:
    """The function that a name in config.json means, for all names of one function. Raises NotPacked."""
    require_activation(name)
    return _OTHER_NAMES.get(name, name)


def activate(x: Tensor, name: str) -> Tensor:
    """The elementwise activation of a name in config.json. May overwrite `x`. Raises NotPacked.

    On a CPU a value's result does not depend on its place.
    """
    return by_vectors(_ACTIVATIONS[function_of(name)], x)


def by_vectors(apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise operation in place, such that a CPU computes all values in vector registers. May overwrite `x`.

    torch computes what is left at the end of an array, and of each thread's part of it, value by value, with another
    formula: of 1,000 float32 values 364 had another GELU and 30 another sigmoid there. So the parts are whole vectors.
    """
    if x.device.type != "cpu":
        return apply(x)
    x = x.contiguous()
    flat, threads = x.view(-1), torch.get_num_threads()
    num_even = len(flat) - len(flat) % (_VECTORS * threads)
    if threads > 1 and num_even < _GRAIN * threads:
        num_even = 0
    if num_even:
        apply(flat[:num_even])
    for block in torch.split(flat[num_even:], _BLOCK) if num_even < len(flat) else ():
        if len(block) % _VECTORS == 0:
            apply(block)
        else:
            block.copy_(apply(F.pad(block, (0, -len(block) % _VECTORS)))[: len(block)])
    return x


def require_activation(name: str) -> None:
    """Raise NotPacked for an activation that is not implemented."""
    if name not in _ACTIVATIONS and name not in _OTHER_NAMES:
        supported = ", ".join(sorted((_ACTIVATIONS.keys() - {"gelu_tanh"}) | _OTHER_NAMES.keys()))
        raise NotPacked(f"activation {name!r} is not implemented. Supported: {supported}.")


def linear_by_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear of [N, in]. On a CPU with oneDNN a row's result does not depend on the other rows, bit for bit."""
    if not HAS_ONEDNN or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    return product_by_row(x, weight, bias, len(weight), is_reordered=False)
