"""Bias, residual and norm on a GPU."""

import math

import pytest
import torch
import torch.nn.functional as F

from penstock.engine.kernels.residual_norm import inner_norm, residual_norm
from penstock.engine.model.weights import Norm
from tests.gpu.references import (
    HALVES,
    HIDDEN_SIZES,
    ROWS,
    assert_as_exact_as_torch,
    exact_norm,
    exact_sum,
    norm_parameters,
    randn,
    replayed,
)

pytestmark = pytest.mark.gpu
EPS = 1e-12


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_against_float64(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, residual = (randn(rows, hidden, dtype=dtype, seed=seed) for seed in (1, 2))
    bias, gamma, beta = norm_parameters(hidden, dtype)
    out, total = torch.empty_like(x), torch.empty_like(x)
    residual_norm(out, x, bias, residual, Norm(gamma, beta, EPS))
    exact = exact_sum(x, bias, residual)
    plain = x + bias + residual
    plain_norm = F.layer_norm(plain, (hidden,), gamma, beta, EPS)
    assert_as_exact_as_torch(out, plain_norm, exact_norm(exact, gamma, beta, EPS))

    with_total = torch.empty_like(x)
    residual_norm(with_total, x, bias, residual, Norm(gamma, beta, EPS), total)
    assert torch.equal(with_total, out)
    assert_as_exact_as_torch(total, plain, exact)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm_against_float64(rows: int, hidden: int, dtype: torch.dtype) -> None:
    """Of rows with a mean, which it does not subtract."""
    x, residual = (3 + randn(rows, hidden, dtype=dtype, seed=seed) for seed in (13, 14))
    _, gamma, _ = norm_parameters(hidden, dtype)
    out = torch.empty_like(x)
    residual_norm(out, x, None, residual, Norm(gamma, None, EPS, subtracts_mean=False))
    exact = F.rms_norm((x.double() + residual.double()), (hidden,), gamma.double(), EPS)
    assert_as_exact_as_torch(out, F.rms_norm(x + residual, (hidden,), gamma, EPS), exact)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("subtracts_mean", [False, True])
def test_norms_before_the_addition_against_float64(
    rows: int, hidden: int, dtype: torch.dtype, subtracts_mean: bool
) -> None:
    x, residual = (1 + randn(rows, hidden, dtype=dtype, seed=seed) for seed in (15, 16))
    beta, gamma, own = norm_parameters(hidden, dtype)
    inner, outer = Norm(gamma, beta if subtracts_mean else None, 1e-3, subtracts_mean), Norm(own, beta, EPS)
    out, total = torch.empty_like(x), torch.empty_like(x)
    inner_norm(out, total, x, inner, residual, outer)

    def normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
        weight, bias = norm.weight.to(x.dtype), None if norm.bias is None else norm.bias.to(x.dtype)
        if norm.subtracts_mean:
            return F.layer_norm(x, (hidden,), weight, bias, norm.eps)
        return F.rms_norm(x, (hidden,), weight, norm.eps)

    exact, plain = normed(x.double(), inner) + residual.double(), normed(x, inner) + residual
    assert_as_exact_as_torch(total, plain, exact)
    assert_as_exact_as_torch(out, normed(plain, outer), normed(exact, outer))

    over_x, over_residual = x.clone(), residual.clone()
    inner_norm(over_x, over_residual, over_x, inner, over_residual, outer)
    assert torch.equal(over_x, out)
    assert torch.equal(over_residual, total)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("has_beta", [False, True])
@pytest.mark.parametrize("hidden", [768, 2048])
def test_parts_may_be_missing(hidden: int, has_bias: bool, has_residual: bool, has_beta: bool) -> None:
    dtype = torch.float16
    x, other = (randn(33, hidden, dtype=dtype, seed=seed) for seed in (3, 4))
    some_bias, gamma, some_beta = norm_parameters(hidden, dtype)
    bias, residual, beta = (
        tensor if has else None for has, tensor in ((has_bias, some_bias), (has_residual, other), (has_beta, some_beta))
    )
    out = torch.empty_like(x)
    residual_norm(out, x, bias, residual, Norm(gamma, beta, 1e-5))
    plain = sum((term for term in (bias, residual) if term is not None), x)
    exact = exact_norm(exact_sum(x, bias, residual), gamma, beta, 1e-5)
    assert_as_exact_as_torch(out, F.layer_norm(plain, (hidden,), gamma, beta, 1e-5), exact)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", [768, 4096])
def test_out_and_total_may_be_inputs(hidden: int, dtype: torch.dtype) -> None:
    x, residual = (randn(131, hidden, dtype=dtype, seed=seed) for seed in (5, 6))
    bias, gamma, beta = norm_parameters(hidden, dtype)
    expected, total = torch.empty_like(x), torch.empty_like(x)
    residual_norm(expected, x, bias, residual, Norm(gamma, beta, EPS), total)

    over_x, over_residual = x.clone(), residual.clone()
    residual_norm(over_x, over_x, bias, residual, Norm(gamma, beta, EPS))
    residual_norm(over_residual, x, bias, over_residual, Norm(gamma, beta, EPS))
    assert torch.equal(over_x, expected)
    assert torch.equal(over_residual, expected)

    over_x, over_residual = x.clone(), residual.clone()
    residual_norm(over_x, over_x, bias, over_residual, Norm(gamma, beta, EPS), over_residual)
    assert torch.equal(over_x, expected)
    assert torch.equal(over_residual, total)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", [8, 1000, 4096])
def test_constant_rows_become_beta(hidden: int, dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 0.1, -3.3, 1e4], device="cuda").to(dtype)[:, None].expand(-1, hidden).contiguous()
    _, gamma, beta = norm_parameters(hidden, dtype)
    out = torch.empty_like(x)
    residual_norm(out, x, None, None, Norm(gamma, beta, EPS))
    assert torch.equal(out, beta.expand_as(out))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", [768, 4096])
