"""Products of few rows on a GPU."""

import pytest
import torch
import torch.nn.functional as F

from penstock.engine.kernels.activation import KINDS
from penstock.engine.kernels.residual_norm import split_norm
from penstock.engine.kernels.short_product import TILES, Tile, short_product, split_product
from penstock.engine.model.weights import Norm
from tests.gpu.references import (
    HALVES,
    activate,
    assert_as_exact_as_torch,
    exact_norm,
    exact_sum,
    norm_parameters,
    randn,
    replayed,
)

pytestmark = pytest.mark.gpu
ROWS = (1, 31, 64, 129, 400)
SIZES = ((8, 8), (40, 72), (768, 768), (2304, 768), (768, 3072))  # width, depth


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("width", "depth"), SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_against_float64(rows: int, width: int, depth: int, tile: Tile, dtype: torch.dtype) -> None:
    x, weight = randn(rows, depth, dtype=dtype, seed=1), randn(width, depth, dtype=dtype, seed=2, scale=depth**-0.5)
    bias = randn(width, dtype=dtype, seed=3)
    out = torch.full((rows + 1, width), 7.0, dtype=dtype, device="cuda")
    short_product(out[:rows], x, weight, bias, "gelu", tile)
    exact = F.gelu(x.double() @ weight.double().t() + bias.double())
    assert_as_exact_as_torch(out[:rows], F.gelu(F.linear(x, weight, bias)), exact)
    assert (out[rows] == 7.0).all()

    splits = min(3, -(-depth // 128))  # of a depth of 768 the last of four would have none left
    parts = torch.full((splits, rows, width), torch.nan, device="cuda")
    split_product(parts, x, weight, tile)
    assert_as_exact_as_torch(parts.sum(0).to(dtype), F.linear(x, weight), x.double() @ weight.double().t())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_activation(has_bias: bool, kind: str, dtype: torch.dtype) -> None:
    x, weight = randn(50, 256, dtype=dtype, seed=4), randn(512, 256, dtype=dtype, seed=5, scale=0.1)
    bias = randn(512, dtype=dtype, seed=6) if has_bias else None
    out = torch.empty(50, 512, dtype=dtype, device="cuda")
    short_product(out, x, weight, bias, kind, Tile(64, 32))
    exact = activate(F.linear(x.double(), weight.double(), None if bias is None else bias.double()), kind)
    assert_as_exact_as_torch(out, activate(F.linear(x, weight, bias), kind), exact)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", [8, 72, 384, 768, 1024, 1032, 4096, 8192])
@pytest.mark.parametrize(("rows", "splits"), [(1, 1), (7, 4), (200, 6)])
def test_the_norm_of_parts_against_float64(rows: int, splits: int, hidden: int, dtype: torch.dtype) -> None:
    parts = randn(splits, rows, hidden, dtype=torch.float32, seed=7)
    residual = randn(rows, hidden, dtype=dtype, seed=8)
    bias, gamma, beta = norm_parameters(hidden, dtype)
    exact = exact_sum(parts.double().sum(0), bias, residual)
    plain = parts.sum(0).to(dtype) + bias + residual
    out, total = residual.clone(), torch.empty_like(residual)
    split_norm(out, parts, bias, residual, Norm(gamma, beta, 1e-12), total)
    plain_norm = F.layer_norm(plain, (hidden,), gamma, beta, 1e-12)
    assert_as_exact_as_torch(out, plain_norm, exact_norm(exact, gamma, beta, 1e-12))
    assert_as_exact_as_torch(total, plain, exact)

    over_residual = residual.clone()
    split_norm(over_residual, parts, bias, over_residual, Norm(gamma, beta, 1e-12))
    assert torch.equal(over_residual, out)


def test_the_norm_of_parts_without_bias_residual_and_beta() -> None:
    parts = randn(2, 9, 768, dtype=torch.float32, seed=9)
    _, gamma, _ = norm_parameters(768, torch.float16)
    out = torch.empty(9, 768, dtype=torch.float16, device="cuda")
    split_norm(out, parts, None, None, Norm(gamma, None, 1e-5))
    plain = F.layer_norm(parts.sum(0).half(), (768,), gamma, None, 1e-5)
    assert_as_exact_as_torch(out, plain, exact_norm(parts.double().sum(0), gamma, None, 1e-5))


def test_nan_stays_in_its_row() -> None:
    x, weight = randn(70, 768, dtype=torch.float16, seed=10), randn(768, 768, dtype=torch.float16, seed=11)
    clean, poisoned = (torch.empty(70, 768, dtype=torch.float16, device="cuda") for _ in range(2))
    short_product(clean, x, weight, None, "identity", Tile(32, 32))
    x[3, 5] = torch.nan
    short_product(poisoned, x, weight, None, "identity", Tile(32, 32))
    assert poisoned[3].isnan().all()
    rest = [row for row in range(70) if row != 3]
    assert torch.equal(poisoned[rest], clean[rest])


def test_a_row_does_not_depend_on_the_others() -> None:
    x, weight = randn(100, 768, dtype=torch.float16, seed=12), randn(768, 768, dtype=torch.float16, seed=13)
    together, alone = (torch.empty(count, 768, dtype=torch.float16, device="cuda") for count in (100, 1))
    short_product(together, x, weight, None, "identity", Tile(64, 32))
    short_product(alone, x[77:78].clone(), weight, None, "identity", Tile(64, 32))
    assert torch.equal(alone[0], together[77])


def test_launched_early_one_after_the_other() -> None:
    """A chain in which each product reads what the one before writes, replayed as a graph: nothing is read too soon."""
    depth, layers = 768, 24
    weights = [randn(depth, depth, dtype=torch.float16, seed=20 + i, scale=depth**-0.5) for i in range(layers)]
    _, gamma, beta = norm_parameters(depth, torch.float16)
    start = randn(60, depth, dtype=torch.float16, seed=19)
    states = [torch.empty_like(start) for _ in range(2)]
    parts = torch.empty(4, 60, depth, device="cuda")

    def chain() -> None:
        states[0].copy_(start)
        for i in range(0, layers, 2):
            short_product(states[1], states[0], weights[i], None, "gelu", Tile(64, 32))
            split_product(parts, states[1], weights[i + 1], Tile(64, 32))
            split_norm(states[0], parts, None, states[0], Norm(gamma, beta, 1e-5))

    expected = start
    for i in range(0, layers, 2):
        up = torch.empty_like(start)
        short_product(up, expected, weights[i], None, "gelu", Tile(64, 32))
        torch.cuda.synchronize()
        split_product(parts, up, weights[i + 1], Tile(64, 32))
        torch.cuda.synchronize()
        after = torch.empty_like(start)
        split_norm(after, parts, None, expected, Norm(gamma, beta, 1e-5))
        torch.cuda.synchronize()
        expected = after
    for _ in range(20):
        replayed(chain, lambda: states[0].zero_())
        assert torch.equal(states[0], expected)


@pytest.mark.parametrize(
    ("width", "depth", "kind", "tile", "dtype", "message"),
    [
        (12, 16, "gelu", Tile(32, 32), torch.float16, "multiples of 8"),
        (16, 12, "gelu", Tile(32, 32), torch.float16, "multiples of 8"),
        (16, 16, "mish", Tile(32, 32), torch.float16, "mish"),
        (16, 16, "gelu", Tile(16, 16), torch.float16, "tiles"),
        (16, 16, "gelu", Tile(32, 32), torch.float32, "float32"),
    ],
)
def test_refusals(width: int, depth: int, kind: str, tile: Tile, dtype: torch.dtype, message: str) -> None:
    out = torch.zeros(4, width, dtype=dtype, device="cuda")
    x, weight = torch.zeros(4, depth, dtype=dtype, device="cuda"), torch.zeros(width, depth, dtype=dtype, device="cuda")
    with pytest.raises(ValueError, match=message):
        short_product(out, x, weight, None, kind, tile)
