"""Products in eight-bit integers and the rows for them, on a GPU of compute capability 9.0."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.gpu.int8_encoder import hadamard
from penstock.engine.kernels.activation import KINDS
from penstock.engine.kernels.int8_product import (
    Int8Blocks,
    Int8Matrix,
    block_order,
    int8_product,
    product_of_blocks,
    product_to_blocks,
)
from penstock.engine.kernels.int8_rows import ROTATED, Int8Rows, int8_norm, int8_rows
from penstock.engine.kernels.residual_norm import residual_norm
from penstock.engine.model.weights import Norm
from tests.gpu.references import HALVES, activate, assert_as_exact_as_torch, norm_parameters, randn, replayed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"
    ),
]
ROWS = (1, 64, 127, 129, 1000, 4096)
SIZES = ((3072, 768), (8, 16), (40, 144), (136, 1008), (768, 3072), (384, 1536))  # width, depth


def integers(rows: int, columns: int, seed: int) -> Int8Rows:
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randint(-127, 128, (rows, columns), generator=generator, device="cuda", dtype=torch.int8)
    return Int8Rows(values, torch.rand(rows, generator=generator, device="cuda") / (1500 * math.sqrt(columns)) + 1e-6)


def matrix(weight: Int8Rows, bias: Tensor | None) -> Int8Matrix:
    return Int8Matrix.of(weight.integers, weight.scales, bias)


def empty_rows(rows: int, columns: int) -> Int8Rows:
    return Int8Rows(
        torch.full((rows, columns), 99, dtype=torch.int8, device="cuda"), torch.full((rows,), -1.0, device="cuda")
    )


def exact_product(x: Int8Rows, weight: Int8Rows, bias: Tensor | None) -> Tensor:
    sums = x.integers.double() @ weight.integers.double().t()
    scaled = sums * x.scales.double()[:, None] * weight.scales.double() * 1.0
    return scaled if bias is None else scaled + bias.double()


def rotated(x: Tensor) -> Tensor:
    """In float64."""
    return (x.double().view(-1, ROTATED) @ hadamard(x.device).double()).view(x.shape)


def assert_rows_of(found: Int8Rows, exact: Tensor) -> None:
    """Within a step of rounding, and the largest of each row at the end of its range."""
    scales = exact.abs().amax(dim=1) / 127
    torch.testing.assert_close(found.scales.double(), torch.where(scales == 0, 1.0, scales), rtol=1e-5, atol=0)
    assert (found.integers.double() - exact / found.scales.double()[:, None]).abs().max() <= 0.501
    largest = found.integers.abs().amax(dim=1)
    assert ((largest == 127) | (scales == 0)).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("width", "depth"), SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_products_against_float64(rows: int, width: int, depth: int, dtype: torch.dtype) -> None:
    x, weight = integers(rows, depth, 1), integers(width, depth, 2)
    x.scales.mul_(1000)
    bias = randn(width, dtype=dtype, seed=3)
    guarded = torch.full((rows + 600, width), 7.0, dtype=dtype, device="cuda")
    out = guarded[300 : 300 + rows]
    int8_product(out, x, matrix(weight, bias), "gelu")
    exact = exact_product(x, weight, bias)
    assert_as_exact_as_torch(out, F.gelu(exact.to(dtype)), activate(exact, "gelu"))
    assert (guarded[:300] == 7.0).all()
    assert (guarded[300 + rows :] == 7.0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_activation(has_bias: bool, kind: str) -> None:
    x, weight = integers(500, 256, 4), integers(512, 256, 5)
    x.scales.mul_(1000)
    bias = randn(512, dtype=torch.float16, seed=6) if has_bias else None
    out = torch.empty(500, 512, dtype=torch.float16, device="cuda")
    int8_product(out, x, matrix(weight, bias), kind)
    exact = exact_product(x, weight, bias)
    assert_as_exact_as_torch(out, activate(exact.half(), kind), activate(exact, kind))


def test_sums_are_exact_at_their_largest() -> None:
    x, weight = integers(300, 4096, 1), integers(256, 4096, 2)
    x.integers.fill_(127)
    weight.integers.fill_(-127)
    x.scales.fill_(1.0)
    weight.scales.fill_(2.0**-24)
    out = torch.empty(300, 256, dtype=torch.float16, device="cuda")
    int8_product(out, x, matrix(weight, None), "identity")
    assert (out == torch.tensor(-127 * 127 * 4096 * 2.0**-24).half().item()).all()


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    x, weight, bias = integers(5000, 768, 1), integers(384, 768, 2), randn(384, dtype=torch.float16, seed=3)
    x.scales.mul_(1000)
    together = torch.empty(5000, 384, dtype=torch.float16, device="cuda")
    int8_product(together, x, matrix(weight, bias), "gelu")
    for first, last in ((0, 1), (77, 300), (4500, 5000), (129, 4999)):
        alone = torch.empty(last - first, 384, dtype=torch.float16, device="cuda")
        some = Int8Rows(x.integers[first:last].clone(), x.scales[first:last].clone())
        int8_product(alone, some, matrix(weight, bias), "gelu")
        assert torch.equal(alone, together[first:last])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("depth", [128, 384, 768, 1024, 1152, 3072, 8192])
@pytest.mark.parametrize("rows", [1, 7, 129, 4097])
def test_rows_against_float64(rows: int, depth: int, dtype: torch.dtype) -> None:
    x, factors = randn(rows, depth, dtype=dtype, seed=1), randn(depth, dtype=dtype, seed=2).abs() + 0.1
    x[0] = 0.0
    found = empty_rows(rows, depth)
    int8_rows(found, x, factors)
    assert_rows_of(found, rotated(x.double() * factors.double()))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", [128, 384, 768, 1024, 2048])
@pytest.mark.parametrize("rows", [1, 129, 4097])
def test_norms_against_float64(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, residual = (randn(rows, hidden, dtype=dtype, seed=seed) for seed in (1, 2))
    bias, gamma, beta = norm_parameters(hidden, dtype)
    factors, norm = randn(hidden, dtype=dtype, seed=4).abs() + 0.1, Norm(gamma, beta, 1e-12)
    found, out, expected = empty_rows(rows, hidden), torch.empty_like(x), torch.empty_like(x)
    residual_norm(expected, x, bias, residual, norm)
    int8_norm(out, found, x, bias, residual, norm, factors)
    assert torch.equal(out, expected)
    total = x.double() + bias.double() + residual.double()
    exact = F.layer_norm(total, (hidden,), gamma.double(), beta.double(), 1e-12)
    found_again = rotated(exact * factors.double())
    assert (found.integers.double() - found_again / found.scales.double()[:, None]).abs().max() <= 0.51
    torch.testing.assert_close(found.scales.double(), found_again.abs().amax(dim=1) / 127, rtol=1e-4, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_has_no_finite_result_and_spoils_no_other(bad: float) -> None:
    x, factors = randn(5, 384, dtype=torch.float16, seed=1), torch.ones(384, dtype=torch.float16, device="cuda")
    weight, bias = integers(64, 384, 2), randn(64, dtype=torch.float16, seed=3)
    x[1], x[3, 200] = 0.0, bad
    rows, out = empty_rows(5, 384), torch.empty(5, 64, dtype=torch.float16, device="cuda")
    int8_rows(rows, x, factors)
    int8_product(out, rows, matrix(weight, bias), "gelu")
    assert out[3].isnan().all()
    assert out[[0, 1, 2, 4]].isfinite().all()
    assert torch.equal(out[1], F.gelu(bias))


def test_launches_are_captured() -> None:
    x, factors = randn(700, 384, dtype=torch.float16, seed=1), torch.ones(384, dtype=torch.float16, device="cuda")
    rows, out = empty_rows(700, 384), torch.empty(700, 512, dtype=torch.float16, device="cuda")
    weight = matrix(integers(512, 384, 2), None)

    def launch() -> None:
        int8_rows(rows, x, factors)
        int8_product(out, rows, weight, "gelu")

    launch()
    expected = out.clone()
    replayed(launch, lambda: out.zero_())
    assert torch.equal(out, expected)


@pytest.mark.parametrize(("rows", "width", "depth"), [(5, 12, 128), (5, 8, 120), (5, 0, 128)])
def test_sizes_without_a_kernel_are_refused(rows: int, width: int, depth: int) -> None:
    out = torch.empty(rows, width, dtype=torch.float16, device="cuda")
    columns = torch.zeros(width // 2, 4, dtype=torch.int32, device="cuda")
    weight = Int8Matrix(empty_rows(width, depth).integers, columns)
    with pytest.raises(ValueError, match="multiples of 16 and 8"):
        int8_product(out, empty_rows(rows, depth), weight, "gelu")
    x = torch.empty(rows, 192, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match="multiple of 128"):
        int8_rows(empty_rows(rows, 192), x, x[0])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("width", "depth", "next_width"), [(128, 128, 8), (1536, 384, 384), (3072, 768, 768)])
@pytest.mark.parametrize("rows", [1, 129, 1000, 4096])
def test_two_products_in_blocks_against_float64(
    rows: int, width: int, depth: int, next_width: int, dtype: torch.dtype
) -> None:
    x, weight, bias = integers(rows, depth, 1), integers(width, depth, 2), randn(width, dtype=dtype, seed=3)
    x.scales.mul_(1000)
    x.integers[0] = 0
    factors = randn(width, dtype=dtype, seed=4).abs() + 0.1
    blocks = Int8Blocks(
        torch.full((rows, width), 99, dtype=torch.int8, device="cuda"),
        torch.full((width // 128, rows), -1.0, device="cuda"),
    )
    product_to_blocks(blocks, x, matrix(weight, bias).feeding(factors), "gelu")
    exact = rotated(activate(exact_product(x, weight, bias), "gelu") * factors.double())
    back = block_order().argsort().cuda()
    found = blocks.integers.view(rows, -1, 128)[:, :, back]
    for block in range(width // 128):
        of_block = Int8Rows(found[:, block].contiguous(), blocks.scales[block])
        expected = exact[:, 128 * block : 128 * (block + 1)]
        torch.testing.assert_close(of_block.scales.double(), expected.abs().amax(dim=1) / 127, rtol=3e-3, atol=1e-6)
        assert (of_block.integers.double() - expected / of_block.scales.double()[:, None]).abs().max() <= 0.6

    next_weight, next_bias = integers(next_width, width, 5), randn(next_width, dtype=dtype, seed=6)
    out = torch.full((rows + 2, next_width), 7.0, dtype=dtype, device="cuda")
    product_of_blocks(out[1:-1], blocks, matrix(next_weight, next_bias))
    values = (blocks.integers.double().view(rows, -1, 128) * blocks.scales.double().t()[:, :, None]).view(rows, width)
    exact = values @ next_weight.integers.double().t() * next_weight.scales.double() + next_bias.double()
    assert_as_exact_as_torch(out[1:-1], exact.to(dtype), exact)
    assert (out[[0, -1]] == 7.0).all()


def test_a_row_in_blocks_has_the_same_bits_in_any_batch() -> None:
    x, weight, bias = integers(3000, 384, 1), integers(1536, 384, 2), randn(1536, dtype=torch.float16, seed=3)
    x.scales.mul_(1000)
    next_weight = integers(384, 1536, 4)

    def results(first: int, last: int) -> Tensor:
        count = last - first
        blocks = Int8Blocks(
            torch.empty(count, 1536, dtype=torch.int8, device="cuda"), torch.empty(12, count, device="cuda")
        )
        some = Int8Rows(x.integers[first:last].clone(), x.scales[first:last].clone())
        product_to_blocks(blocks, some, matrix(weight, bias), "gelu")
        out = torch.empty(count, 384, dtype=torch.float16, device="cuda")
        product_of_blocks(out, blocks, matrix(next_weight, None))
        return out

    together = results(0, 3000)
    for first, last in ((0, 1), (77, 300), (2500, 3000), (129, 2999)):
        assert torch.equal(results(first, last), together[first:last])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_in_blocks_that_is_not_finite_spoils_no_other(bad: float) -> None:
    x, weight, next_weight = integers(300, 128, 1), integers(256, 128, 2), integers(64, 256, 3)
    x.scales[7] = bad
    blocks = Int8Blocks(torch.empty(300, 256, dtype=torch.int8, device="cuda"), torch.empty(2, 300, device="cuda"))
    product_to_blocks(blocks, x, matrix(weight, None), "gelu")
    out = torch.empty(300, 64, dtype=torch.float16, device="cuda")
    product_of_blocks(out, blocks, matrix(next_weight, None))
    assert not out[7].isfinite().any()
    assert out[:7].isfinite().all()
    assert out[8:].isfinite().all()
