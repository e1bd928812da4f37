"""Which products are ours: what the choice promises the launches, and that a kernel that cannot be compiled is done
without."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.gpu import products
from penstock.engine.gpu.products import MAX_ROWS, Products, most_parts, short_split, short_tile
from penstock.engine.kernels import mid_product, wide_product, wide_tile
from penstock.engine.kernels.mid_product import MidTile
from penstock.engine.kernels.short_product import STAGE_DEPTH, TILES

widths = st.integers(1, 1024).map(lambda eighth: 8 * eighth)


@given(rows=st.integers(1, 600), width=widths, depth=widths)
def test_parts_have_room_and_a_stage_each(rows: int, width: int, depth: int) -> None:
    split = short_split(rows, width, depth)
    if split is not None:
        assert rows <= MAX_ROWS
        assert split.tile in TILES
        assert split.num_parts * rows * width <= most_parts(width)
        stages = -(-depth // STAGE_DEPTH)
        assert (split.num_parts - 1) * -(-stages // split.num_parts) < stages  # the last has one too


@given(rows=st.integers(1, 600), width=widths, depth=widths)
def test_products_of_few_rows_have_tiles(rows: int, width: int, depth: int) -> None:
    tile = short_tile(rows, width, depth)
    assert tile is None or (tile in TILES and rows <= MAX_ROWS)


@given(rows=st.integers(1, 2000), width=widths, depth=widths, groups=st.integers(0, 132))
def test_products_of_some_hundred_rows_are_computed_at_once(rows: int, width: int, depth: int, groups: int) -> None:
    ours = Products(torch.empty(most_parts(width)), wide_groups=groups)
    tile, split = ours.mid_tile(rows, width), ours.split(rows, width, depth)
    assert tile is None or tile.num_tiles(rows, width) <= groups
    if split is None or not isinstance(split.tile, MidTile):
        return
    assert split.tile in mid_product.TILES
    assert split.num_parts * split.tile.num_tiles(rows, width) <= groups
    assert split.num_parts == 1 or split.num_parts * rows * width <= most_parts(width)
    stages = -(-depth // mid_product.STAGE_DEPTH)
    assert (split.num_parts - 1) * -(-stages // split.num_parts) < stages  # the last has one too


@pytest.mark.parametrize(
    ("rows", "hidden", "tiles", "splits"),  # groups of the tiles to 3 and 4 times the hidden size; groups and parts
    [
        (32, 768, (1, 1), ((1, 4), (1, 4))),
        (64, 768, (1, 1), ((1, 4), (1, 4))),
        (160, 768, (1, 1), ((1, 3), (1, 4))),
        (384, 768, (2, 2), ((1, 1), (1, 2))),
        (640, 768, (2, 3), ((1, 1), (2, 3))),
        (1024, 768, (4, 4), ((1, 1), (1, 1))),
        (1088, 768, (None, None), (None, None)),  # cuBLAS's, or wide
        (512, 1024, (2, 3), ((1, 1), (2, 3))),
        (1024, 1024, (4, None), ((2, 1), None)),
        (512, 384, (1, 1), ((1, 1), (1, 4))),
    ],
)
def test_choices_that_were_measured(
    rows: int, hidden: int, tiles: tuple[int | None, ...], splits: tuple[tuple[int | None, int] | None, ...]
) -> None:
    ours = Products(torch.empty(most_parts(hidden)), wide_groups=132)
    found = [ours.mid_tile(rows, times * hidden) for times in (3, 4)]
    assert tuple(tile and tile.groups for tile in found) == tiles
    chosen = [ours.split(rows, hidden, depth) for depth in (hidden, 4 * hidden)]
    assert tuple(one and (getattr(one.tile, "groups", None), one.num_parts) for one in chosen) == splits


@pytest.mark.parametrize(
    ("rows", "is_plain", "expected"),
    [
        (32, False, "short"),
        (128, False, "short"),
        (512, False, "cublas"),
        (1024, False, "wide"),
        (1536, False, "cublas"),  # a round and a bit of tiles
        (16_384, False, "wide"),
        (1024, True, "cublas"),
        (4096, True, "wide"),
    ],
)
def test_bert_base_on_an_h200(rows: int, is_plain: bool, expected: str) -> None:
    width = 2304 if is_plain else 3072
    is_wide = Products(torch.empty(0), wide_groups=132).is_wide(rows, width, 768, is_plain=is_plain)
    is_short = not is_plain and short_tile(rows, width, 768) is not None
    assert (is_short, is_wide) == (expected == "short", expected == "wide")
    assert not Products(torch.empty(0), wide_groups=0).is_wide(rows, width, 768, is_plain=is_plain)


@pytest.mark.parametrize(
    ("rows", "width", "depth", "expected"),
    [
        (16_384, 768, 768, True),
        (16_384, 768, 1152, True),
        (16_384, 768, 3072, False),
        (8192, 768, 768, True),
        (12_288, 768, 768, False),  # four rounds and a bit of tiles
        (12_288, 1024, 1024, True),
        (3072, 1024, 1024, False),
        (1024, 1024, 1024, False),
    ],
)
def test_products_before_norms_of_pre_norm_encoders_on_an_h200(
    rows: int, width: int, depth: int, expected: bool
) -> None:
    assert Products(torch.empty(0), wide_groups=132).is_wide_before_sum(rows, width, depth) == expected
    assert not Products(torch.empty(0), wide_groups=0).is_wide_before_sum(rows, width, depth)


def test_a_kernel_that_is_not_compiled_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(epilogue: str, dtype: torch.dtype, device: int) -> None:
        raise UnsupportedDevice("wide_product was not compiled: no compiler\nand more")

    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "empty", lambda *size, device, **more: empty(*size, **more))
    monkeypatch.setattr(wide_tile, "num_groups", lambda device: 132)
    monkeypatch.setattr(wide_product, "prepare", refuse)
    logged: list[str] = []
    monkeypatch.setattr(products.log, "warning", lambda event, error: logged.append(f"{event}: {error}"))
    made = Products.on(torch.device("cuda"), torch.float16, 768, {"Gelu"})
    assert made.wide_groups == 0
    assert logged == ["wide_product_off: wide_product was not compiled: no compiler"]
