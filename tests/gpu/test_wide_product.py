"""Products of many rows with the activation inside, on a GPU of compute capability 9.0."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from penstock.engine.kernels.activation import KINDS
from penstock.engine.kernels.residual_norm import residual_norm
from penstock.engine.kernels.wide_product import turned_product, wide_product
from penstock.engine.model.weights import Heads, Norm
from tests.gpu.references import (
    HALVES,
    TURNED,
    activate,
    assert_as_exact_as_torch,
    norm_parameters,
    positions_of,
    randn,
    replayed,
    rotary_of,
    turned_by_torch,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper"
    ),
]
ROWS = (1, 64, 127, 129, 1000, 4096, 16384)
SIZES = ((3072, 768), (8, 8), (40, 72), (136, 1000), (768, 3072), (4096, 1024))  # width, depth


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("width", "depth"), SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_against_float64(rows: int, width: int, depth: int, dtype: torch.dtype) -> None:
    x, weight = randn(rows, depth, dtype=dtype, seed=1), randn(width, depth, dtype=dtype, seed=2, scale=depth**-0.5)
    bias = randn(width, dtype=dtype, seed=3)
    guarded = torch.full((rows + 600, width), 7.0, dtype=dtype, device="cuda")
    out = guarded[300 : 300 + rows]
    wide_product(out, x, weight, bias, "gelu")
    exact = F.gelu(x.double() @ weight.double().t() + bias.double())
    assert_as_exact_as_torch(out, F.gelu(F.linear(x, weight, bias)), exact)
    assert (guarded[:300] == 7.0).all()
    assert (guarded[300 + rows :] == 7.0).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_activation(has_bias: bool, kind: str, dtype: torch.dtype) -> None:
    x, weight = randn(500, 256, dtype=dtype, seed=4), randn(512, 256, dtype=dtype, seed=5, scale=0.1)
    bias = randn(512, dtype=dtype, seed=6) if has_bias else None
    out = torch.empty(500, 512, dtype=dtype, device="cuda")
    wide_product(out, x, weight, bias, kind)
    exact = activate(F.linear(x.double(), weight.double(), None if bias is None else bias.double()), kind)
    assert_as_exact_as_torch(out, activate(F.linear(x, weight, bias), kind), exact)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("width", "depth"), [(1152, 768), (8, 8), (72, 40), (1000, 136), (2624, 1024)])
@pytest.mark.parametrize("rows", [1, 129, 1000, 4096])
@pytest.mark.parametrize(("kind", "has_bias"), [("gelu", False), ("silu", True)])
def test_gates(kind: str, has_bias: bool, rows: int, width: int, depth: int, dtype: torch.dtype) -> None:
    x, weight = randn(rows, depth, dtype=dtype, seed=1), randn(2 * width, depth, dtype=dtype, seed=2, scale=depth**-0.5)
    bias = randn(2 * width, dtype=dtype, seed=3) if has_bias else None
    guarded = torch.full((rows + 600, width), 7.0, dtype=dtype, device="cuda")
    out = guarded[300 : 300 + rows]
    wide_product(out, x, weight, bias, kind, is_gated=True)
    first, last = F.linear(x, weight, bias).chunk(2, dim=1)
    exact, gate = F.linear(x.double(), weight.double(), None if bias is None else bias.double()).chunk(2, dim=1)
    assert_as_exact_as_torch(out, activate(first, kind) * last, activate(exact, kind) * gate)
    assert (guarded[:300] == 7.0).all()
    assert (guarded[300 + rows :] == 7.0).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("heads", "depth"), TURNED, ids=str)
@pytest.mark.parametrize("rows", [1, 129, 1000, 4096])
@pytest.mark.parametrize("has_bias", [False, True])
def test_turned_queries_and_keys(has_bias: bool, rows: int, heads: Heads, depth: int, dtype: torch.dtype) -> None:
    width = heads.width + 2 * heads.key_width
    x, weight = randn(rows, depth, dtype=dtype, seed=1), randn(width, depth, dtype=dtype, seed=2, scale=depth**-0.5)
    bias = randn(width, dtype=dtype, seed=3) if has_bias else None
    kind, positions = rotary_of(heads, dtype, has_norms=False), positions_of(rows)
    guarded = torch.full((rows + 600, width), 7.0, dtype=dtype, device="cuda")
    out, unturned = guarded[300 : 300 + rows], torch.empty(rows, width, dtype=dtype, device="cuda")
    turned_product(out, x, weight, bias, positions, heads, kind)
    wide_product(unturned, x, weight, bias, "identity")
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    plain = turned_by_torch(F.linear(x, weight, bias), positions, heads, kind)
    of_values = slice(heads.width + heads.key_width, None)
    assert_as_exact_as_torch(out, plain, turned_by_torch(exact, positions, heads, kind))
    assert torch.equal(out[:, of_values], unturned[:, of_values])
    assert (guarded[:300] == 7.0).all()
    assert (guarded[300 + rows :] == 7.0).all()
    turned_product(out, x, weight, bias, torch.zeros_like(positions), heads, kind)
    assert torch.equal(out, unturned)  # by no angle: in every bit


def test_turned_rows_do_not_depend_on_each_other_and_nan_stays_in_its_row() -> None:
    heads, positions = Heads(12, 12, 64), positions_of(3000)
    x, weight = randn(3000, 768, dtype=torch.float16, seed=7), randn(2304, 768, dtype=torch.float16, seed=8, scale=0.04)
    kind = rotary_of(heads, torch.float16, has_norms=False)
    clean, poisoned = (torch.empty(3000, 2304, dtype=torch.float16, device="cuda") for _ in range(2))
    alone = torch.empty(1, 2304, dtype=torch.float16, device="cuda")
    turned_product(clean, x, weight, None, positions, heads, kind)
    turned_product(alone, x[2777:2778].clone(), weight, None, positions[2777:2778].clone(), heads, kind)
    assert torch.equal(alone[0], clean[2777])
    x[1003, 5] = torch.nan
    turned_product(poisoned, x, weight, None, positions, heads, kind)
    assert poisoned[1003].isnan().all()
    rest = [row for row in range(3000) if row != 1003]
    assert torch.equal(poisoned[rest], clean[rest])


def test_turned_in_a_graph_with_other_positions() -> None:
    heads, positions = Heads(12, 12, 64), positions_of(5000)
    x, weight = randn(5000, 768, dtype=torch.bfloat16, seed=9), randn(2304, 768, dtype=torch.bfloat16, seed=10)
    kind, others = rotary_of(heads, torch.bfloat16, has_norms=False), (positions + 11) % 600
    wanted, out = (torch.empty(5000, 2304, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    turned_product(wanted, x, weight, None, others, heads, kind)

    def restore() -> None:
        out.zero_()
        positions.copy_(others)

    replayed(lambda: turned_product(out, x, weight, None, positions, heads, kind), restore)
    assert torch.equal(out, wanted)


def test_nan_stays_in_its_row_and_rows_do_not_depend_on_each_other() -> None:
    x, weight = randn(3000, 768, dtype=torch.float16, seed=7), randn(768, 768, dtype=torch.float16, seed=8)
    clean, poisoned = (torch.empty(3000, 768, dtype=torch.float16, device="cuda") for _ in range(2))
    wide_product(clean, x, weight, None, "identity")
    alone = torch.empty(1, 768, dtype=torch.float16, device="cuda")
    wide_product(alone, x[2777:2778].clone(), weight, None, "identity")
    assert torch.equal(alone[0], clean[2777])
    x[1003, 5] = torch.nan
    wide_product(poisoned, x, weight, None, "identity")
    assert poisoned[1003].isnan().all()
    rest = [row for row in range(3000) if row != 1003]
    assert torch.equal(poisoned[rest], clean[rest])


def test_in_a_graph_many_times() -> None:
    x, weight = randn(5000, 768, dtype=torch.bfloat16, seed=9), randn(3072, 768, dtype=torch.bfloat16, seed=10)
    expected, out = (torch.empty(5000, 3072, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    wide_product(expected, x, weight, None, "gelu")

    def several() -> None:
        for _ in range(50):
            wide_product(out, x, weight, None, "gelu")

    replayed(several, lambda: out.zero_())
    assert torch.equal(out, expected)


def test_between_other_kernels_nothing_is_read_too_soon() -> None:
    """A chain as in a forward, replayed as a graph, beside the same with a wait after each step."""
    rows, hidden, layers = 4096, 256, 6
    up = [randn(1024, hidden, dtype=torch.float16, seed=20 + i, scale=hidden**-0.5) for i in range(layers)]
    down = [randn(hidden, 1024, dtype=torch.float16, seed=40 + i, scale=0.03) for i in range(layers)]
    _, gamma, beta = norm_parameters(hidden, torch.float16)
    start = randn(rows, hidden, dtype=torch.float16, seed=19)
    state, product, inner = torch.empty_like(start), torch.empty_like(start), start.new_empty(rows, 1024)

    def chain(after_each: Callable[[], None]) -> None:
        state.copy_(start)
        for i in range(layers):
            wide_product(inner, state, up[i], None, "gelu")
            after_each()
            torch.mm(inner, down[i].t(), out=product)
            after_each()
            residual_norm(state, product, None, state, Norm(gamma, beta, 1e-5))
            after_each()

    chain(torch.cuda.synchronize)
    expected = state.clone()
    for _ in range(20):
        replayed(lambda: chain(lambda: None), lambda: state.zero_())
        assert torch.equal(state, expected)


def test_refusals() -> None:
    out, x, weight = (torch.zeros(size, dtype=torch.float16, device="cuda") for size in ((4, 16), (4, 12), (16, 12)))
    with pytest.raises(ValueError, match="multiples of 8"):
        wide_product(out, x, weight, None, "gelu")
    x, weight = (torch.zeros(size, dtype=torch.float16, device="cuda") for size in ((4, 16), (16, 16)))
    with pytest.raises(ValueError, match="mish"):
        wide_product(out, x, weight, None, "mish")
    with pytest.raises(ValueError, match="weight must be"):
        wide_product(out, x, weight[:8], None, "gelu")
    with pytest.raises(ValueError, match="float32"):
        wide_product(out.float(), x.float(), weight.float(), None, "gelu")
    heads, at = Heads(2, 1, 32), positions_of(4)
    out, weight = (torch.zeros(size, dtype=torch.float16, device="cuda") for size in ((4, 128), (128, 16)))
    with pytest.raises(ValueError, match="turned in a product"):
        turned_product(out, x, weight, None, at, heads, rotary_of(heads, torch.float16, has_norms=True))
    with pytest.raises(ValueError, match="turned in a product"):
        turned_product(out[:, :64], x, weight, None, at, heads, rotary_of(heads, torch.float16, has_norms=False))
    with pytest.raises(ValueError, match="positions must be"):
        turned_product(out, x, weight, None, at[:3], heads, rotary_of(heads, torch.float16, has_norms=False))
