"""Activations on a GPU."""

import math

import pytest
import torch
from torch import Tensor

from penstock.engine.kernels.activation import KINDS, bias_activation, gated
from tests.gpu.references import HALVES, HIDDEN_SIZES, ROWS, activate, assert_as_exact_as_torch, randn, replayed

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", HIDDEN_SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_against_float64(rows: int, width: int, kind: str, dtype: torch.dtype) -> None:
    x, bias = randn(rows, width, dtype=dtype, seed=1, scale=2), randn(width, dtype=dtype, seed=2)
    with_bias, without = x.clone(), x.clone()
    bias_activation(with_bias, bias, kind)
    bias_activation(without, None, kind)
    assert_as_exact_as_torch(with_bias, activate(x + bias, kind), activate(x.double() + bias.double(), kind))
    assert_as_exact_as_torch(without, activate(x, kind), activate(x.double(), kind))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", HIDDEN_SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_gated_against_float64(rows: int, width: int, kind: str, dtype: torch.dtype) -> None:
    x = randn(rows, 2 * width, dtype=dtype, seed=3, scale=2)
    out = torch.empty(rows, width, dtype=dtype, device="cuda")
    gated(out, x, kind)
    plain = activate(x[:, :width], kind) * x[:, width:]
    assert_as_exact_as_torch(out, plain, activate(x[:, :width].double(), kind) * x[:, width:].double())


def every_value(dtype: torch.dtype) -> Tensor:
    return torch.arange(65536, device="cuda").to(torch.int16).view(dtype).reshape(8, 8192)


def ordered(x: Tensor) -> Tensor:
    """Integers in the order of x's values, consecutive for neighbours."""
    bits = x.view(torch.int16).long()
    return torch.where(bits >= 0, bits, -32768 - bits)


@pytest.mark.parametrize("dtype", HALVES)
def test_gelu_of_every_finite_value_is_within_one_ulp(dtype: torch.dtype) -> None:
    x = every_value(dtype)
    out = x.clone()
    bias_activation(out, None, "gelu")
    exact = activate(x.double(), "gelu")
    # bfloat16 reaches as far down as float, whose subnormals count as zero.
    judged = x.isfinite() & ((exact.abs() >= 2.0**-122) if dtype == torch.bfloat16 else True)
    apart = (ordered(out) - ordered(exact.to(dtype))).abs()
    assert apart[judged].max() <= 1
    assert (apart[judged] > 0).double().mean() < 0.01
    assert ((out.double() - exact).abs() < 2.0**-122)[x.isfinite() & ~judged].all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
def test_infinities_and_nan(kind: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[math.inf, math.nan, 0.0, 6e4, -6e4, 1.0, -1.0, 2.0]], dtype=dtype, device="cuda")
    expected = activate(x.double(), kind).to(dtype)
    bias_activation(x, None, kind)
    assert torch.allclose(x, expected, rtol=1e-2, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["gelu", "relu"])
def test_nan_stays_in_its_element(kind: str) -> None:
    x = randn(130, 768, dtype=torch.float16, seed=4)
    clean, poisoned = x.clone(), x.clone()
    bias_activation(clean, None, kind)
    poisoned[::3, ::5] = math.nan
    bias_activation(poisoned, None, kind)
    hit = torch.zeros_like(x, dtype=torch.bool)
    hit[::3, ::5] = True
    assert poisoned[hit].isnan().all()
    assert torch.equal(poisoned[~hit], clean[~hit])


def test_more_than_two_to_the_31_elements() -> None:
    rows, width = 800_000, 3072
    x = torch.zeros(rows, width, dtype=torch.float16, device="cuda")
    bias = randn(width, dtype=torch.float16, seed=5)
    bias_activation(x, bias, "gelu")
    expected = torch.zeros(1, width, dtype=torch.float16, device="cuda")
    bias_activation(expected, bias, "gelu")
    for row in (0, 1, rows // 2, rows - 2, rows - 1):
        assert torch.equal(x[row], expected[0])


def test_in_a_graph() -> None:
    original, bias = randn(100, 3072, dtype=torch.float16, seed=6), randn(3072, dtype=torch.float16, seed=7)
    expected, x = original.clone(), original.clone()
    bias_activation(expected, bias, "gelu")
    replayed(lambda: bias_activation(x, bias, "gelu"), lambda: x.copy_(original))
    assert torch.equal(x, expected)

    gate = torch.empty(100, 1536, dtype=torch.float16, device="cuda")
    replayed(lambda: gated(gate, original, "gelu"), lambda: gate.zero_())
    expected = torch.empty_like(gate)
    gated(expected, original, "gelu")
    assert torch.equal(gate, expected)


def test_unknown_kinds_and_widths_are_refused() -> None:
    x = randn(4, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="'swish' is not one of gelu"):
        bias_activation(x, None, "swish")
    with pytest.raises(ValueError, match="width 12"):
        bias_activation(x[:, :12].contiguous(), None, "gelu")
    with pytest.raises(ValueError, match="no kernels for torch"):
        bias_activation(x.float(), None, "gelu")
