"""The ends of classifier heads on a GPU."""

import math

import pytest
import torch
from torch import Tensor

from penstock.engine.kernels.heads import SCORES, gather_rows, softmax_rows
from tests.gpu.references import HALVES, HIDDEN_SIZES, ROWS, assert_as_exact_as_torch, cu_seqlens_of, randn, replayed

pytestmark = pytest.mark.gpu


def scores(logits: Tensor, kind: str) -> Tensor:
    match kind:
        case "softmax":
            return logits.softmax(1)
        case "sigmoid":
            return logits.sigmoid()
        case "raw":
            return logits
        case _:
            raise ValueError(kind)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", HIDDEN_SIZES)
def test_first_and_last_rows(width: int, dtype: torch.dtype) -> None:
    lengths = [3, 1, 0, 20, 7]
    hidden = randn(sum(lengths), width, dtype=dtype)
    for which, rows in (("cls", [0, 3, None, 4, 24]), ("last", [2, 3, None, 23, 30])):
        out = torch.full((5, width), math.nan, dtype=dtype, device="cuda")
        gather_rows(out, hidden, cu_seqlens_of(lengths), which)
        for i, row in enumerate(rows):
            assert torch.equal(out[i], torch.zeros_like(out[i]) if row is None else hidden[row])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("classes", [1, 2, 3, 28, 33, 1000])
@pytest.mark.parametrize("rows", ROWS)
def test_scores(rows: int, classes: int, kind: str, dtype: torch.dtype) -> None:
    logits = randn(rows, classes, dtype=dtype, seed=1, scale=4)
    out = torch.empty(rows, classes, device="cuda")
    softmax_rows(out, logits, kind)
    exact = scores(logits.double(), kind)
    assert_as_exact_as_torch(out, scores(logits, kind), exact)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", SCORES)
def test_large_logits_and_nan_in_other_rows(kind: str) -> None:
    logits = torch.tensor([[6e4, -6e4, 5e4], [math.nan, 1, 2], [1e4, 1e4, 1e4]], dtype=torch.float16, device="cuda")
    out = torch.empty(3, 3, device="cuda")
    softmax_rows(out, logits, kind)
    torch.testing.assert_close(out[::2], scores(logits.float(), kind)[::2])
    assert out[1].isnan().any()


def test_in_a_graph() -> None:
    hidden, logits = randn(30, 64, dtype=torch.float16, seed=2), randn(3, 5, dtype=torch.float16, seed=3)
    cu_seqlens = cu_seqlens_of([10, 15, 5])
    rows = torch.empty(3, 64, dtype=torch.float16, device="cuda")
    out = torch.empty(3, 5, device="cuda")

    def launch() -> None:
        gather_rows(rows, hidden, cu_seqlens, "last")
        softmax_rows(out, logits, "softmax")

    replayed(launch, lambda: logits.neg_())
    assert torch.equal(rows, hidden[[9, 24, 29]])
    torch.testing.assert_close(out, logits.float().softmax(1))


def test_unknown_kinds_are_refused() -> None:
    logits = randn(2, 3, dtype=torch.float16)
    with pytest.raises(ValueError, match="'argmax' are not one of softmax"):
        softmax_rows(torch.empty(2, 3, device="cuda"), logits, "argmax")
    with pytest.raises(ValueError, match="'mean' is not cls or last"):
        gather_rows(logits, logits, cu_seqlens_of([2]), "mean")
