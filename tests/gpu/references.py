"""Shared by the kernels' tests: data, exact results in float64, and the rule that compares them."""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
HIDDEN_SIZES = (8, 72, 384, 768, 1000, 1024, 1032, 4096)
ROWS = (1, 7, 129, 4097)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_10": lambda x: F.gelu(x).clamp(-10, 10),
    "identity": lambda x: x,
}


def randn(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, device="cuda")).to(dtype)


def exact_sum(*terms: Tensor | None) -> Tensor:
    """In float64, without those that are None."""
    return reduce(torch.add, (term.double() for term in terms if term is not None))


def norm_parameters(hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """bias, gamma, beta."""
    bias = randn(hidden, dtype=dtype, seed=101)
    return bias, 1 + randn(hidden, dtype=dtype, seed=102, scale=0.1), randn(hidden, dtype=dtype, seed=103)


def exact_norm(x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float) -> Tensor:
    """LayerNorm in float64."""
    return F.layer_norm(x.double(), x.shape[1:], gamma.double(), None if beta is None else beta.double(), eps)


def assert_as_exact_as_torch(ours: Tensor, plain: Tensor, exact: Tensor) -> None:
    """The largest error is at most twice that of plain torch in the same precision; where torch happens to be all but
    exact, twice what rounding the largest result may cost."""
    error, plain_error = ((result.double() - exact).abs().max().item() for result in (ours, plain))
    rounding = torch.finfo(plain.dtype).eps / 2 * exact.abs().max().item()
    assert error <= 2 * max(plain_error, rounding), (error, plain_error, rounding)  # a NaN fails too


def cu_seqlens_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


def replayed(launch: Callable[[], None], restore: Callable[[], object]) -> None:
    """Capture `launch` in a CUDA graph, `restore` the data that it ran on before, and replay."""
    launch()  # compiles, which a capture does not allow
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    restore()
    graph.replay()
    torch.cuda.synchronize()
