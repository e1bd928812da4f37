"""Rows of more than one vector are split into what they were joined of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock.engine.vector_rows import join_sparse, join_vectors, split_sparse, split_vectors

VALUES = st.floats(allow_nan=False, allow_infinity=False, width=32)
IDS = st.lists(st.integers(0, (1 << 24) - 1), unique=True, max_size=20).map(sorted)


def floats(*shape: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float32, shape, elements=VALUES)


@given(st.data(), IDS, st.integers(1, 8), st.integers(1, 8), st.integers(1, 5))
def test_all_three_come_back(data: st.DataObject, ids: list[int], dim: int, token_dim: int, count: int) -> None:
    dense, tokens, weights = (data.draw(floats(*shape)) for shape in ((dim,), (count, token_dim), (len(ids),)))
    row = join_vectors(dense, tokens, join_sparse(np.array(ids, np.int64), weights))
    assert row.dtype == np.float32
    found_dense, found_tokens, sparse = split_vectors(row, dim, token_dim)
    found_ids, found_weights = split_sparse(sparse)
    assert found_ids.dtype == np.int32
    assert found_ids.tolist() == ids
    for found, joined in ((found_dense, dense), (found_tokens, tokens), (found_weights, weights)):
        np.testing.assert_array_equal(found, joined)


def test_an_id_that_float32_does_not_hold_is_told() -> None:
    with pytest.raises(ValueError, match="16777216"):
        join_sparse(np.array([3, 1 << 24]), np.ones(2, np.float32))


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [1.0, 2.0, 1.0, 5.0], [1.0, 2.0, -1.0], [1.0, 2.0, 0.0, 7.0]])
def test_a_row_of_other_sizes_is_told(values: list[float]) -> None:
    with pytest.raises(ValueError, match="row of"):
        split_vectors(np.array(values, np.float32), 2, 3)


def test_an_odd_sparse_row_is_told() -> None:
    with pytest.raises(ValueError, match="3 values"):
        split_sparse(np.ones(3, np.float32))
