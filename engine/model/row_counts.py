"""oneDNN's product on a CPU, such that the result of a row has the same bits whatever the other rows are.

oneDNN chooses its way through a product by the number of rows, and some ways round differently. Found on a Xeon with
AMX, with one thread and with two: a bfloat16 product of 768 by 3,072 has other results for 7 to 17 rows than for 18,
one of 1,024 by 4,096 has three results, and a float32 product with a plain weight changes at 16, 49 and 65 rows. On an
EPYC without AMX only a single row differed. The limits are oneDNN's own and move with its versions. So each kind of
product is tried once in a process, and rows are computed in numbers that agree: cut, and padded to the next. Where all
that are tried agree, any number will do, but not for bfloat16 with AMX: there one between two that agree may differ.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Numbers of rows that a product may be cut into, and others: if they agree too, no product is padded.
_COUNTS = (16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 384, 512, 1024)
_OTHERS = (2, 3, 5, 8, 11, 17, 21, 26, 33, 40, 65, 100, 161, 300, 777)
_ROWS = 11  # different ones that are tried, again and again: no divisor of a block, so each comes to other places


class ProductKind(NamedTuple):
    """The facts by which oneDNN chooses its way, beside the number of rows."""

    width: int
    depth: int
    dtype: torch.dtype
    has_bias: bool
    is_reordered: bool
    attribute: str  # the activation that oneDNN fuses
    algorithm: str  # of the activation
    num_threads: int


def product_by_row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    width: int,
    *,
    is_reordered: bool,
    attribute: str = "none",
    algorithm: str = "",
) -> Tensor:
    """x [n, depth] @ weight.T + bias, with a fused activation, to [n, width]; each row as if it were alone.

    `is_reordered`: the weight [width, depth] has been through `reordered`.
    """
    kind = ProductKind(
        width, x.shape[1], x.dtype, bias is not None, is_reordered, attribute, algorithm, torch.get_num_threads()
    )
    counts = _agreeing_counts(kind)
    if len(x) in counts:
        return _run(kind, x, weight, bias)
    parts = []
    for part in torch.split(x, counts[-1]):
        count = next(count for count in counts if count >= len(part))
        parts.append(_run(kind, F.pad(part, (0, 0, 0, count - len(part))), weight, bias)[: len(part)])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def reordered(weight: Tensor) -> Tensor:
    """A weight [width, depth] laid out for the processor."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return result


def _run(kind: ProductKind, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # The operator that torch's compiler emits for frozen weights; it has no public name.
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, kind.attribute, [], kind.algorithm)
    return result


@lru_cache(maxsize=1024)
def _agreeing_counts(kind: ProductKind) -> Sequence[int]:
    """Numbers of rows for which a row has one result, ascending."""
    weight, rows = _cancelling(kind)
    weight = reordered(weight) if kind.is_reordered else weight
    bias = torch.zeros(kind.width, dtype=kind.dtype) if kind.has_bias else None
    groups: list[tuple[Tensor, list[int]]] = []  # a result of the rows, and the numbers of rows that have it
    for count in (*_COUNTS, *_OTHERS):
        product = _run(kind, rows.repeat(-(-count // _ROWS), 1)[:count], weight, bias)
        group = next((counts for result, counts in groups if _is_repeated(product, result)), None)
        if group is not None:
            group.append(count)
        elif count in _COUNTS and _is_repeated(product, product[:_ROWS]):
            groups.append((product[:_ROWS].clone(), [count]))
    may_hide = kind.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    if not may_hide and len(groups) == 1 and len(groups[0][1]) == len(_COUNTS) + len(_OTHERS):
        return range(2, sys.maxsize)
    # Without two that agree, one row at a time.
    agreeing = [sorted(set(counts) & set(_COUNTS)) for _, counts in groups]
    return max(agreeing, key=lambda counts: len(counts), default=[1])


def _cancelling(kind: ProductKind) -> tuple[Tensor, Tensor]:
    """A weight [width, depth] and rows, whose sums are 0 but for rounding: nothing hides the way that it went."""
    chance = torch.Generator().manual_seed(0)
    half, order = kind.depth // 2, torch.randperm(kind.depth // 2, generator=chance)
    rest = torch.zeros(1, kind.depth - 2 * half)
    weight = torch.randn(kind.width, half, generator=chance)
    rows = torch.randn(_ROWS, half, generator=chance)
    weight = torch.cat([weight, -weight[:, order], rest.expand(kind.width, -1)], dim=1)
    rows = torch.cat([rows, rows[:, order], rest.expand(_ROWS, -1)], dim=1)
    return weight.to(kind.dtype), rows.to(kind.dtype)


def _is_repeated(product: Tensor, rows: Tensor) -> bool:
    repeated = rows.repeat(-(-len(product) // len(rows)), 1)
    return torch.equal(product, repeated[: len(product)])
