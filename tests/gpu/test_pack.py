"""Packing and unpacking of padded rows on a GPU."""

import pytest
import torch
from torch import Tensor

from penstock.engine.kernels.pack import pack, pack_ids, prefix_sum, unpack
from tests.gpu.references import HALVES, randn, replayed

pytestmark = pytest.mark.gpu
INTEGERS = (torch.int32, torch.int64)
SHAPES = ((1, 1), (3, 63), (5, 64), (2, 65), (7, 300), (130, 513))


def make_mask(rows: int, positions: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Holes, padding left and right, an empty row and a full one."""
    generator = torch.Generator("cuda").manual_seed(seed)
    mask = (torch.rand(rows, positions, generator=generator, device="cuda") < 0.6).to(dtype)
    if rows > 2:
        mask[0], mask[1] = 1, 0
        mask[2, : positions // 3] = 0
    return mask


def offsets(mask: Tensor) -> Tensor:
    counts = (mask != 0).sum(1)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    ("rows", "positions"), [*SHAPES, (1023, 3), (1024, 8), (1025, 40), (2049, 5), (65_535, 2), (65_536, 9)]
)
def test_prefix_sum(rows: int, positions: int, dtype: torch.dtype) -> None:
    mask = make_mask(rows, positions, dtype)
    cu_seqlens = torch.full((rows + 1,), -7, dtype=torch.int32, device="cuda")
    prefix_sum(cu_seqlens, mask)
    assert torch.equal(cu_seqlens, offsets(mask))


@pytest.mark.parametrize("integer", INTEGERS)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [8, 72, 768, 1000])
@pytest.mark.parametrize(("rows", "positions"), SHAPES)
def test_pack_and_unpack(rows: int, positions: int, width: int, dtype: torch.dtype, integer: torch.dtype) -> None:
    mask = make_mask(rows, positions, integer, seed=1)
    padded, cu_seqlens = randn(rows, positions, width, dtype=dtype, seed=2), offsets(mask)
    expected = padded[mask != 0]
    packed = torch.empty_like(expected)
    pack(packed, padded, cu_seqlens, mask)
    assert torch.equal(packed, expected)

    back = torch.full_like(padded, float("nan"))
    unpack(back, packed, cu_seqlens, mask)
    assert torch.equal(back, torch.where(mask[..., None] != 0, padded, torch.zeros_like(padded)))


@pytest.mark.parametrize("integer", INTEGERS)
@pytest.mark.parametrize(("rows", "positions"), SHAPES)
def test_pack_ids(rows: int, positions: int, integer: torch.dtype) -> None:
    mask = make_mask(rows, positions, integer, seed=3)
    ids = torch.arange(rows * positions, device="cuda").to(integer).view(rows, positions)
    expected = ids[mask != 0].to(torch.int32)
    packed = torch.empty_like(expected)
    pack_ids(packed, ids, offsets(mask), mask)
    assert torch.equal(packed, expected)


def test_more_than_two_to_the_31_elements() -> None:
    rows, positions, width = 4200, 512, 1024
    mask = torch.zeros(rows, positions, dtype=torch.int32, device="cuda")
    mask[-1, 5:9] = 1
    padded = torch.zeros(rows, positions, width, dtype=torch.float16, device="cuda")
    padded[-1] = randn(positions, width, dtype=torch.float16, seed=4)
    packed = torch.empty(4, width, dtype=torch.float16, device="cuda")
    pack(packed, padded, offsets(mask), mask)
    assert torch.equal(packed, padded[-1, 5:9])


def test_in_a_graph_with_another_mask() -> None:
    mask, other = (make_mask(6, 100, torch.int64, seed=seed) for seed in (5, 6))
    ids = torch.arange(600, device="cuda").view(6, 100)
    cu_seqlens = torch.empty(7, dtype=torch.int32, device="cuda")
    packed = torch.zeros(600, dtype=torch.int32, device="cuda")

    def launch() -> None:
        prefix_sum(cu_seqlens, mask)
        pack_ids(packed, ids, cu_seqlens, mask)

    replayed(launch, lambda: mask.copy_(other))
    assert torch.equal(cu_seqlens, offsets(other))
    tokens = int(cu_seqlens[-1])
    assert torch.equal(packed[:tokens], ids[other != 0].to(torch.int32))


def test_masks_of_another_type_are_refused() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool, device="cuda")
    with pytest.raises(ValueError, match="mask must be int32 or int64"):
        prefix_sum(torch.empty(3, dtype=torch.int32, device="cuda"), mask)
