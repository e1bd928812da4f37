"""Shared by the kernels' tests: data, exact results in float64, and the rule that compares them."""

import math
import os
import subprocess
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.weights import Heads, Norm, RotaryAttention

HALVES = (torch.float16, torch.bfloat16)
HIDDEN_SIZES = (8, 72, 384, 768, 1000, 1024, 1032, 4096)
ROWS = (1, 7, 129, 4097)
# Heads, depth of products that turn them: tiles of keys and values together, and that end in the middle of a tile
TURNED = ((Heads(12, 12, 64), 768), (Heads(3, 3, 64), 136), (Heads(5, 1, 32), 40), (Heads(4, 2, 128), 1024))
UNTOUCHED = -7.0  # where attention writes nothing
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_10": lambda x: activate(x, "gelu").clamp(-10, 10),
    "identity": lambda x: x,
}


def activate(x: Tensor, kind: str) -> Tensor:
    """In x's own precision; the exact GELU's tail without cancellation, which torch's has in float64 too."""
    if kind == "gelu":
        return 0.5 * x * torch.erfc(-x / math.sqrt(2)) if x.dtype == torch.float64 else F.gelu(x)
    return _ACTIVATIONS[kind](x)


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


def make_qkv(
    lengths: Sequence[int] | np.ndarray, hidden: int, dtype: torch.dtype, seed: int
) -> tuple[Tensor, np.ndarray]:
    """qkv [T + 3, 3 * hidden] with three rows of NaN after the last sequence, and cu_seqlens."""
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    qkv = randn(int(cu_seqlens[-1]) + 3, 3 * hidden, dtype=dtype, seed=seed)
    qkv[-3:] = math.nan
    return qkv, cu_seqlens


def untouched(qkv: Tensor, width: int | None = None) -> Tensor:
    """The output [T + 3, width] of attention, which no launch has written. width: a third of qkv's, if None."""
    return torch.full((len(qkv), width or qkv.shape[1] // 3), UNTOUCHED, dtype=qkv.dtype, device="cuda")


def errors(attend: Callable[[Tensor], Tensor], out: Tensor, qkv: Tensor, cu_seqlens: np.ndarray) -> np.ndarray:
    """[N, 2]: for each sequence the largest error of `out` and of torch in the same precision, against float64.

    attend: torch's attention of one sequence [L, 3 * hidden] to [L, hidden], in its precision.
    """
    pairs = []
    for start, end in pairwise(cu_seqlens):
        if start < end:
            rows = qkv[start:end]
            exact = attend(rows.double())
            pairs.append([(result.double() - exact).abs().max().item() for result in (out[start:end], attend(rows))])
    return np.array(pairs)


def assert_nan_stays_in_its_sequence(run: Callable[[], Tensor], qkv: Tensor, cu_seqlens: np.ndarray) -> None:
    """run: attention of qkv, of which every second sequence becomes NaN."""
    clean, bounds = run(), list(pairwise(cu_seqlens))
    for start, end in bounds[::2]:
        qkv[start:end] = math.nan
    poisoned = run()
    assert all(poisoned[start:end].isnan().all() for start, end in bounds[::2])
    assert all(torch.equal(poisoned[start:end], clean[start:end]) for start, end in bounds[1::2])


def assert_bits_do_not_depend_on_batch_mates(
    run: Callable[[Tensor, np.ndarray], Tensor], qkv: Tensor, cu_seqlens: np.ndarray
) -> None:
    """run: attention of qkv with its bounds. The second and the sixth sequence are also run alone."""
    together = run(qkv, cu_seqlens)
    for start, end in (cu_seqlens[i : i + 2] for i in (1, 5)):
        alone = run(qkv[start:end].clone(), np.array([0, end - start], np.int32))
        assert torch.equal(alone, together[start:end])


def is_shared() -> bool:
    """Whether other processes use a GPU of this machine: what they take is not free either. False: it is not known.

    A container may not see them. Those of pytest-xdist are known to be there.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return True
    query = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    try:
        found = subprocess.run(query, capture_output=True, text=True)
    except FileNotFoundError:
        return False
    return found.returncode == 0 and len(set(found.stdout.split())) > 1


def captured(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of `launch`, which runs once before: it compiles then, which a capture does not allow."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph


def cu_seqlens_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


def replayed(launch: Callable[[], None], restore: Callable[[], object]) -> None:
    """Capture `launch` in a CUDA graph, `restore` the data that it ran on before, and replay."""
    graph = captured(launch)
    restore()
    graph.replay()
    torch.cuda.synchronize()


def positions_of(rows: int) -> Tensor:
    """int32 [rows], within the angles of `rotary_of`."""
    return (torch.arange(rows, device="cuda", dtype=torch.int32) * 7) % 600


def rotary_of(heads: Heads, dtype: torch.dtype, *, has_norms: bool) -> RotaryAttention:
    """For 600 positions."""
    steps = 1e4 ** (-torch.arange(0, heads.dim, 2, device="cuda") / heads.dim)
    angles = torch.arange(600, device="cuda")[:, None] * steps
    weights = [1 + randn(heads.dim, dtype=dtype, seed=seed, scale=0.3) for seed in (1, 2)]
    norms = [Norm(weight, None, 1e-6, subtracts_mean=False) if has_norms else None for weight in weights]
    return RotaryAttention(angles.cos(), angles.sin(), None, False, *norms)


def turned_by_torch(qkv: Tensor, positions: Tensor, heads: Heads, kind: RotaryAttention) -> Tensor:
    """As `rotate`, in qkv's type, with each step rounded to it."""
    cosines, sines = (table[positions.long()][:, None].to(qkv.dtype) for table in (kind.cosines, kind.sines))
    parts = torch.split(qkv.view(len(qkv), -1, heads.dim), [heads.queries, heads.keys, heads.keys], dim=1)
    turned = []
    for part, norm in zip(parts, (kind.query_norm, kind.key_norm), strict=False):
        x = part if norm is None else F.rms_norm(part, (heads.dim,), norm.weight.to(qkv.dtype), norm.eps)
        first, second = x.chunk(2, dim=-1)
        turned.append(torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1))
    return torch.cat((*turned, parts[2]), dim=1).view_as(qkv)
