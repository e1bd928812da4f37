"""Products of some hundred rows on a GPU of compute capability 9.0."""

import pytest
import torch
import torch.nn.functional as F

from penstock.engine.kernels.activation import KINDS
from penstock.engine.kernels.mid_product import TILES, MidTile, mid_parts, mid_product, mid_turned
from penstock.engine.kernels.residual_norm import split_norm
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
ROWS = (1, 64, 129, 250, 1000)
SIZES = ((3072, 768), (8, 8), (40, 72), (136, 1000), (768, 3072))  # width, depth


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("width", "depth"), SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_against_float64(rows: int, width: int, depth: int, tile: MidTile, dtype: torch.dtype) -> None:
    x, weight = randn(rows, depth, dtype=dtype, seed=1), randn(width, depth, dtype=dtype, seed=2, scale=depth**-0.5)
    bias = randn(width, dtype=dtype, seed=3)
    guarded = torch.full((rows + 600, width), 7.0, dtype=dtype, device="cuda")
    out = guarded[300 : 300 + rows]
    mid_product(out, x, weight, bias, "gelu", tile)
    exact = F.gelu(x.double() @ weight.double().t() + bias.double())
    assert_as_exact_as_torch(out, F.gelu(F.linear(x, weight, bias)), exact)
    assert (guarded[:300] == 7.0).all()
    assert (guarded[300 + rows :] == 7.0).all()

    splits = min(3, -(-depth // 64))
    around = torch.full((splits + 2, rows, width), 7.0, device="cuda")
    parts = around[1:-1]
    mid_parts(parts, x, weight, tile)
    assert_as_exact_as_torch(parts.sum(0).to(dtype), F.linear(x, weight), x.double() @ weight.double().t())
    assert (around[0] == 7.0).all()
    assert (around[-1] == 7.0).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_activation(has_bias: bool, kind: str, dtype: torch.dtype) -> None:
    x, weight = randn(300, 256, dtype=dtype, seed=4), randn(512, 256, dtype=dtype, seed=5, scale=0.1)
    bias = randn(512, dtype=dtype, seed=6) if has_bias else None
    out = torch.empty(300, 512, dtype=dtype, device="cuda")
    mid_product(out, x, weight, bias, kind, TILES[0])
    exact = activate(F.linear(x.double(), weight.double(), None if bias is None else bias.double()), kind)
    assert_as_exact_as_torch(out, activate(F.linear(x, weight, bias), kind), exact)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("width", "depth"), [(1152, 768), (8, 8), (72, 40), (1000, 136)])
@pytest.mark.parametrize("rows", [1, 64, 250])
@pytest.mark.parametrize(("kind", "has_bias"), [("gelu", False), ("silu", True)])
def test_gates(kind: str, has_bias: bool, rows: int, width: int, depth: int, tile: MidTile, dtype: torch.dtype) -> None:
    x, weight = randn(rows, depth, dtype=dtype, seed=1), randn(2 * width, depth, dtype=dtype, seed=2, scale=depth**-0.5)
    bias = randn(2 * width, dtype=dtype, seed=3) if has_bias else None
    guarded = torch.full((rows + 600, width), 7.0, dtype=dtype, device="cuda")
    out = guarded[300 : 300 + rows]
    mid_product(out, x, weight, bias, kind, tile, is_gated=True)
    first, last = F.linear(x, weight, bias).chunk(2, dim=1)
    exact, gate = F.linear(x.double(), weight.double(), None if bias is None else bias.double()).chunk(2, dim=1)
    assert_as_exact_as_torch(out, activate(first, kind) * last, activate(exact, kind) * gate)
    assert (guarded[:300] == 7.0).all()
    assert (guarded[300 + rows :] == 7.0).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize(("heads", "depth"), TURNED, ids=str)
@pytest.mark.parametrize("rows", [1, 64, 250])
@pytest.mark.parametrize("has_bias", [False, True])
def test_turned_queries_and_keys(
    has_bias: bool, rows: int, heads: Heads, depth: int, tile: MidTile, dtype: torch.dtype
) -> None:
    width = heads.width + 2 * heads.key_width
    x, weight = randn(rows, depth, dtype=dtype, seed=1), randn(width, depth, dtype=dtype, seed=2, scale=depth**-0.5)
    bias = randn(width, dtype=dtype, seed=3) if has_bias else None
    kind, positions = rotary_of(heads, dtype, has_norms=False), positions_of(rows)
    guarded = torch.full((rows + 600, width), 7.0, dtype=dtype, device="cuda")
    out, unturned = guarded[300 : 300 + rows], torch.empty(rows, width, dtype=dtype, device="cuda")
    mid_turned(out, x, weight, bias, positions, heads, kind, tile)
    mid_product(unturned, x, weight, bias, "identity", tile)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    plain = turned_by_torch(F.linear(x, weight, bias), positions, heads, kind)
    of_values = slice(heads.width + heads.key_width, None)
    assert_as_exact_as_torch(out, plain, turned_by_torch(exact, positions, heads, kind))
    assert torch.equal(out[:, of_values], unturned[:, of_values])
    assert (guarded[:300] == 7.0).all()
    assert (guarded[300 + rows :] == 7.0).all()
    mid_turned(out, x, weight, bias, torch.zeros_like(positions), heads, kind, tile)
    assert torch.equal(out, unturned)  # by no angle: in every bit


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_gated_and_turned_rows_do_not_depend_on_each_other_and_nan_stays_in_its_row(tile: MidTile) -> None:
    heads, positions = Heads(12, 12, 64), positions_of(500)
    x, weight = randn(500, 768, dtype=torch.float16, seed=7), randn(2304, 768, dtype=torch.float16, seed=8, scale=0.04)
    kind = rotary_of(heads, torch.float16, has_norms=False)

    def both(rows: slice) -> torch.Tensor:
        some = x[rows].clone()
        turned, gated = (torch.empty(len(some), width, dtype=torch.float16, device="cuda") for width in (2304, 1152))
        mid_turned(turned, some, weight, None, positions[rows].clone(), heads, kind, tile)
        mid_product(gated, some, weight, None, "gelu", tile, is_gated=True)
        return torch.cat((turned, gated), dim=1)

    clean = both(slice(None))
    assert torch.equal(both(slice(377, 378))[0], clean[377])
    x[203, 5] = torch.nan
    poisoned = both(slice(None))
    assert poisoned[203].isnan().all()
    rest = [row for row in range(500) if row != 203]
    assert torch.equal(poisoned[rest], clean[rest])


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_nan_stays_in_its_row_and_rows_do_not_depend_on_each_other(tile: MidTile) -> None:
    x, weight = randn(500, 768, dtype=torch.float16, seed=7), randn(768, 768, dtype=torch.float16, seed=8)
    clean, poisoned = (torch.empty(500, 768, dtype=torch.float16, device="cuda") for _ in range(2))
    alone = torch.empty(1, 768, dtype=torch.float16, device="cuda")
    mid_product(clean, x, weight, None, "identity", tile)
    mid_product(alone, x[377:378].clone(), weight, None, "identity", tile)
    assert torch.equal(alone[0], clean[377])
    x[203, 5] = torch.nan
    mid_product(poisoned, x, weight, None, "identity", tile)
    assert poisoned[203].isnan().all()
    rest = [row for row in range(500) if row != 203]
    assert torch.equal(poisoned[rest], clean[rest])


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_launched_early_one_after_the_other(tile: MidTile) -> None:
    """A chain in which each product reads what the one before writes, replayed as a graph: nothing is read too soon."""
    depth, layers = 768, 24
    weights = [randn(depth, depth, dtype=torch.float16, seed=20 + i, scale=depth**-0.5) for i in range(layers)]
    _, gamma, beta = norm_parameters(depth, torch.float16)
    norm = Norm(gamma, beta, 1e-5)
    start = randn(300, depth, dtype=torch.float16, seed=19)
    state, up = torch.empty_like(start), torch.empty_like(start)
    parts = torch.empty(4, 300, depth, device="cuda")

    def chain(*, is_slow: bool) -> None:
        state.copy_(start)
        for i in range(0, layers, 2):
            mid_product(up, state, weights[i], None, "gelu", tile)
            if is_slow:
                torch.cuda.synchronize()
            mid_parts(parts, up, weights[i + 1], tile)
            if is_slow:
                torch.cuda.synchronize()
            split_norm(state, parts, None, state, norm)

    chain(is_slow=True)
    expected = state.clone()
    for _ in range(20):
        replayed(lambda: chain(is_slow=False), lambda: state.zero_())
        assert torch.equal(state, expected)


def test_turned_in_a_graph_with_other_positions() -> None:
    heads, positions = Heads(12, 12, 64), positions_of(200)
    x, weight = randn(200, 768, dtype=torch.bfloat16, seed=9), randn(2304, 768, dtype=torch.bfloat16, seed=10)
    kind, others = rotary_of(heads, torch.bfloat16, has_norms=False), (positions + 11) % 600
    wanted, out = (torch.empty(200, 2304, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    mid_turned(wanted, x, weight, None, others, heads, kind, TILES[0])

    def restore() -> None:
        out.zero_()
        positions.copy_(others)

    replayed(lambda: mid_turned(out, x, weight, None, positions, heads, kind, TILES[0]), restore)
    assert torch.equal(out, wanted)


def test_refusals() -> None:
    out, x, weight = (torch.zeros(size, dtype=torch.float16, device="cuda") for size in ((4, 16), (4, 12), (16, 12)))
    with pytest.raises(ValueError, match="multiples of 8"):
        mid_product(out, x, weight, None, "gelu", TILES[0])
    x, weight = (torch.zeros(size, dtype=torch.float16, device="cuda") for size in ((4, 320), (16, 320)))
    with pytest.raises(ValueError, match="weight must be"):
        mid_product(out, x, weight.float(), None, "gelu", TILES[0])
    with pytest.raises(ValueError, match="mish"):
        mid_product(out, x, weight, None, "mish", TILES[0])
    with pytest.raises(ValueError, match="a product of 16 columns, and weight has 8 rows"):
        mid_product(out, x, weight[:8], None, "gelu", TILES[0])
    heads, rotary = Heads(1, 1, 16), rotary_of(Heads(1, 1, 16), torch.float16, has_norms=False)
    with pytest.raises(ValueError, match="no heads that are turned"):
        mid_turned(out, x, weight, None, positions_of(4), heads, rotary, TILES[0])
    with pytest.raises(ValueError, match="not cut into 4 parts"):  # of five stages, two each
        mid_parts(torch.zeros(4, 4, 16, device="cuda"), x, weight, TILES[0])
