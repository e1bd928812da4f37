"""The sorted layout is a permutation of whole sequences, and its groups tile it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.model.layout import rounded, sort_by_length


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_layout(lengths: list[int]) -> None:
    cu_seqlens = np.cumsum([0, *lengths]).astype(np.int32)
    layout = sort_by_length(cu_seqlens)
    expected = [
        (int(cu_seqlens[index]) + position, position) for index in layout.order for position in range(lengths[index])
    ]
    rows = list(zip(layout.tokens.tolist(), layout.positions.tolist(), strict=True))
    assert rows[: len(expected)] == expected
    assert len(rows) == rounded(len(expected))
    assert set(rows[len(expected) :]) <= {(0, 0)}
    assert sorted(layout.order.tolist()) == list(range(len(lengths)))
    stop = 0
    for group in layout.groups:
        assert group.start == stop
        stop = group.stop
    assert stop == sum(lengths)
    tiled = [group.length for group in layout.groups for _ in range(group.count)]
    assert tiled == sorted(lengths)
    assert len({group.length for group in layout.groups}) == len(layout.groups)


@given(st.integers(1, 100_000))
def test_rounding_wastes_little_and_knows_few_sizes(count: int) -> None:
    size = rounded(count)
    assert count <= size < count + max(8, count / 8)
    assert count < 128 or size <= count * 17 / 16
    assert rounded(size) == size
