"""Pooling on a GPU."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.kernels.pool import KINDS, pool
from tests.gpu.references import HALVES, HIDDEN_SIZES, assert_as_exact_as_torch, cu_seqlens_of, randn, replayed

pytestmark = pytest.mark.gpu
LENGTHS = (1, 2, 3, 0, 17, 127, 128, 129, 512, 5, 2049)


def reduce_rows(rows: Tensor, kind: str) -> Tensor:
    """One sequence [L, H] to [H], in its own precision."""
    match kind:
        case "cls":
            return rows[0]
        case "last":
            return rows[-1]
        case "mean":
            return rows.mean(0)
        case "max":
            return rows.amax(0)
        case _:
            raise ValueError(kind)


def reference(hidden: Tensor, lengths: Sequence[int], kind: str, normalize: bool) -> Tensor:
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    rows = torch.stack(
        [
            reduce_rows(hidden[start:end], kind) if start < end else torch.zeros_like(hidden[0])
            for start, end in pairwise(starts)
        ]
    )
    # torch's own eps is zero in half precision, and empty sequences NaN.
    return F.normalize(rows, dim=1, eps=torch.finfo(rows.dtype).tiny) if normalize else rows


def pooled(hidden: Tensor, lengths: Sequence[int], kind: str, normalize: bool, left_out: int = 0) -> Tensor:
    out = torch.full((len(lengths), hidden.shape[1]), math.nan, device="cuda")
    pool(out, hidden, cu_seqlens_of(lengths), kind, normalize, left_out=left_out)
    return out


@pytest.mark.parametrize("left_out", [1, 16, 128, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_tokens_of_each_sequence_are_left_out_and_its_last_one_stays(kind: str, left_out: int) -> None:
    hidden = randn(sum(LENGTHS), 768, dtype=torch.float16, seed=4)
    bounds = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    rests = [hidden[min(start + left_out, max(start, end - 1)) : end] for start, end in pairwise(bounds)]
    expected = pooled(torch.cat(rests), [len(rest) for rest in rests], kind, True)
    assert torch.equal(pooled(hidden, LENGTHS, kind, True, left_out), expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [*HIDDEN_SIZES, 8160, 8192])
def test_against_float64(width: int, kind: str, normalize: bool, dtype: torch.dtype) -> None:
    hidden = randn(sum(LENGTHS) + 2, width, dtype=dtype, seed=1)
    hidden[-2:] = math.nan  # in no sequence
    out = pooled(hidden, LENGTHS, kind, normalize)
    exact = reference(hidden.double(), LENGTHS, kind, normalize)
    assert_as_exact_as_torch(out, reference(hidden, LENGTHS, kind, normalize), exact)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-6)  # float32 arithmetic, at that


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [72, 768, 4096])
def test_bits_do_not_depend_on_batch_mates(width: int, kind: str) -> None:
    hidden = randn(sum(LENGTHS), width, dtype=torch.float16, seed=2)
    together = pooled(hidden, LENGTHS, kind, True)
    start = 0
    for i, length in enumerate(LENGTHS):
        alone = pooled(hidden[start : start + length].clone(), [length], kind, True) if length else together[i : i + 1]
        assert torch.equal(alone[0], together[i])
        start += length


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_sequence_and_is_not_lost(kind: str) -> None:
    lengths = (4, 9, 33, 2)
    hidden = randn(sum(lengths), 768, dtype=torch.bfloat16, seed=3)
    clean = pooled(hidden, lengths, kind, False)
    hidden[4:13, 7] = math.nan
    poisoned = pooled(hidden, lengths, kind, False)
    assert poisoned[1, 7].isnan()
    poisoned[1, 7] = clean[1, 7]
    assert torch.equal(poisoned, clean)


def test_large_values_do_not_overflow_half_precision() -> None:
    hidden = torch.full((600, 768), 6e4, dtype=torch.float16, device="cuda")
    assert (pooled(hidden, [600], "mean", False) == hidden[0].float()).all()
    torch.testing.assert_close(pooled(hidden, [600], "mean", True), torch.full((1, 768), 768**-0.5, device="cuda"))


def test_a_zero_vector_normalises_to_zero() -> None:
    hidden = torch.zeros(5, 384, dtype=torch.float16, device="cuda")
    assert (pooled(hidden, [5, 0], "mean", True) == 0).all()


def test_many_sequences() -> None:
    lengths = [1 + i % 7 for i in range(4097)]
    hidden = randn(sum(lengths), 384, dtype=torch.float16, seed=4)
    out = pooled(hidden, lengths, "mean", True)
    exact = reference(hidden.double(), lengths, "mean", True)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-6)


def test_in_a_graph_with_other_lengths() -> None:
    hidden = randn(64, 768, dtype=torch.float16, seed=5)
    cu_seqlens = cu_seqlens_of([10, 20, 34])
    out = torch.empty(3, 768, device="cuda")
    replayed(lambda: pool(out, hidden, cu_seqlens, "mean", True), lambda: cu_seqlens.copy_(cu_seqlens_of([60, 4, 0])))
    assert torch.equal(out, pooled(hidden, [60, 4, 0], "mean", True))


def test_unknown_kinds_are_refused() -> None:
    hidden = randn(4, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="'median' is not one of cls"):
        pooled(hidden, [4], "median", False)
