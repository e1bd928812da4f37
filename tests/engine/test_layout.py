"""The sorted layout is a permutation of whole sequences, and its groups tile it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.layout import sort_by_length


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_layout(lengths: list[int]) -> None:
    cu_seqlens = np.cumsum([0, *lengths]).astype(np.int32)
    layout = sort_by_length(cu_seqlens)
    expected = [
        (int(cu_seqlens[index]) + position, position) for index in layout.order for position in range(lengths[index])
    ]
    assert list(zip(layout.tokens.tolist(), layout.positions.tolist(), strict=True)) == expected
    assert sorted(layout.order.tolist()) == list(range(len(lengths)))
    stop = 0
    for group in layout.groups:
        assert group.start == stop
        stop = group.stop
    assert stop == sum(lengths)
    tiled = [group.length for group in layout.groups for _ in range(group.count)]
    assert tiled == sorted(lengths)
    assert len({group.length for group in layout.groups}) == len(layout.groups)
