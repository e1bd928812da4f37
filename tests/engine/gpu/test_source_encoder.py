"""Shapes of the encoder's batches, which graphs share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.gpu.generation.source_encoder import source_shape


@pytest.mark.parametrize("is_padded", [False, True])
@given(lengths=st.lists(st.integers(1, 1000), min_size=1, max_size=300), most=st.sampled_from([64, 1000]))
def test_a_shape_holds_its_batch(is_padded: bool, lengths: list[int], most: int) -> None:
    shape = source_shape(np.array(lengths), most, is_padded=is_padded)
    assert shape.tokens >= sum(lengths)
    assert shape.sources >= len(lengths)
    assert shape.longest >= max(lengths)
    sizes = [section.stop - section.start for section in shape.sections]
    assert sizes == [*[shape.tokens] * 4, shape.sources + 1, shape.sources]
    assert all(a.stop <= b.start for a, b in zip(shape.sections, shape.sections[1:], strict=False))


def test_batches_of_one_load_have_few_shapes() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.integers(5, 101, rng.integers(40, 90)) for _ in range(200)]
    assert len({source_shape(lengths, 100, is_padded=False) for lengths in batches}) <= 4


def test_a_batch_that_is_too_large_for_a_graph_has_its_exact_shape() -> None:
    assert source_shape(np.full(300, 99), 100, is_padded=False) == (29_700, 300, 99)
