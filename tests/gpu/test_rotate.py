"""Rotary positions and norms of heads on a GPU, in place."""

import math

import pytest
import torch

from penstock.engine.kernels.rotate import rotate
from penstock.engine.model.weights import Heads, RotaryAttention
from tests.gpu.references import (
    HALVES,
    assert_as_exact_as_torch,
    positions_of,
    randn,
    replayed,
    rotary_of,
    turned_by_torch,
)

pytestmark = pytest.mark.gpu

HEADS = (Heads(12, 12, 64), Heads(16, 8, 128), Heads(3, 1, 256), Heads(5, 5, 32), Heads(7, 1, 96), Heads(40, 40, 16))
ROWS = (1, 5, 2050)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_norms", [False, True])
def test_against_float64(rows: int, heads: Heads, dtype: torch.dtype, has_norms: bool) -> None:
    qkv, positions = randn(rows, heads.width + 2 * heads.key_width, dtype=dtype, seed=rows), positions_of(rows)
    kind = rotary_of(heads, dtype, has_norms=has_norms)
    plain, exact = (turned_by_torch(x, positions, heads, kind) for x in (qkv, qkv.double()))
    values = qkv[:, heads.width + heads.key_width :].clone()
    rotate(qkv, positions, heads, kind)
    assert_as_exact_as_torch(qkv, plain, exact)
    assert torch.equal(qkv[:, heads.width + heads.key_width :], values)


def test_nothing_is_written_beyond_the_rows_and_nan_stays_in_its_head() -> None:
    heads = Heads(4, 2, 128)
    memory = randn(11, 1024, dtype=torch.float16, seed=3)
    memory[3, 130], memory[4, 600] = math.nan, math.nan  # the second query of a row, the first key of another
    before = memory.clone()
    rotate(memory[:10], positions_of(10), heads, rotary_of(heads, torch.float16, has_norms=True))
    assert torch.equal(memory[10], before[10])
    poisoned = memory.view(11, 8, 128).isnan()
    assert poisoned[3, 1].all()
    assert poisoned[4, 4].all()
    assert int(poisoned.sum()) == 2 * 128


def test_in_a_graph_with_other_positions() -> None:
    heads, original = Heads(12, 12, 64), randn(77, 2304, dtype=torch.bfloat16, seed=4)
    kind, positions = rotary_of(heads, torch.bfloat16, has_norms=False), positions_of(77)
    others, wanted, qkv = (positions + 11) % 600, original.clone(), original.clone()
    rotate(wanted, others, heads, kind)

    def restore() -> None:
        qkv.copy_(original)
        positions.copy_(others)

    replayed(lambda: rotate(qkv, positions, heads, kind), restore)
    assert torch.equal(qkv, wanted)


def test_what_does_not_fit_is_refused() -> None:
    heads, qkv = Heads(4, 2, 64), randn(4, 512, dtype=torch.float16)
    kind = rotary_of(heads, torch.float16, has_norms=True)
    half = RotaryAttention(kind.cosines.half(), kind.sines.half())
    for wrong, message in (
        ((qkv[:, :256].contiguous(), positions_of(4), heads, kind), "qkv must be"),
        ((qkv, positions_of(4).long(), heads, kind), "positions must be"),
        ((qkv, positions_of(4), heads, half), "angles must be"),
    ):
        with pytest.raises(ValueError, match=message):
            rotate(*wrong)