def test_values_whose_squares_overflow_half_precision(hidden: int, dtype: torch.dtype) -> None:
    x = randn(65, hidden, dtype=dtype, seed=7, scale=1e4)
    x[:, 0] = 6e4
    bias, gamma, beta = norm_parameters(hidden, dtype)
    out = torch.empty_like(x)
    residual_norm(out, x, bias, None, Norm(gamma, beta, EPS))
    exact = exact_norm(exact_sum(x, bias, None), gamma, beta, EPS)
    assert_as_exact_as_torch(out, F.layer_norm(x + bias, (hidden,), gamma, beta, EPS), exact)


def test_eps_is_the_arguments() -> None:
    x = randn(9, 768, dtype=torch.float16, seed=8, scale=1e-3)
    _, gamma, beta = norm_parameters(768, torch.float16)
    outs = [torch.empty_like(x) for _ in range(2)]
    for out, eps in zip(outs, (1e-12, 1e-5), strict=True):
        residual_norm(out, x, None, None, Norm(gamma, beta, eps))
        plain = F.layer_norm(x, (768,), gamma, beta, eps)
        assert_as_exact_as_torch(out, plain, exact_norm(x, gamma, beta, eps))
    assert not torch.equal(*outs)


@pytest.mark.parametrize("hidden", [768, 2048])
def test_nan_stays_in_its_row(hidden: int) -> None:
    x = randn(40, hidden, dtype=torch.float16, seed=9)
    _, gamma, beta = norm_parameters(hidden, torch.float16)
    clean, poisoned = torch.empty_like(x), torch.empty_like(x)
    residual_norm(clean, x, None, None, Norm(gamma, beta, EPS))
    x[3::2, 5] = math.nan
    residual_norm(poisoned, x, None, None, Norm(gamma, beta, EPS))
    assert poisoned[3::2].isnan().all()
    assert torch.equal(poisoned[2::2], clean[2::2])


def test_more_than_two_to_the_31_elements() -> None:
    hidden, rows = 768, 2_900_000
    x = torch.zeros(rows, hidden, dtype=torch.float16, device="cuda")
    x[-5:] = randn(5, hidden, dtype=torch.float16, seed=10)
    _, gamma, beta = norm_parameters(hidden, torch.float16)
    last = x[-5:].clone()
    residual_norm(x, x, None, None, Norm(gamma, beta, EPS))
    expected = torch.empty_like(last)
    residual_norm(expected, last, None, None, Norm(gamma, beta, EPS))
    assert torch.equal(x[-5:], expected)
    assert torch.equal(x[rows // 2], beta)


@pytest.mark.parametrize("hidden", [768, 2048])
def test_in_a_graph(hidden: int) -> None:
    original, residual = (randn(77, hidden, dtype=torch.bfloat16, seed=seed) for seed in (11, 12))
    bias, gamma, beta = norm_parameters(hidden, torch.bfloat16)
    expected, x = torch.empty_like(original), original.clone()
    residual_norm(expected, original, bias, residual, Norm(gamma, beta, EPS))
    replayed(lambda: residual_norm(x, x, bias, residual, Norm(gamma, beta, EPS)), lambda: x.copy_(original))
    assert torch.equal(x, expected)


def test_what_does_not_fit_is_refused() -> None:
    x = randn(4, 64, dtype=torch.float16)
    _, gamma, beta = norm_parameters(64, torch.float16)
    with pytest.raises(ValueError, match=r"norm\.weight must be"):
        residual_norm(x, x, None, None, Norm(gamma[:32], beta, EPS))
    with pytest.raises(ValueError, match="residual must be"):
        residual_norm(x, x, None, x.bfloat16(), Norm(gamma, beta, EPS))
    with pytest.raises(ValueError, match="contiguous"):
        residual_norm(x, randn(64, 4, dtype=torch.float16).t(), None, None, Norm(gamma, beta, EPS))
    narrow = x[:, :12].contiguous()
    with pytest.raises(ValueError, match="hidden size 12"):
        residual_norm(narrow, narrow, None, None, Norm(gamma[:12], None, EPS))
